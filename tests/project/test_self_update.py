"""``self-update`` in real environments of pip and uv, and in a real clone."""

import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from support import schemas
from support.program import Result, environment
from support.repository import RepositorySimulator, release_document
from support.sweeps import stride
from support.tools import open_terminal, require_tool

from tsuku_llm import __version__

ROOT = Path(__file__).parents[2]
NEWER = "99.0"
UPDATED = f"updated tsuku-llm from {__version__} to {NEWER}; no signed metadata name it\n"
PACKAGES = sysconfig.get_path("purelib")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it does not run there")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels: this version, and a newer one. They need one package."""
    folder = tmp_path_factory.mktemp("shop")
    make_packed(folder, "pinned", "1.0", {"pinned.py": b""})
    for version in (__version__, NEWER):
        make_wheel(folder, version)
    return folder


def lock_of(folder: Path, *, digest: str = "") -> bytes:
    """A lock that pins the one package, by its digest."""
    data = (folder / "pinned-1.0-py3-none-any.whl").read_bytes()
    digest = digest or hashlib.sha256(data).hexdigest()
    return f"pinned==1.0 \\\n    --hash=sha256:{digest}\n    # via tsuku-llm\n".encode()


def make_wheel(folder: Path, version: str, **changed: bytes) -> Path:
    """Write a wheel of the client's package, as setuptools would; ``changed`` are modules."""
    package = ROOT / "installer" / "tsuku_llm"
    files = {
        f"tsuku_llm/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in package.rglob("*.py")
    }
    own = files["tsuku_llm/_version.py"].decode()
    own = re.sub(r"(?m)^__version__ = .*$", f'__version__ = "{version}"', own)
    files |= {
        f"tsuku_llm/{path.relative_to(ROOT).as_posix()}": path.read_bytes()
        for path in (ROOT / "manifests").rglob("*.*")
        if path.suffix in (".py", ".json")
    }
    lock = lock_of(folder) if (folder / "pinned-1.0-py3-none-any.whl").exists() else b""
    files |= {
        "tsuku_llm/_version.py": own.encode(),
        "tsuku_llm/locked.txt": lock,
        f"tsuku_llm-{version}.dist-info/entry_points.txt": b"[console_scripts]\n"
        b"tsuku-llm = tsuku_llm.cli.main:main\n",
    }
    files |= {f"tsuku_llm/{name}": content for name, content in changed.items()}
    return make_packed(folder, "tsuku-llm", version, files)


def make_packed(folder: Path, name: str, version: str, files: Mapping[str, bytes]) -> Path:
    """Write a wheel of these files."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = io.StringIO()
    rows = csv.writer(record)
    for each, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow([each, f"sha256={digest}", len(content)])
    rows.writerow([f"{info}/RECORD", "", ""])
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for each, content in files.items():
            wheel.writestr(each, content)
        wheel.writestr(f"{info}/RECORD", record.getvalue())
    return path


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
        TSUKU_LLM_REPOSITORY_URL=f"{(ROOT / 'manifests').as_uri()}/",
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


def index_of(folder: Path, *wheels: Path) -> str:
    """Make a package index of wheels, or of folders with wheels; return its URL."""
    files = [each for one in wheels for each in ([one] if one.is_file() else one.glob("*.whl"))]
    for each in files:
        project = folder / each.name.partition("-")[0].replace("_", "-")
        project.mkdir(parents=True, exist_ok=True)
        shutil.copy(each, project)
    for project in folder.iterdir():
        links = "".join(f'<a href="{each.name}">{each.name}</a>' for each in project.glob("*.whl"))
        (project / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return folder.as_uri()


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
    assert "not signed: the package index says that 99.0 is the newest" in done.stderr
    # The environment is lent a tsuku-publish of the former version.
    assert f"tsuku-publish is still {__version__}; to update it: " in done.stderr
    assert f" -m pip install tsuku-publish=={NEWER}\n" in done.stderr
    assert version_of(program, env) == NEWER
    # What its lock pins is there, and nothing is left of the work.
    (packages,) = program.parents[1].glob("lib/python*/site-packages")
    assert (packages / "pinned.py").exists()
    assert not [*program.parents[1].glob(".tsuku-llm-update-*")]
    # A path that is too long for the first line is in the second one.
    assert f"{program.parent}/" in "".join(program.read_text().splitlines()[:2])
    again = run(program, env, "self-update", "--yes")
    assert again.stdout == f"there is no newer version; tsuku-llm is {NEWER}\n"


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
    shutil.copy(shop / "pinned-1.0-py3-none-any.whl", first)
    (tmp_path / "uv.toml").write_text(f'no-index = true\nfind-links = ["{first}"]\n')
    subprocess.run(install, env=env, check=True)
    lend_packages(tmp_path / "uv-tools/tsuku-llm")
    program = tmp_path / "bin/tsuku-llm"
    assert version_of(program, env) == __version__
    shutil.copy(shop / f"tsuku_llm-{NEWER}-py3-none-any.whl", first)
    done = run(program, env, "self-update", "--yes")
    assert done.stdout == UPDATED, done.stderr
    assert version_of(program, env) == NEWER


def test_a_copy_of_pipx_is_updated_from_the_index_that_pipx_noted(
    in_pip: tuple[Path, dict[str, str]], shop: Path, tmp_path: Path
) -> None:
    program, env = in_pip
    noted = {"main_package": {"pip_args": ["--index-url", index_of(tmp_path / "index", shop)]}}
    (tmp_path / "env/pipx_metadata.json").write_text(json.dumps(noted))
    del env["PIP_NO_INDEX"], env["PIP_FIND_LINKS"]
    done = run(program, env, "self-update", "--yes")
    assert done.stdout == UPDATED, done.stderr
    assert version_of(program, env) == NEWER


def test_the_question_on_a_terminal(in_pip: tuple[Path, dict[str, str]]) -> None:
    program, env = in_pip
    for typed, after in ((b"n\n", __version__), (b"\n", __version__), (b"y\n", NEWER)):
        said = on_terminal(program, env, typed)
        assert "pip installs the new version beside this one" in said
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


PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "tsuku-llm"
version = "{version}"
[project.scripts]
tsuku-llm = "tsuku_llm.cli.main:main"
[tool.setuptools]
package-dir = {{ "" = "installer" }}
packages = {packages}
[tool.setuptools.package-data]
tsuku_llm = ["locked.txt"]
"""


