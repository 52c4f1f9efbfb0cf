"""Signing again, rotating, publishing and checking, by the commands that maintainers type."""

import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import tomli
from support.builds import NO_DEVICE_STEPS, Packed, pack_tar, stand_in
from support.nginx import Nginx, serving
from support.program import environment
from support.release_data import (
    DATA,
    answer,
    asset,
    copied_data,
    forget_releases,
    is_one_error,
    public_of,
    release_tool,
    signers_file,
)
from support.release_server import User
from support.sigstore_instance import NOW, Build, SigstoreInstance

from tsuku_llm import trust
from tsuku_publish.errors import PublishError
from tsuku_publish.release_files import plan
from tsuku_publish.release_files.plan import save_channel
from tsuku_publish.repository import checking, copies, folder

PEOPLE = ("anna", "ben", "chris")
YEARS = range(1, 6)
LATER = tuple(
    f"{name}-{year}" for year in YEARS for name in (*PEOPLE, *(f"{p}-t" for p in PEOPLE), "host")
)
"""Who follows whom, year after year: for roots, for targets, and the host on line."""
ERROR = "error[publish]: "
ROOT, TARGETS = (tuple(f"{role}-{number}" for number in (1, 2, 3)) for role in ("root", "targets"))


@dataclass(frozen=True)
class Maintainer:
    """A maintainer with a copy of the data, throwaway signers and an own repository."""

    home: Path

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def repository(self) -> Path:
        return self.home / "manifests"

    def run(self, command: str, *arguments: str | Path, signers: tuple[str, ...] = ()) -> None:
        """Run a command that ends well; ``signers`` are those at hand, all for none."""
        complaint = self.tried(command, *arguments, signers=signers)
        assert not complaint, complaint

    def said(self, command: str, *arguments: str | Path, signers: tuple[str, ...]) -> str:
        """What a command that ended well said."""
        environ = signers_file(self.home / "signers.json", *signers)
        options = ("--data", self.data, "--into", self.repository)
        done = release_tool(command, *arguments, *options, **environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def tried(self, command: str, *arguments: str | Path, signers: tuple[str, ...] = ()) -> str:
        """What the command complained of; nothing if it ended well."""
        environ = signers_file(self.home / "signers.json", *signers)
        options = ("--data", self.data, "--into", self.repository)
        done = release_tool(command, *arguments, *options, **environ)
        assert done.returncode == bool(done.stderr), done.stderr
        assert not done.stderr or is_one_error(done.stderr), done.stderr
        return done.stderr

    def files(self) -> dict[str, bytes]:
        return files_of(self.repository)

    def versions(self) -> dict[str, int]:
        copy = copies.RepositoryFolder(self.repository)
        repository = checking.verify(copy, checking.first_root(copy))
        return {role: state.version for role, state in repository.roles.items()}


def files_of(place: Path) -> dict[str, bytes]:
    found = (path for path in place.rglob("*") if path.is_file())
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in found}


@pytest.fixture
def maintainer(tmp_path: Path) -> Maintainer:
    """With a repository that is signed as it is in ``repository.toml``."""
    made = Maintainer(tmp_path)
    copied_data(made.data, "targets-4", *PEOPLE, *LATER)
    made.run("sign")
    return made


PLAN = plan.load_plan(DATA)
# As in the copied data: no channel has signers of its own.
BEFORE = {name: role.version for name, role in PLAN.roles.items() if name not in PLAN.delegated}
ONE_MORE = {role: version + (role != "root") for role, version in BEFORE.items()}


# --- signing ------------------------------------------------------------------------------


