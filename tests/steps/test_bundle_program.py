"""The program in a bundle: which wheels a machine needs, and the wheel of the running copy."""

import dataclasses
import hashlib
import json
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from support.bundles import PYTHON, ProgramShop, program_files
from support.folder_shop import FolderShop
from support.repository import RepositorySimulator, release_document
from support.sessions import changed

from tsuku_llm import __version__
from tsuku_llm.catalog.loading import Catalog, load
from tsuku_llm.catalog.repositories import OFFICIAL
from tsuku_llm.ground.errors import DigestMismatch, ManifestError, UsageError
from tsuku_llm.steps.program import copy_facts
from tsuku_llm.steps.program.signed_program import parse_lock, program_in
from tsuku_llm.steps.session import Session
from tsuku_operator.bundle import bundle_start
from tsuku_operator.bundle.bundle import create_bundle, proven_wheel
from tsuku_operator.bundle.bundle_choice import BundleWish
from tsuku_operator.bundle.own_wheel import packed, wheel_of
from tsuku_operator.bundle.program_wheels import (
    PLATFORMS,
    PYTHONS,
    ProgramTarget,
    needed_glibc,
    needed_there,
)

LOCK = parse_lock((Path(__file__).parents[2] / "installer/tsuku_llm/locked.txt").read_text("utf-8"))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> ProgramShop:
    return ProgramShop(tmp_path_factory.mktemp("program") / "wheels")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> FolderShop:
    return FolderShop.offering(tmp_path_factory.mktemp("shops") / "shop", "b1")


@pytest.fixture
def session(shop: FolderShop, program: ProgramShop, tmp_path: Path) -> Session:
    return changed(shop.session(tmp_path / "operator"), environ=program.environ)


def test_the_lock_gives_each_python_its_own_packages() -> None:
    names = {
        python: {each.name: str(each.requirement.specifier) for each in needed_there(LOCK, target)}
        for python in PYTHONS
        if (target := ProgramTarget("linux-amd64", python))
    }
    assert "exceptiongroup" in names["3.10"]
    assert "exceptiongroup" not in names["3.11"]
    assert names["3.10"]["filelock"] != names["3.14"]["filelock"]
    for found in names.values():
        assert {"pip", "tuf", "cryptography", "cffi"} <= found.keys()
        assert "setuptools" not in found
    # Each is named once for a target: two versions could not both be installed.
    for platform in PLATFORMS:
        for python in PYTHONS:
            wanted = [each.name for each in needed_there(LOCK, ProgramTarget(platform, python))]
            assert len(wanted) == len(set(wanted))


def test_pip_is_told_every_tag_that_a_glibc_allows() -> None:
    options = ProgramTarget("linux-amd64", "3.12", "2.18").options
    assert options[:3] == (
        "--platform=manylinux_2_18_x86_64",
        "--platform=manylinux_2_17_x86_64",
        "--platform=manylinux2014_x86_64",
    )
    assert options[-3:] == (
        "--platform=manylinux1_x86_64",
        "--python-version=3.12",
        "--implementation=cp",
    )
    assert "--platform=manylinux_2_16_aarch64" not in ProgramTarget("linux-arm64", "3.12").options


@pytest.mark.parametrize(
    ("wheels", "needed"),
    [
        ((), None),
        (("a-1-py3-none-any.whl",), None),
        (("a-1-py3-none-any.whl", "b-1-cp311-abi3-manylinux_2_34_x86_64.whl"), "2.34"),
        (("b-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",), "2.17"),
        (("b-1-cp311-cp311-manylinux2010_x86_64.manylinux_2_28_x86_64.whl",), "2.12"),
    ],
)
def test_the_oldest_glibc_of_wheels(wheels: tuple[str, ...], needed: str | None) -> None:
    assert needed_glibc(wheels) == needed


# --- the wheel of an installed copy ------------------------------------------------------------


