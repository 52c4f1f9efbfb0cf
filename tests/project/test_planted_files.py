"""Commands in a folder where another user has put files that programs look for.

As another user of this machine: twelve files in a folder for everybody (sticky, as /tmp), in one of
mode 0777, and in the home of another user that this process has as HOME. None of them is obeyed.
"""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.ansible_modules import require_ansible
from support.program import COMMAND, environment
from support.stored import install

from tsuku_llm.fetch.places.bundle_file import START
from tsuku_llm.store.store import Store

OTHER = 65534
PLACES = ("sticky", "0777", "home of another")
SCRIPTS = Path(sysconfig.get_path("scripts"))

MODULES = ("pip", "json", "venv", "sitecustomize", "usercustomize", "runpy", "hashlib", "ansible")
PROGRAMS = (
    *("git", "uv", "pipx", "python3", "sh", "bash", "cmake", "ninja", "cc", "gcc", "ldd", "wc"),
    *("tr", "docker-credential-planted", "ansible-playbook", "bwrap", "xdg-open", "ld"),
)
CALLBACK = """\
from ansible.plugins.callback import CallbackBase
open({mark!r}, "w")
class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_NAME = "planted"
"""

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the loader's variables are Linux's"),
    pytest.mark.skipif(
        sys.platform == "linux" and os.geteuid() != 0, reason="only root can give files away"
    ),
]


