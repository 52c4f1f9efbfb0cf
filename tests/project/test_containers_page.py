"""The Kubernetes objects of the documents: checked against its schemas, and their commands run.

No cluster runs here. Each container is played by bubblewrap, with its command, its variables and
its mounts, on folders that stand for those of a node.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from support.gguf_files import layered_model
from support.release_server import ReleaseServer, release_server
from support.serving import told_port
from support.tools import require_tool

FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "containers"
OBJECTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text("utf-8"))
)
SUPPORTED = ("1.31", "1.34")
"""The versions of Kubernetes whose schemas the objects must meet."""


@pytest.mark.parametrize("version", SUPPORTED)
@pytest.mark.parametrize("manifest", OBJECTS, ids=lambda each: each["kind"])
def test_each_object_meets_the_schema_of_kubernetes(manifest: Any, version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def pod(kind: str) -> Any:
    (found,) = [each for each in OBJECTS if each["kind"] == kind]
    return found["spec"]["template"]["spec"]


class Node:
    """A node's folders, and bubblewrap in the place of its container runtime."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.env = {name: text for name, text in env.items() if name != "TSUKU_HOME"}

    def host_path(self, spec: Any, name: str) -> Path:
        (volume,) = [each for each in spec["volumes"] if each["name"] == name]
        return self.folder / volume["hostPath"]["path"].lstrip("/")

    def command(self, spec: Any, container: Any, *replaced: tuple[str, str]) -> list[str]:
        """Return bubblewrap's command for a container of a pod."""
        words = ["bwrap", "--dev-bind", "/dev", "/dev", "--proc", "/proc", "--tmpfs", "/var/lib"]
        # The image's own files are this machine's, read-only.
        for entry in sorted(Path("/").iterdir()):
            if entry.name not in ("dev", "proc", "var") and entry.exists():
                words += ["--ro-bind", str(entry), str(entry)]
        for mount in container["volumeMounts"]:
            path = self.host_path(spec, mount["name"])
            path.mkdir(parents=True, exist_ok=True)
            how = "--ro-bind" if mount.get("readOnly") else "--bind"
            words += [how, str(path), mount["mountPath"]]
        words += ["--setenv", "TSUKU_HOME", "/var/lib/tsuku", "--die-with-parent", "--"]
        argv = [*container["command"], *container["args"]]
        for old, new in replaced:
            argv = [word.replace(old, new) for word in argv]
        return [*words, *argv]

    def run(self, spec: Any, container: Any) -> None:
        done = subprocess.run(
            self.command(spec, container),
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReleaseServer]:
    with release_server(tmp_path_factory.mktemp("shop")) as server:
        server.publish("b11429", {"cpu": server.variant(server.stand_in("b11429-cpu"))})
        yield server


@pytest.fixture
def node(shop: ReleaseServer, tmp_path: Path) -> Node:
    require_tool("bwrap")
    folder = tmp_path / "node"
    (folder / "var/lib").mkdir(parents=True)
    user = shop.user(folder / "var/lib/tsuku")
    programs = tmp_path / "bin"
    programs.mkdir()
    script = f'#!/bin/sh\nexec {sys.executable} -m tsuku_llm "$@"\n'
    (programs / "tsuku-llm").write_text(script)
    (programs / "tsuku-llm").chmod(0o755)
    return Node(folder, {**user.env, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"})


def test_a_node_is_filled_and_serves(node: Node) -> None:
    fills = pod("DaemonSet")
    for _ in range(2):  # a pod starts again with each update of the daemon set
        for container in fills["initContainers"]:
            node.run(fills, container)
    serves = pod("Deployment")
    (server,) = serves["containers"]
    model = node.host_path(serves, "models") / "model.gguf"
    model.parent.mkdir(parents=True)
    layered_model(model, layers=2, size=1024)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = node.command(serves, server, ("8080", port), ("0.0.0.0", "127.0.0.1"))  # noqa: S104
    with subprocess.Popen(command, env=node.env, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert told_port(running) == int(port)
        finally:
            running.terminate()


def test_the_containerfile_has_the_files_that_it_names() -> None:
    text = (FOLDER / "Containerfile").read_text("utf-8")
    assert "ENTRYPOINT" in text
    folder = next(line for line in text.splitlines() if line.startswith("ENV TSUKU_HOME="))
    mounts = [each["mountPath"] for each in pod("DaemonSet")["initContainers"][0]["volumeMounts"]]
    assert folder.partition("=")[2] in mounts