def installed(program: ProgramShop, folder: Path) -> Distribution:
    """The program, installed by pip from its wheel."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, f"--target={folder}", str(program.wheel)], check=True)
    (found,) = Distribution.discover(name="tsuku-llm", path=[str(folder)])
    return found


def test_an_installed_copy_gives_its_wheel_back(program: ProgramShop, tmp_path: Path) -> None:
    name, data = wheel_of(installed(program, tmp_path / "site"))
    assert name == program.wheel.name
    (tmp_path / name).write_bytes(data)
    with zipfile.ZipFile(tmp_path / name) as made, zipfile.ZipFile(program.wheel) as first:
        record = f"tsuku_llm-{__version__}.dist-info/RECORD"
        assert {each: made.read(each) for each in made.namelist() if each != record} == {
            each: first.read(each) for each in first.namelist() if each != record
        }
        recorded = made.read(record).decode().splitlines()
    assert len(recorded) == len(program_files())
    assert wheel_of(installed(program, tmp_path / "again")) == (name, data)


def test_a_changed_copy_is_refused(program: ProgramShop, tmp_path: Path) -> None:
    own = installed(program, tmp_path / "site")
    (tmp_path / "site/tsuku_llm/ground/errors.py").write_text("changed")
    with pytest.raises(UsageError, match="cannot be put into a bundle") as error:
        wheel_of(own)
    assert "errors.py was changed after the installation" in error.value.facts[0]
    (tmp_path / "site/tsuku_llm/ground/errors.py").unlink()
    with pytest.raises(UsageError, match="cannot be put into a bundle"):
        wheel_of(own)


def test_a_wheel_with_a_tag_for_each_part_keeps_its_name() -> None:
    name, _ = wheel_of(distribution("psutil"))
    assert name.startswith("psutil-")
    assert "-cp36-abi3-" in name


def test_an_editable_copy_is_refused(tmp_path: Path) -> None:
    """pip records of one its metadata and a pointer to the folder, but none of its files."""
    folder = tmp_path / "tsuku_llm-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tsuku-llm\nVersion: 1\n")
    (folder / "RECORD").write_text("tsuku_llm-1.dist-info/METADATA,,\n")
    with pytest.raises(UsageError) as error:
        wheel_of(PathDistribution(folder))
    assert "--wheel FILE" in error.value.hint


# --- in the bundle -----------------------------------------------------------------------------


def wish(program: ProgramShop, **changes: object) -> BundleWish:
    # For this machine, because its own wheels may need its glibc.
    usual = BundleWish(pythons=(PYTHON,), wheel=program.wheel)
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]


def test_the_program_and_its_parts_list(
    session: Session, program: ProgramShop, tmp_path: Path
) -> None:
    report = create_bundle(session, tmp_path / "x", wish(program), lock=program.lock)
    (there,) = report.description.programs
    assert (there.platform, there.python) == ("linux-amd64", PYTHON)
    with zipfile.ZipFile(tmp_path / "x") as archive:
        pins = archive.read(there.requirements).decode().splitlines()
        digests = {hashlib.sha256(archive.read(name)).hexdigest() for name in there.wheels}
        bill = archive.read("sbom.cdx.json").decode()
        assert sorted(name for name in archive.namelist() if name.endswith(".whl")) == sorted(
            there.wheels
        )
    assert {pin.rpartition(":")[2] for pin in pins} == digests
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    document = json.loads(bill)
    named = {each["name"] for each in document["components"]}
    assert {"tsuku-llm", "tuf", "pip", "b1-cpu.tar.gz"} <= named
    refs = {each["bom-ref"]: each["name"] for each in document["components"]}
    needs = {refs.get(each["ref"]): each["dependsOn"] for each in document["dependencies"]}
    assert "tuf" in {refs[ref] for ref in needs["tsuku-llm"]}
    assert {refs[ref] for ref in needs["cryptography"]} >= {"cffi"}


def test_a_wheel_that_the_lock_does_not_name_is_refused(
    session: Session, program: ProgramShop, tmp_path: Path
) -> None:
    other = program.lock.replace("--hash=sha256:", "--hash=sha256:0000", 1)
    first = other.index("--hash=sha256:0000")
    other = (
        other[: first + len("--hash=sha256:") + 64] + other[first + len("--hash=sha256:") + 68 :]
    )
    with pytest.raises(DigestMismatch):
        create_bundle(session, tmp_path / "x", wish(program), lock=other)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["tsuku_llm-9.9-py3-none-any.whl", "pip-1-py3-none-any.whl", "x"])
def test_another_wheel_is_refused(
    session: Session, program: ProgramShop, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(packed({}))
    with pytest.raises(UsageError):
        create_bundle(session, tmp_path / "new", wish(program, wheel=tmp_path / name))
    with pytest.raises(UsageError, match="does not run on Python"):
        create_bundle(session, tmp_path / "new", wish(program, pythons=("3.9",)))
    assert not (tmp_path / "new").exists()


# --- what signed metadata say of it -----------------------------------------------------------


def official(folder: Path, said: object) -> Catalog:
    """The catalog of an official repository whose targets say this of the program."""
    simulator = RepositorySimulator(name=OFFICIAL)
    simulator.targets.unrecognized_fields["program"] = said
    simulator.publish(release_document("b1"))
    return load(simulator.repository(embedded=simulator.freeze()), folder)


def test_N05_the_wheel_of_a_bundle_is_the_signed_one(
    session: Session, program: ProgramShop, tmp_path: Path
) -> None:
    own = (program.wheel.name, program.wheel.read_bytes())
    digest = hashlib.sha256(own[1]).hexdigest()
    notes: list[str] = []
    session = session._replace(user=session.user._replace(note=notes.append))

    def proven(said: object, wheel: tuple[str, bytes], *, given: bool) -> tuple[str, bytes]:
        return proven_wheel(session, official(tmp_path / "data", said), wheel, given=given)

    this = {"version": __version__, "sha256": digest}
    assert proven(this, own, given=True) == own
    assert not notes
    # The running copy gives other bytes than the wheel that was built: pip brings that.
    (program.index.folder / own[0]).write_bytes(own[1])
    try:
        assert proven(this, (own[0], b"put together again"), given=False) == own
        with pytest.raises(DigestMismatch):
            proven({**this, "sha256": "0" * 64}, own, given=False)
    finally:
        (program.index.folder / own[0]).unlink()
    with pytest.raises(DigestMismatch):
        proven({**this, "sha256": "0" * 64}, own, given=True)
    for said in (None, {**this, "version": "99.0"}):
        assert proven(said, own, given=False) == own
        assert notes.pop().startswith("not signed: ")


@pytest.mark.parametrize(
    "said",
    [
        *({}, [], "0.2.0", 1, {"version": "0.2.0"}, {"version": None, "sha256": "a" * 64}),
        *({"version": "new", "sha256": "a" * 64}, {"version": "1.0", "sha256": "a" * 63}),
        *({"version": "1.0", "sha256": 1}, {"version": "1.0", "sha256": "a" * 64 + "\n"}),
    ],
)
def test_N05_what_cannot_be_understood_is_not_nothing(said: object, tmp_path: Path) -> None:
    with pytest.raises(ManifestError):
        program_in(official(tmp_path / "data", said))


def test_the_program_of_a_bundle_writes_the_file_by_which_a_copy_knows_it() -> None:
    assert bundle_start.COMPLETE == copy_facts.FROM_BUNDLE
