"""Every command that README, the guide and the other documents print is run, as it is printed.

A reader's machine: an empty home, the program on the ``PATH``, a publisher's server over TLS, and
a model. The blocks of a document are run from its top to its end, each line by a shell. Whatever
cannot run here is in ``NOT_RUN``, with its reason.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.builds import NO_DEVICE_STEPS, stand_in
from support.gguf_files import layered_model
from support.release_server import ReleaseServer, release_server
from support.serving import told_port
from support.tools import require_tool

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("ci/**/*.md")])
OURS = ("tsuku-llm", "tsuku-publish")

NOT_RUN = {
    "pip install 'tsuku-llm[": "the package is not in an index; ci/company installs a wheel",
    "pip install . ./installer/publish": "the environment of the tests has both",
    "git clone ": "there is no public address to clone from",
    "./install.sh": "tests/project/test_install_script.py runs it",
    "ci/test": "it is the test suite that this test is a part of",
    "ci/faults": "it takes minutes to hours; tests/project/test_faultlab.py runs its commands",
    "ci/fuzz": "it takes minutes; tests/project/test_docs.py checks that the script exists",
    "python -m ci.bench": "it takes a quarter of an hour; tests/project/test_growth.py runs parts",
    "tsuku-llm status --prometheus --output /var/": "the folder is a node exporter's, not a test's",
    "tsuku-llm chat ": "it talks to a person; tests/cli/test_chat.py types in a terminal",
    "tsuku-llm mirror --to oci:": "tests/steps/test_registry_mirror.py fills a real registry",
    "tsuku-llm bundle ": "tests/cli/test_bundle_command.py runs it",
    "tsuku-llm install --bundle": "tests/cli/test_bundle_command.py runs it",
    "tsuku-llm install --from": "tests/cli/test_own_build_command.py runs it",
    "sh machines.bundle": "tests/e2e/test_bundle_offline.py runs one, without a network",
    "tsuku-llm fleet ": "tests/ansible/test_fleet.py runs it with an inventory",
    "tsuku-publish build cpu vulkan": "it takes an hour; tests/publish/test_building.py builds",
    "tsuku-publish build cpu --base": "the same; tests/publish/test_building_bases.py builds",
    "tsuku-publish add b11434": "it needs that build; the lines of releases.md are run",
    "systemctl ": "no systemd of this user runs here; tests/cli/test_user_systemd.py starts one",
}
"""The beginning of a line that is not run, and why. Every row is needed."""

ENDS_WITH = {
    "tsuku-llm install --backend cuda": 3,
    "tsuku-llm install --backend cuda+vulkan": 3,
}
"""Lines that rightly end with another code than 0 on a machine without a GPU."""


@dataclass
class Machine:
    """A reader's machine, and the server that a line has started in the foreground."""

    env: dict[str, str]
    folder: Path
    port: int
    replaced: dict[str, str]
    server: "subprocess.Popen[str] | None" = field(default=None)

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        text = self.here(line)
        return subprocess.run(
            ["sh", "-c", text],
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def here(self, line: str) -> str:
        """The line with this machine's port, web server and its folder for the documented ones.

        Nobody is at a terminal to answer the question of ``sign``.
        """
        line = line.replace("tsuku-publish sign ", "tsuku-publish sign --yes ")
        text = re.sub(r"\b8080\b", str(self.port), line)
        for documented, ours in self.replaced.items():
            text = text.replace(documented, ours)
        return text

    def serve(self, line: str) -> None:
        """Run a line that serves until it is ended; wait until the server answers."""
        self.end()
        words = shlex.split(self.here(line), comments=True)
        words += [] if "--port" in words else [*([] if "--" in words else ["--"]), "--port", "0"]
        self.server = subprocess.Popen(
            words, env=self.env, cwd=self.folder, stderr=subprocess.PIPE, text=True
        )
        told_port(self.server)

    def end(self) -> None:
        if self.server:
            self.server.terminate()
            self.server.communicate()
            self.server = None


def lines_of(document: Path) -> list[str]:
    """The lines of a document's ``sh`` blocks; those that a backslash joins are one."""
    text = document.read_text("utf-8")
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    joined = re.sub(r"\\\n\s*", "", "\n".join(blocks))
    return [line.strip() for line in joined.splitlines() if line.strip() and line.strip()[0] != "#"]


def plain(line: str) -> str:
    """The line without the folder of a program and without its comment."""
    return re.sub(r"(^|[\s/.])\S*/(?=tsuku-)", "", line).partition("  #")[0].strip()


def reason(line: str) -> str | None:
    typed = plain(line)
    return next((why for start, why in NOT_RUN.items() if typed.startswith(start)), None)


def serves(line: str) -> bool:
    """Tell whether a line is a server in the foreground, which does not end by itself."""
    ended = ("--detach", "--dry-run", "--service", "--help")
    return plain(line).startswith("tsuku-llm serve ") and not any(each in line for each in ended)


WITH_COMMANDS = [document for document in DOCUMENTS if lines_of(document)]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReleaseServer]:
    """A publisher with two releases, each with a build for the processor."""
    with release_server(tmp_path_factory.mktemp("shop")) as server:
        for tag in ("b11428", "b11429"):
            build = server.stand_in(f"{tag}-cpu")
            server.publish(tag, {"cpu": server.variant(build)})
        yield server