class Planted:
    """A folder with the files of another user; each that is obeyed leaves a mark."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind = kind
        # Other users get there, as they do into /tmp.
        folder.chmod(0o755)
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.marks.chmod(0o777)
        self.home = folder / "home"
        self.home.mkdir(0o700)
        self.place = folder / "place"
        self.place.mkdir()
        self._plant()
        for path in (self.place, *self.place.rglob("*")):
            os.chown(path, OTHER, OTHER, follow_symlinks=False)
        self.place.chmod({"sticky": 0o1777, "0777": 0o777, "home of another": 0o755}[kind])

    def _plant(self) -> None:
        put = self._put
        for name in MODULES:
            put(f"{name}.py", f"open({str(self.marks / name)!r}, 'w')\nraise SystemExit(77)\n")
        for name in PROGRAMS:
            put(name, f"#!/bin/sh\n: >{self.marks}/program-{name}\nexit 77\n", 0o755)
        callback = CALLBACK.format(mark=str(self.marks / "callback"))
        put("plugins/planted.py", callback)
        put("inventory_plugins/planted.py", callback)
        put(
            "ansible.cfg",
            "[defaults]\ncallback_plugins = ./plugins\ncallbacks_enabled = planted\n"
            "filter_plugins = ./plugins\nvars_plugins = ./plugins\n"
            "inventory_plugins = ./inventory_plugins\n",
        )
        put(".ansible.cfg", f"[defaults]\nfilter_plugins = {self.place}/plugins\n")
        put("hosts", f"#!/bin/sh\n: >{self.marks}/inventory\necho '{{}}'\n", 0o755)
        wheels = self.place / "index"
        for name in ("pip.conf", ".config/pip/pip.conf", ".pip/pip.conf"):
            put(name, f"[global]\nindex-url = {wheels.as_uri()}\nno-index = false\n")
        put("uv.toml", f'index-url = "{wheels.as_uri()}"\n')
        put(".config/uv/uv.toml", f'index-url = "{wheels.as_uri()}"\n')
        put("setup.cfg", "[global]\ncommand_packages = planted\n[install]\nprefix = .\n")
        put(".pydistutils.cfg", "[install]\nprefix = .\n")
        put("pyproject.toml", f'[tool.uv]\nindex-url = "{wheels.as_uri()}"\n')
        put(".netrc", "default login planted password planted\n", 0o600)
        put(".docker/config.json", json.dumps({"credsStore": "planted"}))
        put(".gitconfig", f"[core]\nfsmonitor = {self.place}/git\npager = {self.place}/git\n")
        for name in ("libcuda.so.1", "libvulkan.so.1", "libggml-planted.so"):
            put(name, "not a library")

    def _put(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def environ(self, **extra: str) -> dict[str, str]:
        """A user with a careless PATH, who has come into that folder."""
        env = environment(self.home / "tsuku", **extra)
        env |= {"PATH": f".:{env['PATH']}:", "LD_LIBRARY_PATH": ":", "HOME": str(self.home)}
        if self.kind == "home of another":
            env["HOME"] = str(self.place)
        return env

    def run(
        self, *command: str | Path, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.place,
            env=dict(env or self.environ()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def obeyed(self) -> list[str]:
        return sorted(each.name for each in self.marks.iterdir())


@pytest.fixture(params=PLACES)
def planted(request: pytest.FixtureRequest, tmp_path: Path) -> Planted:
    # pytest's folder is for its user alone.
    for each in (tmp_path.parent, tmp_path):
        each.chmod(0o755)
    return Planted(tmp_path, request.param)


PROGRAM = str(SCRIPTS / "tsuku-llm")
PUBLISH = str(SCRIPTS / "tsuku-publish")

COMMANDS: dict[str, tuple[tuple[str, ...], set[int]]] = {
    "probe": ((PROGRAM, "probe", "--json"), {0}),
    "doctor": ((PROGRAM, "doctor", "--json"), {0, 1, 3, 6}),
    "version": ((PROGRAM, "version"), {0}),
    "self-update": ((PROGRAM, "self-update", "--dry-run"), {0}),
    "completion": ((PROGRAM, "completion", "bash"), {0}),
    "serve": ((PROGRAM, "serve", "--", "-m", "x"), {0, 10}),
    "serve --exec": ((PROGRAM, "serve", "--exec", "--", "-m", "x"), {0}),
    "serve --detach": ((PROGRAM, "serve", "--detach", "--", "-m", "x"), {0, 7}),
    "build show": ((PUBLISH, "build", "show", "cpu"), {0, 1}),
    "a list of hosts": ((PROGRAM, "fleet", "status", "-i", "localhost,"), {6, 10}),
    "an inventory": ((PROGRAM, "fleet", "status", "-i", "hosts"), {6}),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_N02_a_command_obeys_no_file_of_another_user(name: str, planted: Planted) -> None:
    command, codes = COMMANDS[name]
    if command[1] == "fleet":
        require_ansible()
    install(Store(planted.home / "tsuku/llm"))
    done = planted.run(*command)
    assert planted.obeyed() == [], done.stderr
    assert done.returncode in codes, done.stderr
    if done.returncode == 6:
        assert "error[" in done.stderr


def test_N02_the_publishers_git_is_not_that_of_the_folder(planted: Planted) -> None:
    planted.run("/usr/bin/git", "init", "-q", str(planted.home / "tree"))
    signers = planted.home / "signers.json"
    signers.write_text("{}")
    signers.chmod(0o600)
    env = planted.environ(TSUKU_LLM_SIGNERS=str(signers), TSUKU_PUBLISH_DATA=str(planted.home))
    done = planted.run(PUBLISH, "secrets", "--repository", str(planted.home / "tree"), env=env)
    assert planted.obeyed() == [], done.stderr


def test_N02_a_bundle_runs_no_file_of_another_user(planted: Planted, tmp_path: Path) -> None:
    from tsuku_operator.bundle import bundle_start  # noqa: PLC0415
    from tsuku_operator.bundle.bundle_writer import written_bundle  # noqa: PLC0415

    bundle = tmp_path / "bundle"
    with written_bundle(bundle) as writer:
        writer.add("bundle.json", b'{"programs": []}')
        writer.add(START, Path(bundle_start.__file__).read_bytes())
        writer.finish()
    env = planted.environ(PYTHONPATH=os.pathsep, PYTHON="python3")
    done = planted.run("/bin/sh", bundle, env=env)
    assert planted.obeyed() == [], done.stderr
    assert done.returncode == 3
    assert "has builds only" in done.stderr


def test_N02_a_credential_helper_is_not_one_of_the_folder(planted: Planted) -> None:
    own = planted.home / "docker"
    own.mkdir()
    (own / "config.json").write_text(json.dumps({"credsStore": "planted", "auths": {"x.org": {}}}))
    code = (
        "import os; from tsuku_llm.fetch.http.registry_login import credentials_of; "
        "print(credentials_of('https://x.org/v2/a', os.environ))"
    )
    env = planted.environ(DOCKER_CONFIG=str(own))
    done = planted.run(sys.executable, "-I", "-c", code, env=env)
    assert planted.obeyed() == [], done.stderr
    assert "docker-credential-planted" in done.stderr


def test_N02_pip_gets_no_setting_and_no_module_of_another_user(planted: Planted) -> None:
    (planted.home / "empty").mkdir()
    env = planted.environ(
        TSUKU_LLM_REPOSITORY_URL="pkg:pypi/tsuku-llm-planted",
        PIP_FIND_LINKS=str(planted.home / "empty"),
        PIP_NO_INDEX="1",
        PYTHONPATH="",
    )
    done = planted.run(PROGRAM, "repository", "refresh", "--json", env=env)
    assert planted.obeyed() == [], done.stderr
    assert done.returncode == 4
    assert "pip could not fetch" in done.stdout


def test_N02_ansible_takes_no_settings_from_the_home_of_another(tmp_path: Path) -> None:
    require_ansible()
    for each in (tmp_path.parent, tmp_path):
        each.chmod(0o755)
    planted = Planted(tmp_path, "home of another")
    done = subprocess.run(
        [PROGRAM, "fleet", "status", "-i", "localhost,"],
        cwd="/",
        env=planted.environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert planted.obeyed() == [], done.stderr
    assert done.returncode == 10, done.stderr


def test_N02_these_files_do_act_where_a_program_obeys_them(planted: Planted) -> None:
    """The control: what the commands above must not do."""
    assert planted.run(sys.executable, "-c", "import json").returncode == 77
    assert planted.run("/bin/sh", "-c", "git status").returncode == 77
    assert planted.obeyed() == ["json", "program-git"]
    assert COMMAND[0] == sys.executable