def test_a_new_state_has_the_next_versions_and_its_day(maintainer: Maintainer) -> None:
    path = maintainer.data / "repository.toml"
    channels = re.sub(r"nightly = .*", 'nightly = ["b11541"]', path.read_text())
    path.write_text(channels)
    maintainer.run("sign", "--raise", "--issued", "2026-12-01")
    assert maintainer.versions() == ONE_MORE
    timestamp = json.loads(maintainer.files()["metadata/timestamp.json"])["signed"]
    assert (timestamp["issued"], timestamp["expires"]) == (
        "2026-12-01T00:00:00Z",
        "2026-12-31T00:00:00Z",
    )
    said = path.read_text()
    assert "issued = 2026-12-01" in said
    assert "# Raise a version with every change" in said
    assert "b11347" not in "".join(maintainer.files())


def test_R09_raised_versions_are_signed_again_to_the_same_bytes(maintainer: Maintainer) -> None:
    maintainer.run("sign", "--raise", "--issued", "2026-12-01")
    before = maintainer.files()
    maintainer.run("sign")
    assert maintainer.files() == before
    shutil.rmtree(maintainer.repository)
    maintainer.run("sign")
    assert maintainer.files() == before


def test_R08_other_content_without_raised_versions_is_refused(maintainer: Maintainer) -> None:
    path = maintainer.data / "repository.toml"
    path.write_text(re.sub(r"nightly = .*", 'nightly = ["b11541"]', path.read_text()))
    before = maintainer.files()
    said = maintainer.tried("sign")
    assert said.startswith(f"{ERROR}other content exists under the same version: ")
    assert maintainer.files() == before


def test_the_root_signers_are_not_needed_for_a_release(maintainer: Maintainer) -> None:
    maintainer.run("sign", "--raise", signers=(*TARGETS, "online-1"))
    assert maintainer.versions() == ONE_MORE
    maintainer.run("sign", "--raise", signers=("targets-3", "targets-1", "online-1"))
    said = maintainer.tried("sign", "--raise", signers=("targets-1", "online-1"))
    assert "the signers at hand are too few: targets: 1 of 2 signatures" in said
    assert maintainer.versions()["targets"] == BEFORE["targets"] + 2


def test_a_plan_with_other_signers_needs_a_rotation(maintainer: Maintainer) -> None:
    path = maintainer.data / "repository.toml"
    path.write_text(path.read_text().replace('"targets-3"]', '"targets-4"]'))
    said = maintainer.tried("sign", "--raise", signers=(*ROOT, *TARGETS, "targets-4", "online-1"))
    assert "same version: metadata/1.root.json\nhint: rotate changes the signers" in said


def test_a_channel_is_saved_beside_the_comments_of_people(tmp_path: Path) -> None:
    path = tmp_path / "repository.toml"
    path.write_text('[channels]\nstable = [\n  "b3",\n  "b2",  # the long one\n  "b1",\n]\n# end\n')
    for releases in (("b4", "b3", "b2"), ("b5", "b4", "b2"), ("b2",)):
        save_channel(tmp_path, "stable", releases)
        assert tomli.loads(path.read_text())["channels"]["stable"] == [*releases]
        assert "# the long one" in path.read_text()
        assert "# end" in path.read_text()
    for releases in (("b1", "b2"), ("b2", "b1"), ()):
        save_channel(tmp_path, "stable", releases)
        save_channel(tmp_path, "new", releases)
        channels = tomli.loads(path.read_text())["channels"]
        assert channels == {"stable": [*releases], "new": [*releases]}