@pytest.fixture
def machine(shop: ReleaseServer, tmp_path: Path) -> Iterator[Machine]:
    user = shop.user(tmp_path / "tsuku-home")
    home, bin_folder = tmp_path / "home", tmp_path / "home" / ".local" / "bin"
    bin_folder.mkdir(parents=True)
    for name in OURS:
        module = name.replace("-", "_")
        script = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n'
        (bin_folder / name).write_text(script)
        (bin_folder / name).chmod(0o755)
    (home / "clone" / ".venv").mkdir(parents=True)
    (home / "clone" / ".venv" / "bin").symlink_to(bin_folder)
    layered_model(home / "clone" / "model.gguf", layers=2, size=1024)
    env = {**user.env, "HOME": str(home), "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    # Nobody is at a terminal: what a publisher would type there.
    env["TSUKU_LLM_PASSPHRASE"] = "correct horse battery"
    env["CURL_CA_BUNDLE"] = env["SSL_CERT_FILE"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name in ("cpu", "vulkan"):
        stand_in(home / "clone" / "build" / name, devices=NO_DEVICE_STEPS)
        (home / "clone" / "build" / name / f"libggml-{name}.so").touch()
    replaced = {"https://host.example": shop.nginx.url, "/srv/www": str(shop.nginx.root)}
    machine = Machine(env, home / "clone", port, replaced)
    yield machine
    machine.end()
    machine.run("tsuku-llm stop --all")


@pytest.mark.parametrize("document", WITH_COMMANDS, ids=lambda path: path.name)
def test_the_commands_of_a_document_work_as_they_are_printed(
    document: Path, machine: Machine
) -> None:
    # A chapter may be read by itself, so something is installed: the release before the newest.
    done = machine.run("tsuku-llm install --yes --release b11428")
    assert done.returncode == 0, done.stderr
    for line in lines_of(document):
        if reason(line):
            continue
        if line.startswith("curl "):
            require_tool("curl")
        if serves(line):
            machine.serve(plain(line))
            continue
        done = machine.run(line)
        expected = ENDS_WITH.get(plain(line), 0)
        assert done.returncode == expected, f"{line}\n{done.stdout}\n{done.stderr}"


def programs_of(document: Path) -> list[str]:
    """The programs in Python that a document prints."""
    text = document.read_text("utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "document", [each for each in DOCUMENTS if programs_of(each)], ids=lambda path: path.name
)
def test_the_programs_of_a_document_run_as_they_are_printed(
    document: Path, machine: Machine
) -> None:
    for program in programs_of(document):
        done = machine.run(f"tsuku-llm install --yes && {sys.executable} -c {shlex.quote(program)}")
        assert done.returncode == 0, f"{program}\n{done.stderr}"


def test_each_line_that_is_not_run_is_printed_somewhere() -> None:
    lines = [line for document in WITH_COMMANDS for line in lines_of(document)]
    assert len(lines) > 20
    assert {
        start for start in NOT_RUN if not any(line.startswith(start) for line in lines)
    } == set()
    assert set(ENDS_WITH) <= {plain(line) for line in lines}


@pytest.mark.parametrize(
    ("line", "plainly"),
    [
        (".venv/bin/tsuku-llm install --backend cuda   # also", "tsuku-llm install --backend cuda"),
        ("tsuku-llm serve -m model.gguf", "tsuku-llm serve -m model.gguf"),
    ],
)
def test_a_line_is_known_without_its_folder_and_comment(line: str, plainly: str) -> None:
    assert plain(line) == plainly