def write_clone(folder: Path, version: str, shop: Path) -> None:
    """Write the files of a clone; its ``install.sh`` leaves a mark."""
    package = folder / "installer/tsuku_llm"
    with zipfile.ZipFile(shop / f"tsuku_llm-{version}-py3-none-any.whl") as wheel:
        names = [each for each in wheel.namelist() if each.startswith("tsuku_llm/")]
        wheel.extractall(package.parent, names)
    packages = sorted({each.rpartition("/")[0].replace("/", ".") for each in names})
    text = PROJECT.format(version=version, packages=json.dumps(packages))
    (folder / "pyproject.toml").write_text(text)
    script = folder / "install.sh"
    script.write_text("#!/bin/sh\ntouch ran\n")
    script.chmod(0o755)
    (folder / ".gitignore").write_text(".venv\nbuild\n*.egg-info\n")


@pytest.mark.parametrize("editable", [False, True])
def test_a_clone_is_pulled_and_installed_again(
    tmp_path: Path, shop: Path, original: Path, *, editable: bool
) -> None:
    env = settings(tmp_path, shop)
    origin = tmp_path / "origin"
    write_clone(origin, __version__, shop)
    git(tmp_path, "init", "--quiet", str(origin))
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "-m", "old")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(origin), str(clone))
    program = copy_environment(original, clone / ".venv")
    # The one that venv brings is too old to build with: the lock has a newer one, lent here.
    (packages,) = (clone / ".venv").glob("lib/python*/site-packages")
    for each in [*packages.glob("setuptools*"), *packages.glob("distutils-precedence.pth")]:
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    if editable:
        words = ("install", "--quiet", "--no-build-isolation", "--no-deps", "--editable", clone)
        subprocess.run([program.with_name("pip"), *words], env=env, check=True)
    write_clone(origin, NEWER, shop)
    git(origin, "commit", "--quiet", "-a", "-m", "new")
    done = run(program, env, "self-update", "--yes")
    assert done.stdout == UPDATED, done.stderr
    assert version_of(program, env) == NEWER
    # install.sh also installs a build: this command leaves the builds alone.
    assert not (clone / "ran").exists()
    # A clone with commits of its own is not merged.
    git(origin, "commit", "--quiet", "--allow-empty", "-m", "theirs")
    git(clone, "commit", "--quiet", "--allow-empty", "-m", "ours")
    assert run(program, env, "self-update", "--yes").code == 4
    assert version_of(program, env) == NEWER


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


# --- what is taken, and what a kill leaves ---------------------------------------------------


