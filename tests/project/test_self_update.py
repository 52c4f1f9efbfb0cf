"""``self-update`` in real environments of pip and uv, and in a real clone."""

import base64
import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from support import schemas
from support.program import Result, environment
from support.tools import open_terminal, require_tool

from tsuku_llm import __version__

ROOT = Path(__file__).parents[2]
NEWER = "99.0"
PACKAGES = sysconfig.get_path("purelib")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it does not run there")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels: this version, and a newer one. They need no other package."""
    folder = tmp_path_factory.mktemp("shop")
    for version in (__version__, NEWER):
        make_wheel(folder, version)
    return folder


def make_wheel(folder: Path, version: str) -> None:
    """Write a wheel of the client's package, as setuptools would."""
    info = f"tsuku_llm-{version}.dist-info"
    package = ROOT / "installer" / "tsuku_llm"
    files = {
        f"tsuku_llm/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in package.rglob("*.py")
    }
    own = files["tsuku_llm/_version.py"].decode()
    own = re.sub(r"(?m)^__version__ = .*$", f'__version__ = "{version}"', own)
    files |= {
        "tsuku_llm/_version.py": own.encode(),
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tsuku-llm\nVersion: %s\n"
        % version.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": b"[console_scripts]\ntsuku-llm = tsuku_llm.cli.main:main\n",
    }
    record = io.StringIO()
    rows = csv.writer(record)
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", len(content)])
    rows.writerow([f"{info}/RECORD", "", ""])
    with zipfile.ZipFile(folder / f"tsuku_llm-{version}-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        wheel.writestr(f"{info}/RECORD", record.getvalue())


def settings(folder: Path, shop: Path, **extra: str) -> dict[str, str]:
    """A user whose pip and uv have the shop, and no index."""
    uv = folder / "uv.toml"
    uv.write_text(f'no-index = true\nfind-links = ["{shop}"]\n')
    return environment(
        folder / "tsuku",
        HOME=str(folder),
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(shop),
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        UV_CONFIG_FILE=str(uv),
        UV_CACHE_DIR=str(folder / "uv-cache"),
        UV_TOOL_DIR=str(folder / "uv-tools"),
        UV_TOOL_BIN_DIR=str(folder / "bin"),
        UV_PYTHON=sys.executable,
        PYTHONWARNINGS="default",
        **extra,
    )


def lend_packages(env_folder: Path) -> None:
    """Let an environment see what the program needs, behind its own packages."""
    (site,) = env_folder.glob("lib/python*/site-packages")
    (site / "lent.pth").write_text(f"{PACKAGES}\n")


def make_environment(folder: Path, env: Mapping[str, str], *wanted: str) -> Path:
    """An environment of pip; return the program in it."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    if wanted:
        pip = [folder / "bin/pip", "install", "--quiet", *wanted]
        subprocess.run(pip, env=dict(env), check=True)
    lend_packages(folder)
    return folder / "bin/tsuku-llm"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Path:
    """An environment in which pip installed this version."""
    folder = tmp_path_factory.mktemp("original")
    env = settings(folder, shop)
    return make_environment(folder / "env", env, f"tsuku-llm=={__version__}").parents[1]


def copy_environment(original: Path, folder: Path) -> Path:
    """Copy an environment, whose scripts name it; return the program in the copy."""
    shutil.copytree(original, folder, symlinks=True)
    for script in (folder / "bin").iterdir():
        if not script.is_symlink():
            script.write_bytes(script.read_bytes().replace(bytes(original), bytes(folder)))
    return folder / "bin/tsuku-llm"


def run(program: Path, env: Mapping[str, str], *words: str) -> Result:
    done = subprocess.run(
        [program, *words],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    schemas.check_output(words, done.stdout)
    return Result(done.returncode, done.stdout, done.stderr)


def version_of(program: Path, env: Mapping[str, str]) -> str:
    return run(program, env, "--version").stdout.split()[-1]


@pytest.fixture
def in_pip(tmp_path: Path, shop: Path, original: Path) -> tuple[Path, dict[str, str]]:
    return copy_environment(original, tmp_path / "env"), settings(tmp_path, shop)


def test_pip_updates_what_it_installed_in_an_environment(
    in_pip: tuple[Path, dict[str, str]],
) -> None:
    program, env = in_pip
    shown = run(program, env, "self-update", "--dry-run")
    assert shown.code == 0, shown.stderr
    assert "installed with pip in the environment" in shown.stdout
    # Nobody can be asked: nothing is run.
    assert run(program, env, "self-update").stdout == shown.stdout
    assert version_of(program, env) == __version__
    done = run(program, env, "self-update", "--yes", "--json")
    assert done.code == 0, done.stderr
    told = done.document["data"]
    assert (told["way"], told["version"], told["new_version"]) == (
        "environment",
        __version__,
        NEWER,
    )
    assert version_of(program, env) == NEWER
    again = run(program, env, "self-update", "--yes")
    assert again.stdout == f"the updater ran; tsuku-llm is {NEWER}\n"


def test_a_wheel_from_a_file_has_no_newer_one(tmp_path: Path, shop: Path) -> None:
    env = settings(tmp_path, shop)
    wheel = shop / f"tsuku_llm-{__version__}-py3-none-any.whl"
    program = make_environment(tmp_path / "env", env, str(wheel))
    done = run(program, env, "self-update", "--yes", "--json")
    assert (done.code, done.document["error"]["code"]) == (3, "no-updater")
    assert str(wheel) in done.stderr
    assert version_of(program, env) == __version__


def test_uv_updates_its_tool(tmp_path: Path, shop: Path) -> None:
    env = settings(tmp_path, shop)
    install = [require_tool("uv"), "tool", "install", "--quiet", "tsuku-llm"]
    # First only this version is on offer.
    first = tmp_path / "first"
    first.mkdir()
    shutil.copy(shop / f"tsuku_llm-{__version__}-py3-none-any.whl", first)
    (tmp_path / "uv.toml").write_text(f'no-index = true\nfind-links = ["{first}"]\n')
    subprocess.run(install, env=env, check=True)
    lend_packages(tmp_path / "uv-tools/tsuku-llm")
    program = tmp_path / "bin/tsuku-llm"
    assert version_of(program, env) == __version__
    shutil.copy(shop / f"tsuku_llm-{NEWER}-py3-none-any.whl", first)
    done = run(program, env, "self-update", "--yes")
    assert done.stdout == f"updated tsuku-llm from {__version__} to {NEWER}\n", done.stderr
    assert version_of(program, env) == NEWER


def pipx(folder: Path, script: str) -> str:
    """A PATH whose pipx is this script."""
    folder.mkdir()
    (folder / "pipx").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "pipx").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_pipx_updates_its_environment_or_its_failure_is_an_error(
    in_pip: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    program, env = in_pip
    (tmp_path / "env/pipx_metadata.json").write_text("{}")
    failing = env | {"PATH": pipx(tmp_path / "failing", "echo no network >&2; exit 9")}
    done = run(program, failing, "self-update", "--yes")
    assert (done.code, done.stdout) == (4, "")
    failure = "error[updater-failed]: pipx upgrade env ended with exit code 9"
    assert f"no network\n{failure}" in done.stderr
    pip = f'[ "$*" = "upgrade env" ] && {tmp_path}/env/bin/pip install --upgrade tsuku-llm'
    done = run(program, env | {"PATH": pipx(tmp_path / "path", pip)}, "self-update", "--yes")
    assert done.stdout == f"updated tsuku-llm from {__version__} to {NEWER}\n", done.stderr


def test_the_question_on_a_terminal(in_pip: tuple[Path, dict[str, str]]) -> None:
    program, env = in_pip
    for typed, after in ((b"n\n", __version__), (b"\n", __version__), (b"y\n", NEWER)):
        said = on_terminal(program, env, typed)
        assert "pip install --upgrade tsuku-llm" in said
        assert version_of(program, env) == after


def on_terminal(program: Path, env: Mapping[str, str], typed: bytes) -> str:
    """Run it on a terminal with this input; return what the terminal shows."""
    ours, theirs = open_terminal()
    os.write(ours, typed)
    child = subprocess.Popen(
        [program, "self-update"], env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert child.wait() == 0, said
    return said.decode()


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(
        [require_tool("git"), *who, "-C", folder, *words], check=True, capture_output=True
    )


def test_a_clone_is_pulled_and_installed_again(tmp_path: Path, shop: Path, original: Path) -> None:
    env = settings(tmp_path, shop)
    origin = tmp_path / "origin"
    (origin / "installer/tsuku_llm").mkdir(parents=True)
    (origin / "installer/tsuku_llm/__init__.py").touch()
    script = origin / "install.sh"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    (origin / ".gitignore").write_text(".venv\n")
    git(tmp_path, "init", "--quiet", str(origin))
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "-m", "old")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(origin), str(clone))
    program = copy_environment(original, clone / ".venv")
    script.write_text("#!/bin/sh\nexec .venv/bin/pip install --upgrade tsuku-llm\n")
    git(origin, "commit", "--quiet", "-a", "-m", "new")
    done = run(program, env, "self-update", "--yes")
    assert done.stdout == f"updated tsuku-llm from {__version__} to {NEWER}\n", done.stderr
    # A clone with commits of its own is not merged.
    git(origin, "commit", "--quiet", "--allow-empty", "-m", "theirs")
    git(clone, "commit", "--quiet", "--allow-empty", "-m", "ours")
    assert run(program, env, "self-update", "--yes").code == 4


def test_a_copy_without_metadata_runs_from_a_folder(tmp_path: Path, shop: Path) -> None:
    env = settings(tmp_path, shop)
    make_environment(tmp_path / "env", env)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    with zipfile.ZipFile(shop / f"tsuku_llm-{NEWER}-py3-none-any.whl") as wheel:
        wheel.extractall(site, [each for each in wheel.namelist() if "dist-info" not in each])
    done = subprocess.run(
        [tmp_path / "env/bin/python", "-m", "tsuku_llm", "self-update", "--json"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    error = schemas.read(done.stdout)["error"]
    assert error["code"] == "no-updater"
    assert error["facts"][0] == f"not installed: it runs from {site / 'tsuku_llm'}"