@pytest.mark.parametrize("tag", ["b11146", "b10092"], ids=["upstream", "index"])
def test_T24_a_release_made_from_facts_can_be_revoked(maintainer: Maintainer, tag: str) -> None:
    """Nothing but the tool's own data says so: a rebuild keeps it."""
    done = release_tool(
        "revoke", tag, "--data", maintainer.data, "--reason", "it leaks", "--on", "2026-12-01"
    )
    assert done.returncode == 0, done.stderr
    maintainer.run("sign", "--raise", "--issued", "2026-12-01")
    shutil.rmtree(maintainer.repository)
    maintainer.run("sign")
    (signed,) = (d for name, d in maintainer.files().items() if name.endswith(f".{tag}.json"))
    assert json.loads(signed)["revoked"] is True
    (targets,) = (d for name, d in maintainer.files().items() if name.endswith(".targets.json"))
    (entry,) = json.loads(targets)["signed"]["revoked"]
    assert (entry["release"], entry["reason"], entry["date"]) == (tag, "it leaks", "2026-12-01")
    assert all(len(digest) == 64 for build in entry["builds"] for digest in build)
    checked = release_tool("check", maintainer.repository, "--data", maintainer.data)
    assert f"revoked: {tag} on 2026-12-01: it leaks" in checked.stdout


# --- holder after holder ------------------------------------------------------------------


def test_R09_signatures_are_collected_from_machine_to_machine(maintainer: Maintainer) -> None:
    """Two holders and a host, none of whom has another's signer: the same bytes as at one."""
    alone = Maintainer(maintainer.home / "alone")
    shutil.copytree(maintainer.data, alone.data)
    shutil.copytree(maintainer.repository, alone.repository)
    pair = ("targets-1", "targets-3")
    alone.run("sign", "--raise", "--issued", "2026-12-01", signers=(*pair, "online-1"))

    gather = ("--gather", maintainer.home / "gathered")
    before = maintainer.files()
    options = (*gather, "--raise", "--issued", "2026-12-01")
    said = maintainer.said("sign", *options, signers=pair[1:])
    assert said.endswith("\ntargets: 1 of 2 signatures\n")
    said = maintainer.said("sign", *gather, signers=("online-1",))
    assert said.endswith("\ntargets: 1 of 2 signatures\n")
    said = maintainer.said("sign", *gather, signers=pair[:1])
    assert said.endswith("\nevery threshold is reached: it is the online signer's turn\n")
    assert maintainer.files() == before
    assert "signed and checked" in maintainer.said("sign", *gather, signers=("online-1",))
    assert maintainer.files() == alone.files()


def test_a_rotation_collects_old_and_new_signers(maintainer: Maintainer) -> None:
    pinned = maintainer.files()["metadata/1.root.json"]
    gather = ("--gather", maintainer.home / "gathered")
    turns = {
        "root-1": ["root, by the last root: 1 of 2", "root: 0 of 2", "targets: 0 of 2"],
        "anna": ["root, by the last root: 1 of 2", "root: 1 of 2", "targets: 0 of 2"],
        "targets-1": ["root, by the last root: 1 of 2", "root: 1 of 2", "targets: 1 of 2"],
        "root-3": ["root: 1 of 2", "targets: 1 of 2"],
        "chris": ["targets: 1 of 2"],
    }
    command: tuple[str, ...] = ("rotate", changed("root", PEOPLE))
    for name, lacking in turns.items():
        said = maintainer.said(*command, *gather, signers=(name,)).splitlines()
        assert said[-len(lacking) :] == [f"{line} signatures" for line in lacking]
        command = ("sign",)
    maintainer.run("sign", *gather, signers=("targets-2", "online-1"))
    assert (
        checking.verify(copies.RepositoryFolder(maintainer.repository), pinned)
        .roles["root"]
        .version
        == 2
    )


NEXT = f"{BEFORE['targets'] + 1}.targets.json"


def test_signatures_of_other_content_do_not_count(maintainer: Maintainer) -> None:
    gather = ("--gather", maintainer.home / "gathered")
    maintainer.said("sign", *gather, "--raise", signers=("targets-1",))
    path = maintainer.data / "facts" / "upstream-releases.json"
    facts = path.read_text()
    path.write_text(
        facts.replace('"published_about": "2026-10-05"', '"published_about": "2026-10-06"')
    )
    before = files_of(maintainer.home / "gathered")
    said = maintainer.tried("sign", *gather, signers=("targets-2",))
    assert f"other content is gathered under the same version: metadata/{NEXT}" in said
    assert files_of(maintainer.home / "gathered") == before
    path.write_text(facts)
    for junk in (b"{}", b"junk"):
        for file in (maintainer.home / "gathered" / "metadata").glob("*.targets.json"):
            file.write_bytes(junk)
        assert "is damaged" in maintainer.tried("sign", *gather, signers=("targets-2",))