def test_N05_an_extra_index_does_not_say_what_the_newest_version_is(
    in_pip: tuple[Path, dict[str, str]], shop: Path, tmp_path: Path
) -> None:
    program, env = in_pip
    own, extra = tmp_path / "own", tmp_path / "extra"
    wheel = f"tsuku_llm-{__version__}-py3-none-any.whl"
    del env["PIP_NO_INDEX"]
    env["PIP_INDEX_URL"] = index_of(own, shop / wheel, shop / "pinned-1.0-py3-none-any.whl")
    config = tmp_path / ".config/pip/pip.conf"
    config.parent.mkdir(parents=True)
    # The 99.0 is in the folder of links, too: that is another place beside an index.
    config.write_text(f"[global]\nextra-index-url = {index_of(extra, shop)}\n")
    done = run(program, env, "self-update", "--yes", "--json")
    assert done.code == 0, done.stderr
    assert done.document["data"]["new_version"] == __version__
    assert version_of(program, env) == __version__
    env["PIP_EXTRA_INDEX_URL"] = extra.as_uri()
    assert run(program, env, "self-update", "--yes").code == 0
    assert version_of(program, env) == __version__
    # The index itself decides.
    index_of(own, shop)
    assert run(program, env, "self-update", "--yes").stdout == UPDATED


def test_N05_uv_takes_the_first_index_that_has_the_program(tmp_path: Path, shop: Path) -> None:
    env = settings(tmp_path, shop)
    wheel = shop / f"tsuku_llm-{__version__}-py3-none-any.whl"
    first = index_of(tmp_path / "first", wheel, shop / "pinned-1.0-py3-none-any.whl")
    install = [require_tool("uv"), "tool", "install", "--quiet", "tsuku-llm"]
    (tmp_path / "uv.toml").write_text("")
    subprocess.run([*install, f"--default-index={first}"], env=env, check=True)
    lend_packages(tmp_path / "uv-tools/tsuku-llm")
    program = tmp_path / "bin/tsuku-llm"
    # Its own setting would let every index decide; uv noted the one that it came from.
    other = index_of(tmp_path / "other", shop)
    (tmp_path / "uv.toml").write_text(
        f'index-strategy = "unsafe-best-match"\n[[index]]\nurl = "{other}"\ndefault = true\n'
    )
    done = run(program, env, "self-update", "--yes")
    assert done.stdout == f"there is no newer version; tsuku-llm is {__version__}\n", done.stderr


@pytest.mark.parametrize(
    "changed",
    ["wrong digest", "no lock", "does not start", "another package", "not in the index"],
)
def test_N05_a_version_that_cannot_be_proven_or_started_changes_nothing(
    changed: str, in_pip: tuple[Path, dict[str, str]], shop: Path, tmp_path: Path
) -> None:
    program, env = in_pip
    own = tmp_path / "shop"
    own.mkdir()
    make_packed(own, "pinned", "1.0", {"pinned.py": b""})
    files: dict[str, bytes] = {}
    if changed == "wrong digest":
        files = {"locked.txt": lock_of(own, digest="0" * 64)}
    elif changed == "no lock":
        files = {"locked.txt": b"\xff"}
    elif changed == "does not start":
        files = {"cli/main.py": b"raise SystemExit(1)\n"}
    elif changed == "not in the index":
        (own / "pinned-1.0-py3-none-any.whl").rename(own / "other-1.0-py3-none-any.whl")
    if changed == "another package":
        make_packed(own, "tsuku-llm", NEWER, {"other.py": b""})
    else:
        make_wheel(own, NEWER, **files)
        if changed == "not in the index":
            make_wheel(own, NEWER, **{"locked.txt": lock_of(shop)})
    env["PIP_FIND_LINKS"] = str(own)
    before = sorted((tmp_path / "env").rglob("*.py"))
    done = run(program, env, "self-update", "--yes", "--json")
    assert done.code == (5 if changed == "wrong digest" else 4), done.stderr
    assert version_of(program, env) == __version__
    assert sorted((tmp_path / "env").rglob("*.py")) == before


def sign(folder: Path, host: Path, program: object) -> None:
    """Make a repository whose targets name a program, in the package and on a host."""
    simulator = RepositorySimulator(name="official")
    simulator.publish(release_document("b1"))
    simulator.write(folder)
    simulator.targets.unrecognized_fields["program"] = program
    simulator.bump()
    simulator.write(host)


SIGNED = {
    "the version of the index": (NEWER, "", 0, NEWER),
    "an older one than the index has": ("98.0", "", 0, "98.0"),
    "this version": (__version__, "", 0, __version__),
    "a lower version": ("0.0.1", "", 0, __version__),
    "another digest": (NEWER, "0" * 64, 5, __version__),
    "a version that the index lacks": ("97.0", "0" * 64, 4, __version__),
    "no digest": (NEWER, "sha256", 5, __version__),
    "no version": ("newest", "0" * 64, 5, __version__),
    "a null": (None, "0" * 64, 5, __version__),
}


