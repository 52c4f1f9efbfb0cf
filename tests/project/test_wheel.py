"""Each wheel holds exactly its packages, and every way of installing finds the manifest."""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from tsuku_llm._version import HOME_PAGE, REPORTS, __version__

ROOT = Path(__file__).parents[2]
PUBLISHER = f"tsuku_publish-{__version__}-py3-none-any.whl"
WHEEL = f"tsuku_llm-{__version__}-py3-none-any.whl"
SDIST = f"tsuku_llm-{__version__}"

MAN_PAGE = f"tsuku_llm-{__version__}.data/data/share/man/man1/tsuku-llm.1"
TOP_LEVEL = {
    "ansible_collections",
    "tsuku_llm",
    "tsuku_operator",
    f"tsuku_llm-{__version__}.dist-info",
}
TOP_LEVEL |= {f"tsuku_llm-{__version__}.data"}
DIST_INFO = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}
SDIST_TOP_LEVEL = {
    ".ci",
    ".github",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE",
    "MANIFEST.in",
    "PKG-INFO",
    "README.md",
    "ci",
    "docs",
    "install.ps1",
    "install.sh",
    "installer",
    "manifests",
    "mkdocs.yml",
    "pyproject.toml",
    "setup.cfg",
    "setup.py",
    "tests",
}
NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".coverage*", ".hypothesis", "__pycache__", "*.egg-info", "build"
)
FIND_MANIFEST = (
    "import importlib.resources as r;"
    "folder = r.files('tsuku_llm.manifests').joinpath('metadata');"
    "print(*sorted(f'{file.name}:{len(file.read_bytes())}' for file in folder.iterdir()))"
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree to build in: a build leaves folders behind."""
    copy = tmp_path_factory.mktemp("build") / "source"
    shutil.copytree(ROOT, copy, ignore=NOT_SOURCE)
    return copy


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel built from that sdist."""
    return build(source, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return built / WHEEL


def build(source: Path, to: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(to), *options]
    # The hook of the coverage measurement must not run inside the build.
    env = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    done = subprocess.run(
        [*command, str(source)], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return to


def members(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as opened:
        return {name for name in opened.namelist() if not name.endswith("/")}


def metadata(archive: Path) -> Message:
    with zipfile.ZipFile(archive) as opened:
        name = archive.name.partition("-py3-")[0]
        return email.message_from_bytes(opened.read(f"{name}.dist-info/METADATA"))


def expected(source: Path) -> set[str]:
    """What the wheel has by rule: modules, typing markers, the repository and the collection."""
    installer = source / "installer"
    manifests = source / "manifests"
    modules = [
        path.relative_to(installer)
        for package in ("tsuku_llm", "tsuku_operator")
        for path in (installer / package).rglob("*.py")
    ]
    repository = [
        Path("tsuku_llm") / path.relative_to(source)
        for path in [
            manifests / "__init__.py",
            *(manifests / "metadata").glob("*.json"),
            *(manifests / "targets").rglob("*.json"),
        ]
    ]
    collection = [
        path.relative_to(installer)
        for path in (installer / "ansible_collections").rglob("*")
        if path.is_file()
    ]
    named = [Path(f"tsuku_{name}/py.typed") for name in ("llm", "operator")]
    named.append(Path("tsuku_llm/locked.txt"))
    named.append(Path("tsuku_llm/launch/failed/causes.toml"))
    named += (Path(f"tsuku_llm/machine/{name}.toml") for name in ("fixes", "packages"))
    named.append(Path("tsuku_operator/bundle/bundle_head.sh"))
    named.append(Path("tsuku_llm/launch/compute/answers.json"))
    return {path.as_posix() for path in [*modules, *repository, *collection, *named]}


def test_the_wheel_has_exactly_the_client_and_the_operator(wheel: Path, source: Path) -> None:
    info = {f"tsuku_llm-{__version__}.dist-info/{name}" for name in DIST_INFO}
    assert members(wheel) == expected(source) | info | {MAN_PAGE}
    assert {name.partition("/")[0] for name in members(wheel)} == TOP_LEVEL


def test_the_whole_repository_is_embedded(wheel: Path, source: Path) -> None:
    folder = source / "manifests"
    files = {
        f"tsuku_llm/{path.relative_to(source).as_posix()}"
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert files <= members(wheel)


def test_embedded_files_are_byte_identical(wheel: Path, source: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        for name in members(wheel):
            if name.startswith("tsuku_llm/manifests/"):
                assert opened.read(name) == (source / name.partition("/")[2]).read_bytes(), name


def test_the_same_wheel_comes_from_the_tree_and_from_the_sdist(
    wheel: Path, source: Path, tmp_path: Path
) -> None:
    straight = build(source, tmp_path, "--wheel") / WHEEL
    assert members(straight) == members(wheel)


def test_the_sdist_can_be_tested(built: Path, source: Path) -> None:
    with tarfile.open(built / f"{SDIST}.tar.gz") as opened:
        names = {member.name.partition("/")[2] for member in opened.getmembers() if member.isfile()}
    assert {name.partition("/")[0] for name in names} == SDIST_TOP_LEVEL
    for folder in ("ci", "docs", "installer", "manifests", "tests"):
        files = {
            path.relative_to(source).as_posix()
            for path in (source / folder).rglob("*")
            if path.is_file() and ".egg-info" not in str(path)
        }
        assert files <= names, f"{folder}: {sorted(files - names)}"


def test_the_metadata_of_the_wheel(wheel: Path) -> None:
    fields = metadata(wheel)
    assert fields["Name"] == "tsuku-llm"
    assert fields["Version"] == __version__
    assert fields["Requires-Python"] == ">=3.10"
    assert fields["License-Expression"] == "MIT"
    assert fields.get_all("License-File") == ["LICENSE"]
    assert fields["Description-Content-Type"] == "text/markdown"
    assert fields.get_all("Project-URL") == [
        f"Homepage, {HOME_PAGE}",
        f"Documentation, {HOME_PAGE}/tree/HEAD/docs",
        f"Changelog, {HOME_PAGE}/blob/HEAD/CHANGELOG.md",
        f"Issues, {REPORTS}",
    ]
    assert {"fleet", "socks", "test"} <= set(fields.get_all("Provides-Extra") or ())


def test_the_description_has_the_whole_readme_with_absolute_links(wheel: Path) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = metadata(wheel).get_payload()
    assert isinstance(shown, str)
    there, here = linked(shown), linked(readme)
    assert any(not target.startswith("https:") for target in here)
    assert all(target.startswith(("https:", "#")) for target in there)
    pages = re.compile(rf"{HOME_PAGE}/(?:blob|raw)/HEAD/")
    relative = [target for target in here if not target.startswith(("https:", "#"))]
    assert [pages.sub("", target) for target in there if pages.match(target)] == relative
    # Nothing else differs.
    assert pages.sub("", shown).split() == readme.split()


def linked(text: str) -> list[str]:
    """The targets of links, pictures, and pictures in HTML."""
    return re.findall(r"""(?:\]\(|\b(?:src|href)=["'])([^)\s"']+)""", text)


def test_the_commands_are_entry_points(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        text = opened.read(f"tsuku_llm-{__version__}.dist-info/entry_points.txt").decode()
    assert text.strip().split("\n") == [
        "[console_scripts]",
        "tsuku-llm = tsuku_llm.cli.main:main",
    ]


def test_the_publishers_wheel_has_exactly_its_package(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source / "installer", tmp_path / "installer")
    wheel = build(tmp_path / "installer/publish", tmp_path / "dist", "--wheel") / PUBLISHER
    installer = source / "installer"
    modules = {path.relative_to(installer) for path in (installer / "tsuku_publish").rglob("*.py")}
    modules |= {Path("tsuku_publish/py.typed"), Path("tsuku_publish/building/matrix.toml")}
    info = {f"tsuku_publish-{__version__}.dist-info/{name}" for name in DIST_INFO}
    assert members(wheel) == {path.as_posix() for path in modules} | info
    fields = metadata(wheel)
    assert (fields["Name"], fields["Version"]) == ("tsuku-publish", __version__)
    assert f"tsuku-llm=={__version__}" in fields.get_all("Requires-Dist")
    with zipfile.ZipFile(wheel) as opened:
        text = opened.read(f"tsuku_publish-{__version__}.dist-info/entry_points.txt").decode()
        license_text = opened.read(f"tsuku_publish-{__version__}.dist-info/licenses/LICENSE")
    assert text.split() == [
        "[console_scripts]",
        "tsuku-publish",
        "=",
        "tsuku_publish.__main__:main",
    ]
    assert license_text == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("words", [["install", "--help"], ["list", "--json"], ["serve", "--help"]])
def test_the_client_runs_without_the_other_packages(
    wheel: Path, tmp_path: Path, words: list[str]
) -> None:
    # From the zip file itself, as this environment has an installed copy, too. With -I, as what
    # gives our children their day expects an installed copy.
    code = (
        "import sys;"
        "sys.modules.update(tsuku_operator=None, tsuku_publish=None);"
        f"sys.path.insert(0, {str(wheel)!r});"
        "from tsuku_llm.cli.main import main;"
        f"sys.argv = ['tsuku-llm', *{words!r}]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout


def test_the_manifest_is_found_in_a_zipped_wheel(wheel: Path, source: Path) -> None:
    assert seen_from(wheel) == published(source)


@pytest.mark.parametrize("mode", ["lenient", "strict"])
def test_the_manifest_is_found_in_an_editable_install(
    source: Path, tmp_path: Path, mode: str
) -> None:
    shutil.copytree(source, tmp_path / "source")
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    options = ["--no-build-isolation", "--target", str(site), "--editable", "source"]
    setting = f"--config-settings=editable_mode={mode}"
    done = subprocess.run(
        [*install, setting, *options], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert seen_from(site) == published(source)


def published(source: Path) -> list[str]:
    folder = source / "manifests" / "metadata"
    return sorted(f"{file.name}:{file.stat().st_size}" for file in folder.iterdir())


def seen_from(place: Path) -> list[str]:
    """The embedded metadata, as an interpreter finds it that sees only ``place``."""
    look = f"import site; site.addsitedir({str(place)!r});"
    if place.suffix == ".whl":
        look = f"import sys; sys.path.insert(0, {str(place)!r});"
    command = [sys.executable, "-S", "-c", look + FIND_MANIFEST]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