def test_a_new_signer_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "anna.json"
    done = release_tool("new-signer", "anna", path, "--unencrypted")
    assert done.returncode == 0, done.stderr
    made = json.loads(path.read_text())["anna"]
    assert done.stdout == f'anna = "{made["public"]}"\n'
    assert public_of(made["seed"]) == made["public"]
    assert path.stat().st_mode & 0o777 == 0o600
    done = release_tool("new-signer", "anna", path, "--unencrypted")
    assert (done.returncode, done.stderr) == (1, f"{ERROR}{path} cannot be made: File exists\n")
    assert json.loads(path.read_text())["anna"] == made


# --- every week ---------------------------------------------------------------------------


def test_a_weekly_refresh_needs_only_the_online_signer(maintainer: Maintainer) -> None:
    before = maintainer.files()
    for version, day in enumerate(("2026-12-01", "2026-12-08"), BEFORE["timestamp"] + 1):
        maintainer.run("resign", "--issued", day, signers=("online-1",))
        after = maintainer.versions()
        assert (after["timestamp"], after["snapshot"]) == (version, version)
    kept = {name for name in before if "snapshot" not in name and "timestamp" not in name}
    after_files = maintainer.files()
    assert {name: after_files[name] for name in kept} == {name: before[name] for name in kept}
    assert len(after_files) == len(before)
    maintainer.run("sign")
    assert maintainer.files() == after_files


def test_a_weekly_refresh_works_while_a_release_is_prepared(maintainer: Maintainer) -> None:
    """Facts that are not signed yet do not prevent a new timestamp."""
    path = maintainer.data / "repository.toml"
    path.write_text(re.sub(r"nightly = .*", 'nightly = ["b99999"]', path.read_text()))
    maintainer.run("resign", signers=("online-1",))
    assert "b99999" in maintainer.tried("sign")


def test_a_weekly_refresh_continues_from_the_published_version(
    maintainer: Maintainer,
) -> None:
    written = (maintainer.data / "repository.toml").read_text()
    maintainer.run("resign", signers=("online-1",))
    (maintainer.data / "repository.toml").write_text(written)
    maintainer.run("resign", signers=("online-1",))
    assert maintainer.versions()["timestamp"] == BEFORE["timestamp"] + 2


def test_a_damaged_repository_is_not_signed_again(maintainer: Maintainer) -> None:
    path = maintainer.repository / "metadata" / "timestamp.json"
    path.write_bytes(path.read_bytes().replace(b'"sig": "', b'"sig": "00', 1))
    before = maintainer.files()
    assert "timestamp" in maintainer.tried("resign", signers=("online-1",))
    assert maintainer.files() == before


# --- rotation -----------------------------------------------------------------------------

EVERYBODY = (*ROOT, *TARGETS, "online-1", *PEOPLE)


def changed(role: str, names: tuple[str, ...]) -> str:
    return f"{role}={','.join(names)}"


def test_a_rotation_needs_two_of_the_old_root_signers(maintainer: Maintainer) -> None:
    pinned = maintainer.files()["metadata/1.root.json"]
    others = (*TARGETS, "online-1", *PEOPLE)
    said = maintainer.tried("rotate", changed("root", PEOPLE), signers=("root-2", *others))
    assert "too few: root, by the last root: 1 of 2 signatures" in said
    assert maintainer.versions() == BEFORE
    maintainer.run("rotate", changed("root", PEOPLE), signers=("root-2", "root-3", *others))
    copy = copies.RepositoryFolder(maintainer.repository)
    assert checking.verify(copy, pinned).roles["root"].version == 2
    assert checking.walk(copy) == 2