@pytest.mark.parametrize("case", SIGNED)
def test_N05_signed_metadata_say_which_version_and_which_bytes(
    case: str, in_pip: tuple[Path, dict[str, str]], shop: Path, tmp_path: Path
) -> None:
    program, env = in_pip
    version, digest, code, after = SIGNED[case]
    own = tmp_path / "shop"
    shutil.copytree(shop, own)
    make_wheel(own, "98.0")
    env["PIP_FIND_LINKS"] = str(own)
    wheel = own / f"tsuku_llm-{version}-py3-none-any.whl"
    if not digest:
        data = wheel.read_bytes() if wheel.exists() else b""
        digest = hashlib.sha256(data).hexdigest()
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    shutil.rmtree(packages / "tsuku_llm/manifests")
    host = tmp_path / "host"
    sign(packages / "tsuku_llm/manifests", host, {"version": version, "sha256": digest})
    (packages / "tsuku_llm/manifests/__init__.py").touch()
    env["TSUKU_LLM_REPOSITORY_URL"] = f"{host.as_uri()}/"
    done = run(program, env, "self-update", "--yes", "--json")
    assert done.code == code, done.stderr
    assert version_of(program, env) == after
    assert "not signed" not in done.stderr
    if not code:
        assert done.document["data"]["signed"] is True


# Counts what the processes of an update do to files, and kills all of them at the chosen one.
KILLER = """\
import os, signal, sys
_FOLDER = {folder!r}
_WATCHED = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.chmod", "open")
def _seen(event, arguments):
    if event not in _WATCHED or (event == "open" and not arguments[2] & (os.O_CREAT | os.O_TRUNC)):
        return
    if not any(isinstance(each, str) and "{prefix}" in each for each in arguments):
        return
    with_counter = os.open(_FOLDER + "/count", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(with_counter, b".")
    count = os.fstat(with_counter).st_size
    os.close(with_counter)
    if count >= int(open(_FOLDER + "/limit").read()):
        os.killpg(0, signal.SIGKILL)
if "self-update" in sys.orig_argv or os.path.exists(_FOLDER + "/armed"):
    open(_FOLDER + "/armed", "w").close()
    sys.addaudithook(_seen)
"""


class Watched(NamedTuple):
    """An environment whose updates are killed; ``total`` is the number of their changes."""

    folder: Path
    program: Path
    env: dict[str, str]
    total: int


def killed_at(program: Path, env: Mapping[str, str], folder: Path, limit: int) -> int:
    """Run an update that is killed with all its processes at its Nth change; count the changes."""
    (folder / "limit").write_text(str(limit))
    for name in ("count", "armed"):
        (folder / name).unlink(missing_ok=True)
    subprocess.run(
        [program, "self-update", "--yes"],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        start_new_session=True,
    )
    (folder / "armed").unlink()
    return (folder / "count").stat().st_size


# From the end, where the folders are exchanged and removed; and parts of the whole.
POINTS = [
    *(f"{back} before the end" for back in (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 40, 80)),
    *(f"{part} tenths" for part in range(1, 10)),
]


@pytest.fixture(scope="module")
def watched(original: Path, shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """An environment to be updated again and again, and how much one whole update changes."""
    folder = tmp_path_factory.mktemp("watched")
    program = copy_environment(original, folder / "env")
    env = settings(folder, shop, PYTHONDONTWRITEBYTECODE="1")
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    watch = folder / "watch"
    watch.mkdir()
    (packages / "killer.py").write_text(KILLER.format(folder=str(watch), prefix=folder / "env"))
    (packages / "killer.pth").write_text("import killer\n")
    subprocess.run(["cp", "-al", folder / "env", folder / "kept"], check=True)
    total = killed_at(program, env, watch, 1 << 30)
    assert version_of(program, env) == NEWER
    return Watched(folder, program, env, total)


@pytest.mark.parametrize("point", POINTS[:: stride(5)])
def test_N05_a_kill_at_any_moment_leaves_a_program_that_works(point: str, watched: Watched) -> None:
    number = int(point.partition(" ")[0])
    limit = watched.total - number if "before" in point else watched.total * number // 10
    shutil.rmtree(watched.folder / "env")
    subprocess.run(["cp", "-al", watched.folder / "kept", watched.folder / "env"], check=True)
    assert killed_at(watched.program, watched.env, watched.folder / "watch", limit) >= limit
    after = version_of(watched.program, watched.env)
    assert after == __version__ if "tenths" in point else after in (__version__, NEWER)
    if number in (0, 5):
        # What the kill left is in nobody's way.
        (watched.folder / "watch/limit").write_text(str(1 << 30))
        assert run(watched.program, watched.env, "self-update", "--yes").code == 0
        assert version_of(watched.program, watched.env) == NEWER
        assert not [*(watched.folder / "env").glob(".tsuku-llm-update-*")]