def test_all_keys_are_replaced_and_the_oldest_client_follows(maintainer: Maintainer) -> None:
    """From pre-production signers to the maintainers' own, and on, five times."""
    pinned = maintainer.files()["metadata/1.root.json"]
    roots, rest = ROOT, (*TARGETS, "online-1")
    for year in YEARS:
        new = tuple(f"{name}-{year}" for name in PEOPLE)
        signing, online = tuple(f"{name}-t-{year}" for name in PEOPLE), f"host-{year}"
        changes = [changed("root", new), changed("targets", signing), f"online={online}"]
        at_hand = (*roots[1:], *new, *signing, online)
        maintainer.run("rotate", *changes, signers=at_hand)
        roots, rest = new, (*signing, online)
    repository = checking.verify(copies.RepositoryFolder(maintainer.repository), pinned)
    assert repository.roles["root"].version == 6
    assert checking.walk(copies.RepositoryFolder(maintainer.repository)) == 6
    maintainer.run("sign", "--raise", signers=rest)
    maintainer.run("resign", signers=(rest[-1],))
    old = (*TARGETS, rest[-1])
    assert "targets: 0 of 2 signatures" in maintainer.tried("sign", "--raise", signers=old)


def test_P4_a_lost_quorum_of_targets_is_replaced_by_the_root_signers(
    maintainer: Maintainer,
) -> None:
    """Two of three keys are lost, and the third one signs nothing alone."""
    said = maintainer.tried("sign", "--raise", "--yes", signers=("targets-1", "online-1"))
    assert "targets: 1 of 2 signatures" in said
    assert said.endswith("rotate replaces a lost key\n")
    new = ("root-1", "root-3", "anna", "ben", "online-1")
    maintainer.run("rotate", "targets=anna,ben,chris", "--yes", signers=new)
    maintainer.run("sign", "--raise", "--yes", signers=("ben", "chris", "online-1"))
    assert maintainer.versions()["root"] == 2


def test_a_stolen_targets_signer_is_replaced_by_the_root_signers(maintainer: Maintainer) -> None:
    kept = (*TARGETS[:2], "targets-4")
    maintainer.run("rotate", changed("targets", kept), signers=(*ROOT, *kept, "online-1"))
    root = trust.newest_root(
        copies.RepositoryFolder(maintainer.repository), maintainer.files()["metadata/1.root.json"]
    )
    before = trust.check_root(maintainer.files()["metadata/1.root.json"])
    assert len(set(root.roles["targets"].keyids) & set(before.roles["targets"].keyids)) == 2


@pytest.mark.parametrize(
    "change",
    ["root=anna,ben", "root=anna,anna,ben", "roots=anna,ben,chris", "online=a,b", "root", "=a"],
)
def test_an_invalid_rotation_stops_the_tool(maintainer: Maintainer, change: str) -> None:
    said = maintainer.tried("rotate", change)
    assert re.search("is no role of this repository|signers, and [0-9] are given", said), said
    assert maintainer.versions() == BEFORE


# --- publishing ---------------------------------------------------------------------------


def published(maintainer: Maintainer, target: Path) -> str:
    done = release_tool("publish", target, "--from", maintainer.repository)
    assert not done.stderr or is_one_error(done.stderr)
    return done.stderr


def test_the_whole_repository_is_published(maintainer: Maintainer, tmp_path: Path) -> None:
    target = tmp_path / "www" / "llm"
    assert not published(maintainer, target)
    assert files_of(target) == maintainer.files()
    maintainer.run("sign", "--raise")
    before = files_of(target)
    assert not published(maintainer, target)
    after = files_of(target)
    assert after.items() >= maintainer.files().items()
    assert after.keys() >= before.keys(), "somebody may be in the middle of the old state"


def test_the_timestamp_is_published_last(maintainer: Maintainer, tmp_path: Path) -> None:
    """Clients see the old state until the very last file is there."""
    target = tmp_path / "www"
    published(maintainer, target)
    maintainer.run(
        "rotate", changed("root", PEOPLE), signers=(*ROOT, *TARGETS, "online-1", *PEOPLE)
    )
    new = maintainer.files()
    order = folder._in_order(new)
    assert order[-1] == "metadata/timestamp.json"
    pinned = new["metadata/1.root.json"]
    for name in order[:-1]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(new[name])
        served = checking.verify(copies.RepositoryFolder(target), pinned)
        assert served.roles["timestamp"].version == BEFORE["timestamp"], name


def test_R08_an_older_state_is_not_published(maintainer: Maintainer, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(maintainer.repository, older)
    maintainer.run("sign", "--raise")
    target = tmp_path / "www"
    assert not published(maintainer, target)
    before = files_of(target)
    done = release_tool("publish", target, "--from", older)
    wrong = f"{ERROR}{target} has newer versions of: timestamp, snapshot, targets\n"
    assert done.stderr.startswith(wrong)
    assert files_of(target) == before


def test_a_repository_is_not_published_over_another(maintainer: Maintainer, tmp_path: Path) -> None:
    target = tmp_path / "www"
    target.mkdir()
    shutil.copytree(folder_of_the_package(), target, dirs_exist_ok=True)
    before = files_of(target)
    assert published(maintainer, target).startswith(ERROR)
    assert files_of(target) == before


def folder_of_the_package() -> Path:
    return Path(__file__).parents[2] / "manifests"


@pytest.mark.parametrize("name", ["metadata/1.root.json", "metadata/timestamp.json"])
def test_a_damaged_repository_is_not_published(
    maintainer: Maintainer, tmp_path: Path, name: str
) -> None:
    (maintainer.repository / name).unlink()
    assert published(maintainer, tmp_path / "www").startswith(ERROR)
    assert not (tmp_path / "www").exists()


def test_a_folder_that_cannot_be_written_is_one_line(
    maintainer: Maintainer, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    assert published(maintainer, tmp_path / "file" / "www").startswith(ERROR)


# --- checking -----------------------------------------------------------------------------


def check(*arguments: str | Path) -> tuple[int, str, str]:
    done = release_tool("check", *arguments)
    assert not done.stderr or is_one_error(done.stderr)
    return done.returncode, done.stdout, done.stderr


def test_sixty_days_before_a_role_expires_the_job_fails(maintainer: Maintainer) -> None:
    end = PLAN.roles["targets"].expires
    renewed = f"{end - timedelta(days=61):%Y-%m-%d}"
    maintainer.run("resign", "--issued", renewed, signers=("online-1",))
    for left, code in {61: 0, 60: 0, 59: 1}.items():
        found = check(maintainer.repository, "--on", f"{end - timedelta(days=left):%Y-%m-%d}")
        assert found[0] == code, (left, found)
    assert found[2].startswith(f"{ERROR}sign again: targets (59 days left)\n")
    assert found[2].endswith("run: tsuku-publish sign --raise\n")


def test_a_root_that_is_late_names_the_command_that_renews_it(maintainer: Maintainer) -> None:
    late = PLAN.roles["root"].expires - timedelta(days=59)
    maintainer.run("resign", "--issued", f"{late:%Y-%m-%d}", signers=(*TARGETS, "online-1"))
    code, _, said = check(maintainer.repository, "--on", f"{late:%Y-%m-%d}")
    assert (code, "root (59 days left)" in said) == (1, True), said
    command = said.strip().partition("run: tsuku-publish ")[2]
    assert command == "rotate root=root-1,root-2,root-3"
    maintainer.run(*command.split(), "--issued", f"{late:%Y-%m-%d}", "--yes")
    copy = copies.RepositoryFolder(maintainer.repository)
    state = checking.verify(copy, checking.first_root(copy)).roles["root"]
    assert (state.version, state.expires.year) == (2, late.year + 2)


def test_an_expired_role_is_named(maintainer: Maintainer) -> None:
    after = PLAN.roles["timestamp"].expires + timedelta(days=10)
    code, _, said = check(maintainer.repository, "--on", f"{after:%Y-%m-%d}")
    assert (code, "timestamp (-10" in said) == (1, True)


def wheel(path: Path, repository: Path) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name, content in files_of(repository).items():
            made.writestr(f"tsuku_llm/manifests/{name}", content)
    return path


def test_an_old_timestamp_in_a_wheel_is_accepted(maintainer: Maintainer, tmp_path: Path) -> None:
    """Its timestamp is old on any day but the first: online clients download another."""
    made = wheel(tmp_path / "one.whl", maintainer.repository)
    assert check(made, "--on", "2027-03-01")[0] == 0
    code, _, said = check(made, "--on", "2027-10-01")
    assert code == 1
    late = r"sign again: snapshot \(\d+ .*, targets \(\d+ days left\)\n"
    assert said.endswith("run: tsuku-publish resign, then tsuku-publish sign --raise\n")
    assert re.match(re.escape(ERROR) + late, said)
    (tmp_path / "bad.whl").write_text("no zip")
    assert check(tmp_path / "bad.whl")[2].endswith("is no wheel: File is not a zip file\n")


def test_a_wheel_is_compared_with_the_published_repository(
    maintainer: Maintainer, tmp_path: Path
) -> None:
    made, target = wheel(tmp_path / "one.whl", maintainer.repository), tmp_path / "www"
    maintainer.run(
        "rotate", changed("root", PEOPLE), signers=(*ROOT, *TARGETS, "online-1", *PEOPLE)
    )
    published(maintainer, target)
    code, said, _ = check(made, "--published", target, "--on", "2026-12-01")
    assert code == 0
    number = BEFORE["targets"]
    assert f"targets   {number} embedded, {number + 1} published\n" in said
    assert "every root leads to root 1\n" in said
    assert "every published root leads to root 2\n" in said


def test_a_package_newer_than_the_published_repository_fails(
    maintainer: Maintainer, tmp_path: Path
) -> None:
    target = tmp_path / "www"
    published(maintainer, target)
    maintainer.run("sign", "--raise")
    code, _, said = check(maintainer.repository, "--published", target, "--on", "2026-12-01")
    number = BEFORE["timestamp"]
    said_so = f"{ERROR}timestamp {number + 1} is embedded, and only {number} is published\n"
    assert (code, said) == (1, said_so)


def test_a_published_repository_that_lost_a_root_fails(
    maintainer: Maintainer, tmp_path: Path
) -> None:
    target = tmp_path / "www"
    maintainer.run(
        "rotate", changed("root", PEOPLE), signers=(*ROOT, *TARGETS, "online-1", *PEOPLE)
    )
    published(maintainer, target)
    (target / "metadata" / "2.root.json").unlink()
    options = ("--published", target, "--on", "2026-12-01")
    code, _, said = check(maintainer.repository, *options)
    assert (code, said) == (1, f"{ERROR}root 2 is published with other content, or not at all\n")


def test_a_root_without_a_valid_chain_is_named(maintainer: Maintainer) -> None:
    """A root that lost the signatures of the old signers: who is at the one before is stuck."""
    maintainer.run("rotate", changed("root", PEOPLE), signers=EVERYBODY)
    path = maintainer.repository / "metadata" / "2.root.json"
    document = json.loads(path.read_text())
    document["signatures"] = document["signatures"][:3]
    path.write_text(json.dumps(document))
    with pytest.raises(PublishError, match="clients at root 1 are stuck"):
        checking.walk(copies.RepositoryFolder(maintainer.repository))


# --- from upstream to a user --------------------------------------------------------------

SIGSTORE = SigstoreInstance()


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Nginx]:
    root = tmp_path / "www"
    (root / "archives").mkdir(parents=True)
    (tmp_path / "nginx").mkdir()
    with serving(root, tmp_path / "nginx") as server:
        yield server


def upstream(nginx: Nginx, tag: str) -> Packed:
    """A build that runs, packed as upstream packs it, where users will download it."""
    build = stand_in(nginx.root.parent / tag, backend="cpu", devices=NO_DEVICE_STEPS)
    name = f"llama-{tag}-bin-ubuntu-x64.tar.gz"
    return pack_tar(build.tree, nginx.root / "archives" / name, root=f"llama-{tag}")


def released(maintainer: Maintainer, nginx: Nginx, tag: str) -> None:
    """Everything that a maintainer types for one upstream release."""
    packed = upstream(nginx, tag)
    entry = asset(tag, packed.path.name, packed.sha256, packed.size)
    entry["browser_download_url"] = f"{nginx.url}/archives/{packed.path.name}"
    home, data = maintainer.home, maintainer.data
    (home / "answer.json").write_bytes(answer(tag, [entry]))
    bundle = SIGSTORE.attest({packed.path.name: packed.sha256}, Build(workflow=NOW))
    (home / "bundle.json").write_text(json.dumps(bundle))
    (home / "root.json").write_bytes(SIGSTORE.trusted_root())
    commands: list[tuple[str | Path, ...]] = [
        ("refresh", tag, "--answer", home / "answer.json", "--download", "--data", data),
        ("attest", tag, "--bundle", home / "bundle.json", "--trusted-root", home / "root.json",
         "--data", data),
    ]  # fmt: skip
    for command in commands:
        done = release_tool(*command, SSL_CERT_FILE=str(nginx.authority))
        assert done.returncode == 0, done.stderr
    path = data / "repository.toml"
    path.write_text(re.sub(r"stable = .*", f'stable = ["{tag}"]', path.read_text()))
    maintainer.run("sign", "--raise", "--trusted-root", home / "root.json")
    done = release_tool("publish", nginx.root / "repository", "--from", maintainer.repository)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def publisher(tmp_path: Path) -> Maintainer:
    """A publisher with one channel, no release, and a root that is valid during this test."""
    made = Maintainer(tmp_path / "maintainer")
    made.home.mkdir()
    forget_releases(copied_data(made.data))
    path = made.data / "repository.toml"
    text = re.sub(r"(nightly|index) = .*", r"\1 = []", path.read_text())
    path.write_text(text.replace("days = 730", "days = 36500"))
    return made


def test_from_an_upstream_release_to_a_users_update(
    publisher: Maintainer, nginx: Nginx, tmp_path: Path
) -> None:
    released(publisher, nginx, "b99001")
    user = User(
        tmp_path / "home", environment(tmp_path / "home", SSL_CERT_FILE=str(nginx.authority))
    )
    root = publisher.repository / "metadata" / "1.root.json"
    url = f"{nginx.url}/repository/"
    at = ("--repository", "test")
    for command in (
        ("repository", "add", "test", url, "--root", str(root)),
        ("install", *at, "--backend", "cpu", "--yes"),
    ):
        done = user.run(*command)
        assert done.code == 0, done.stderr
    assert [name.partition("-")[0] for name in user.versions()] == ["b99001"]

    released(publisher, nginx, "b99002")
    updated = user.run("update", *at)
    assert updated.code == 0, updated.stderr
    assert {name.partition("-")[0] for name in user.versions()} == {"b99001", "b99002"}

    options = ("--data", publisher.data, "--published", url)
    done = release_tool("check", publisher.repository, *options, SSL_CERT_FILE=str(nginx.authority))
    assert (done.returncode, done.stderr) == (0, "")
    assert "every published root leads to root 1" in done.stdout
