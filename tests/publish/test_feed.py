"""The feed: runs against a host that plays upstream, with a clock that the tests set."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from support.builds import WINDOWS_BUILD, WINDOWS_SHA256, compile_library, upstream_windows_build
from support.feed_publisher import MACHINE, FeedPublisher, delegate, feed_publisher, told
from support.release_data import copied_data, is_one_error, release_process, release_tool
from support.schemas import read
from support.upstream_builds import GFX, NOISE, Name, day, names_at, packed
from support.upstream_host import Upstream, time_of

from ci.schemas import PUBLISHER
from tsuku_publish.feed.report import OPEN, FeedReport
from tsuku_publish.feed.state import load_state
from tsuku_publish.holders.passphrases import FILE_VARIABLE as PASSPHRASE_FILE
from tsuku_publish.holders.passphrases import VARIABLE as PASSPHRASE
from tsuku_publish.holders.signers import VARIABLE as SIGNERS
from tsuku_publish.repository import checking, copies
from tsuku_publish.upstream.classify import classify, load_rules
from tsuku_publish.upstream.facts import Facts


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    with Upstream(day(8, 24), tmp_path / "upstream", every=6, limit=5000) as upstream:
        yield upstream


@pytest.fixture
def at(tmp_path: Path, upstream: Upstream) -> FeedPublisher:
    return feed_publisher(tmp_path, upstream)


def published(at: FeedPublisher) -> set[str]:
    """The releases of nightly that clients of the signed repository see."""
    copy = copies.RepositoryFolder(at.signed)
    targets = checking.verify(copy, checking.first_root(copy)).targets.values()
    return {each.custom["release"] for each in targets if "nightly" in each.custom["channels"]}


def names(report: FeedReport) -> set[str]:
    return {each.asset for each in report.left_out}


def test_the_newest_build_is_measured_attested_and_put_into_the_channel(at: FeedPublisher) -> None:
    report = at.run()
    newest = at.upstream.tags()[0]
    assert at.nightly == report.offered
    assert at.nightly[0] == newest
    assert report.changed
    document = at.documents()[newest]
    assert "unattested" not in document
    variants = document["platforms"]["linux-amd64"]["variants"]
    assert {*variants} == {"vulkan", "cpu", "sycl-fp32", "sycl-fp16", "openvino"}
    for platform in document["platforms"].values():
        for variant in platform["variants"].values():
            assert all(each["files"] and each["pieces"] for each in variant["artifacts"])
    assert variants["cpu"]["requires"]["glibc"].startswith("2.")
    again = at.run()
    assert (again.taken, again.changed) == ((), False)


def test_an_asset_that_no_rule_knows_is_left_out_with_a_drafted_rule(at: FeedPublisher) -> None:
    report = at.run()
    tag = at.nightly[0]
    rocm = f"llama-{tag}-bin-ubuntu-rocm-7.14-x64.tar.gz"
    assert rocm in names(report)
    (draft,) = (each.draft for each in report.left_out if each.asset == rocm)
    assert '"gfx942", "gfx1030", "gfx1100"' in draft
    assert 'platform = "linux-amd64"' in draft
    assert f"{tag}: {rocm}: no rule knows it" in told(report.people)["new-names"]
    # Applied by a person, all are builds from the next run on, without another download.
    at.adopt([each.draft for each in report.left_out if each.draft])
    asked = len(at.upstream.requests)
    later = at.run()
    assert not later.left_out
    assert later.changed
    assert not [each for each in at.upstream.requests[asked:] if "/download/" in each]
    variants = at.documents()[tag]["platforms"]
    gfx = variants["linux-amd64"]["variants"]["rocm-7.14"]["requires"]["rocm"]["gfx"]
    assert gfx == ["gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1200"]
    cuda = variants["windows-amd64"]["variants"]["cuda-13.3"]
    assert cuda["requires"]["cuda"]["sass"] == ["8.6", "8.9", "12.0a"]
    assert len(cuda["artifacts"]) == 2


def test_drafts_of_every_asset_of_the_year_are_rules_that_work(at: FeedPublisher) -> None:
    """Without any rule but the CPU's, each name is drafted, and the draft knows its asset."""
    at.run()
    tag = at.nightly[0]
    drafted = {each.asset for each in at.run().left_out}
    at.adopt([each.draft for each in at.run().left_out if each.draft])
    release = Facts(at.data / "facts").releases()[tag]
    known = {
        each.name for build in classify(release, load_rules(at.data)) for each in build.artifacts
    }
    assert drafted <= known | set(release.left_out)


def test_a_draft_without_a_version_is_a_comment_until_a_person_fills_it_in(
    at: FeedPublisher,
) -> None:
    """As ``hip-radeon`` was: an empty version in a rule would refuse every later release."""
    at.upstream.now = day(8, 9, 12)
    report = at.run()
    asset = f"llama-{at.nightly[0]}-bin-win-hip-radeon-x64.zip"
    (draft,) = (each.draft for each in report.left_out if each.asset == asset)
    assert tomlkit.parse(draft).unwrap() == {}
    assert "# The name has no version: write it for VERSION." in draft
    at.adopt([draft])
    at.upstream.pass_time(hours=12)
    assert at.run().taken
    # A person takes away the marks, and writes the version.
    filled = "\n".join(line.removeprefix("# ") for line in draft.splitlines()[2:])
    filled = filled.replace("VERSION", "7.2")
    at.adopt([filled])
    assert asset not in names(at.run())
    at.upstream.pass_time(hours=12)
    assert at.run().taken
    variants = at.documents()[at.nightly[0]]["platforms"]["windows-amd64"]["variants"]
    assert variants["rocm-7.2"]["requires"]["rocm"]["runtime"] == "7.2"
    assert variants["rocm-7.2"]["requires"]["rocm"]["gfx"] == [*GFX["7.2"]]


def drafted(sonames: Sequence[str]) -> dict[str, Any]:
    return {"library": [{"names": [*sonames], "source": "whose package brings them"}]}


def test_a_library_that_no_rule_knows_leaves_out_its_build_with_a_drafted_line(
    at: FeedPublisher, tmp_path: Path
) -> None:
    tag = at.upstream.tags()[0]
    builds = {
        "rocm-7.14": ("libamdhip64.so.8", "libhipblas.so.4"),
        "sycl-fp32": ("libsycl.so.7",),
        "openvino-2026.2.1": ("libopenvino.so.2621",),
    }
    for words, sonames in builds.items():
        name = Name(f"llama-{{tag}}-bin-ubuntu-{words}-x64.tar.gz", words.partition("-")[0], "7.14")
        more = (("libneeds.so", needing(tmp_path, *sonames)),)
        at.upstream.replaced[tag, name.of(tag)] = packed(name, tag, more)
    report = at.run()
    drafts = {each.asset: each.draft for each in report.left_out if each.draft}
    # The rest goes on.
    assert at.nightly == (tag,)
    variants = at.documents()[tag]["platforms"]["linux-amd64"]["variants"]
    assert {*variants} == {"cpu", "vulkan", "sycl-fp16"}
    for words in ("sycl-fp32", "openvino-2026.2.1"):
        asset, sonames = f"llama-{tag}-bin-ubuntu-{words}-x64.tar.gz", builds[words]
        assert tomlkit.parse(drafts[asset]).unwrap() == drafted(sonames)
        reason = "it needs libraries that no rule knows: " + ", ".join(sonames)
        assert f"{tag}: {asset}: {reason}" in told(report.people)["new-names"]
    # The name of the ROCm build is new as well: its rule is drafted first.
    at.adopt(drafts.values())
    (left,) = at.run().left_out
    assert tomlkit.parse(left.draft).unwrap() == drafted(builds["rocm-7.14"])
    at.adopt([left.draft])
    assert not at.run().left_out
    variants = at.documents()[tag]["platforms"]["linux-amd64"]["variants"]
    assert {*variants} > {"sycl-fp32", "openvino", "rocm-7.14"}


def needing(folder: Path, *sonames: str) -> bytes:
    """A library that needs others, which no archive has."""
    made = [compile_library(folder / name, "int here(void){return 1;}") for name in sonames]
    flags = (f"-Wl,--no-as-needed,{path}" for path in made)
    return compile_library(folder / "libneeds.so", "int one(void){return 1;}", *flags).read_bytes()


def test_a_release_that_is_still_uploaded_is_waited_for_and_an_older_one_is_taken(
    at: FeedPublisher,
) -> None:
    first, second = at.upstream.tags()[:2]
    at.upstream.uploading[first] = at.upstream.now + timedelta(hours=5)
    report = at.run()
    assert report.taken[0].release == second
    assert any(first in line and "not uploaded yet" in line for line in report.waiting)
    at.upstream.uploading.clear()
    assert [each.release for each in at.run().taken] == [first]


def test_a_release_that_lacks_builds_is_not_taken_at_once(at: FeedPublisher) -> None:
    at.run()
    at.upstream.pass_time(hours=20)
    first = at.upstream.tags()[0]
    at.upstream.missing[first] = ("vulkan", "win-cpu", "sycl")
    report = at.run()
    assert first not in at.nightly
    assert any(f"{first} lacks" in line for line in report.waiting)


def test_a_build_that_stays_away_waits_for_a_person(at: FeedPublisher) -> None:
    """The channel keeps the last whole release; after the patience a person is asked, once."""
    at.run()
    whole = at.nightly[0]
    at.upstream.pass_time(hours=30)
    for tag in at.upstream.tags()[:40]:
        at.upstream.missing[tag] = ("s390x",)
    report = at.run()
    ((held, reasons),) = report.held.items()
    assert reasons == ("linux-s390x: the platform",)
    assert (report.taken, report.offered[0]) == ((), whole)
    at.upstream.pass_time(hours=12)
    at.upstream.missing |= dict.fromkeys(at.upstream.tags()[:40], ("s390x",))
    report = at.run()
    what, fact = told(report.people)["held"]
    assert (whole in report.offered, fact) == (True, "linux-s390x: the platform")
    assert "so do all since 2026-08-2" in what
    # What is held is measured already: accepted, it is taken without another download.
    newest = max(report.held)
    assert newest != held
    asked = len(at.upstream.requests)
    assert release_tool("feed", "--accept", "held", "--data", at.data).returncode == OPEN
    report = at.run()
    assert at.nightly[0] == newest
    assert "held" not in told(report.people)
    assert not [each for each in at.upstream.requests[asked:] if "/download/" in each]
    assert "linux-s390x" not in at.documents()[newest]["platforms"]
    # Accepted was this loss alone.
    assert not load_state(at.data).accepted


@pytest.mark.parametrize(
    ("words", "more", "without", "loss"),
    [
        ("ubuntu-x64.tar.gz", (), "libggml-cpu-haswell.so", "its library libggml-cpu-haswell.so"),
        ("win-cpu-x64.zip", (), "ggml-cpu-haswell.dll", "its library ggml-cpu-haswell.dll"),
        ("ubuntu-x64.tar.gz", (("debug.bin", NOISE),), "",
         "its size, more than threefold"),
    ],
)  # fmt: skip
def test_a_build_that_lacks_a_library_or_is_out_of_proportion_is_held(
    at: FeedPublisher, words: str, more: tuple[tuple[str, bytes]], without: str, loss: str
) -> None:
    at.run()
    whole = at.nightly[0]
    at.upstream.pass_time(hours=20)
    newest = [tag for tag in at.upstream.tags() if int(tag[1:]) > int(whole[1:])]
    for tag in newest:
        asset = f"llama-{tag}-bin-{words}"
        name = next(each for each in names_at(day(8, 24)) if each.of(tag) == asset)
        at.upstream.replaced[tag, asset] = packed(name, tag, more, without)
    report = at.run()
    assert report.offered[0] == whole
    (reasons,) = report.held.values()
    assert [each.partition(": ")[2] for each in reasons] == [loss]


def test_another_format_or_name_of_a_platform_keeps_the_channel_until_rules_are_there(
    at: FeedPublisher,
) -> None:
    at.run()
    whole = at.nightly[0]
    at.upstream.renamed = {"ubuntu-arm64": "ubuntu-aarch64", "macos-x64.tar.gz": "macos-x64.tar.xz"}
    at.upstream.pass_time(hours=20)
    report = at.run()
    (held,) = report.held
    assert {*report.held[held]} == {"darwin-amd64: the platform", "linux-arm64: the platform"}
    assert report.offered[0] == whole
    drafts = {each.asset: each.draft for each in report.left_out if each.release == held}
    # The draft is for what the server's header says.
    draft = drafts[f"llama-{held}-bin-ubuntu-aarch64.tar.gz"]
    assert 'platform = "linux-arm64"' in draft
    assert "clients cannot unpack it" in drafts[f"llama-{held}-bin-macos-x64.tar.xz"]
    at.adopt([draft])
    report = at.run()
    assert report.held[held] == ("darwin-amd64: the platform",)


def test_what_is_no_build_is_named_so_and_not_downloaded(at: FeedPublisher) -> None:
    at.run()
    at.upstream.pass_time(hours=12)
    kinds = {
        "SHA256SUMS": "a list of digests",
        "llama-bin-ubuntu-x64.tar.gz.sigstore.json": "a signature",
        "llama-server_amd64.deb": "a package for a system's installer",
        "llama.msi": "a package for a system's installer",
        "llama-ubuntu-x64.tar.gz.sha256": "a list of digests",
    }
    at.upstream.added = [*kinds]
    report = at.run()
    assert report.taken
    reasons = {each.asset: each.reason for each in report.left_out}
    for name, kind in kinds.items():
        assert reasons[name] == f"it is no build, but {kind}"
        assert not [each for each in at.upstream.requests if each.endswith(name)]
    assert {*told(report.people)} == {"new-names"}
    assert not [line for line in told(report.people)["new-names"] if "no build" in line]


def test_attestations_that_come_late_are_waited_for(at: FeedPublisher) -> None:
    first = at.upstream.tags()[0]
    at.upstream.attested[first] = "late"
    assert first not in [each.release for each in at.run().taken]
    at.upstream.pass_time(hours=6)
    at.run()
    assert "unattested" not in at.documents()[at.nightly[0]]


def test_a_release_that_is_never_attested_says_so_if_the_rules_allow_it(at: FeedPublisher) -> None:
    """The companions of Windows are those of attested builds, and prove nothing of this one."""
    at.edit("rules.toml", lambda document: document["feed"].update(unattested=True))
    before = at.run().offered[0]
    at.upstream.pass_time(hours=48)
    *later, tag = [each for each in at.upstream.tags() if int(each[1:]) > int(before[1:])]
    at.upstream.withdrawn |= {*later}
    at.upstream.attested[tag] = "no"
    assert not at.run().stopped
    assert at.nightly[0] == tag
    assert at.documents()[tag]["unattested"] == "Upstream had no attestation of it on 2026-08-26."


@pytest.mark.parametrize("state", ["forged", "partly"])
def test_a_release_with_wrong_attestations_is_stopped_and_others_go_on(
    at: FeedPublisher, state: str
) -> None:
    tags = at.upstream.tags()
    bad = next(tag for tag in tags if at.upstream.now - time_of(int(tag[1:])) > timedelta(hours=13))
    for tag in tags[: tags.index(bad)]:
        at.upstream.uploading[tag] = at.upstream.now + timedelta(days=1)
    at.upstream.attested[bad] = state
    report = at.run()
    assert "is not proven" in report.stopped[bad]
    assert at.nightly[0] == tags[tags.index(bad) + 1]
    assert any(line.startswith(f"{bad} is stopped") for line in told(report.people)["stopped"])
    assert bad not in Facts(at.data / "facts").releases()


def test_changed_bytes_stop_that_release_only(at: FeedPublisher) -> None:
    at.run()
    first = at.nightly[0]
    at.upstream.pass_time(hours=20)
    name = f"llama-{first}-bin-ubuntu-x64.tar.gz"
    at.upstream.replaced[first, name] = packed(Name("x.tar.gz", "page"), "b1")
    report = at.run()
    assert f"{first}: {name} has sha256" in report.waiting[0]
    assert not report.stopped
    at.upstream.pass_time(hours=12)
    report = at.run()
    assert f"{first}: {name} has sha256" in report.stopped[first]
    assert first not in at.nightly
    assert at.nightly
    # Its recorded facts stay as they were.
    digests = {each.sha256 for each in Facts(at.data / "facts").releases()[first].assets}
    assert len(digests) == len(names_at(day(8, 24)))
    at.run()
    assert first not in at.nightly


def test_the_head_never_moves_to_an_older_build_unless_people_accept_it(at: FeedPublisher) -> None:
    at.run()
    older = at.nightly[0]
    at.upstream.pass_time(hours=12)
    at.run()
    newest = at.nightly[0]
    at.upstream.withdrawn.add(newest)
    at.run()
    at.upstream.pass_time(hours=3)
    report = at.run()
    assert {*report.stopped} == {newest}
    assert (report.taken, report.offered[0]) == ((), newest)
    (line,) = told(report.people)["stopped"][1:]
    assert line.startswith(f"{newest} is stopped")
    assert release_tool("feed", "--accept", "stopped", "--data", at.data).returncode == OPEN
    report = at.run()
    assert report.offered[0] == older
    assert "stopped" not in told(report.people)


def test_a_newer_build_takes_the_place_of_a_stopped_head(at: FeedPublisher) -> None:
    at.run()
    stopped = at.nightly[0]
    at.upstream.withdrawn.add(stopped)
    at.run()
    at.upstream.pass_time(hours=12)
    report = at.run()
    assert {*report.stopped} == {stopped}
    assert stopped not in report.offered
    assert [each.release for each in report.taken] == [report.offered[0]]


def test_a_number_out_of_the_order_is_not_the_newest_for_ever(at: FeedPublisher) -> None:
    at.run()
    at.upstream.pass_time(hours=12)
    (good, *_) = at.upstream.tags()
    at.upstream.extra = {"b1000000": at.upstream.now}
    report = at.run()
    assert report.offered[0] == good
    assert "its number is far from" in report.stopped["b1000000"]


def test_every_release_on_offer_is_looked_at_within_a_day(at: FeedPublisher) -> None:
    """A stable release is pages away from the newest builds; so are the oldest of nightly."""
    at.upstream.every = 1
    at.upstream.now = day(9, 1)
    at.run()
    at.edit("repository.toml", lambda document: document["channels"].update(stable=["b10621"]))
    for _ in range(5):
        at.upstream.pass_time(hours=24)
        at.run()
    old = at.nightly[2]
    assert {old, "b10621"}.isdisjoint(each["tag_name"] for each in at.upstream.releases(30))
    name = "llama-b10621-bin-ubuntu-x64.tar.gz"
    at.upstream.replaced["b10621", name] = packed(Name("x.tar.gz", "page"), "b1")
    at.upstream.withdrawn.add(old)
    asked = []
    for _ in range(5):
        at.upstream.pass_time(hours=6)
        del at.upstream.requests[:]
        report = at.run()
        asked.append(len([each for each in at.upstream.requests if "/download/" not in each]))
    assert {*report.stopped} == {old, "b10621"}
    assert "has sha256" in told(report.people)["stable"][1]
    assert max(asked) <= 20
    assert old not in report.offered


def test_sixty_requests_an_hour_are_enough_for_the_newest_stable_and_the_newest_build(
    at: FeedPublisher,
) -> None:
    """Three days without attestations used them up, and the stable version's build never came."""
    at.edit("rules.toml", lambda document: document["feed"].update(unattested=True))
    at.upstream.every, at.upstream.limit = 1, 60
    at.upstream.now = day(9, 1)
    at.upstream.attested = dict.fromkeys(at.upstream.tags(), "no")
    at.upstream.pass_time(hours=0)
    report = at.run()
    taken = [each.release for each in report.taken]
    assert "b10621" in taken
    assert at.upstream.now - time_of(int(taken[0][1:])) < timedelta(hours=14)
    assert not [line for line in report.waiting if "no more requests" in line]


def test_a_repository_that_moved_stops_nothing(at: FeedPublisher) -> None:
    """As ggerganov/llama.cpp did in February 2025: the same bytes, at another address."""
    at.run()
    head = at.nightly[0]
    name = f"llama-{head}-bin-ubuntu-x64.tar.gz"
    moved = {"browser_download_url": f"https://example.org/new/{name}"}
    at.upstream.spoiled[head, name] = moved
    for _ in range(3):
        report = at.run()
        at.upstream.pass_time(hours=4)
        at.upstream.withdrawn |= {*at.upstream.tags()} - {head}
    assert not report.stopped
    assert report.offered == (head,)
    assert f"{head}: {name} has url https://example.org/new" in told(report.people)["moved"][1]


def test_a_release_that_upstream_takes_back_is_stopped(at: FeedPublisher) -> None:
    at.run()
    at.upstream.pass_time(hours=20)
    at.run()
    gone = at.nightly[0]
    at.upstream.withdrawn.add(gone)
    assert f"{gone}: the service does not have it: it is stopped if" in at.run().waiting[0]
    at.upstream.pass_time(hours=12)
    report = at.run()
    assert gone in report.stopped
    assert gone not in at.nightly
    assert at.nightly


@pytest.mark.parametrize(
    "bad", ["gone", "403", "502", "replaced", "starter", "sha512", "no digest"]
)
def test_one_bad_answer_decides_nothing(at: FeedPublisher, bad: str) -> None:
    at.run()
    head = at.nightly[0]
    name = f"llama-{head}-bin-ubuntu-x64.tar.gz"
    spoiled = {
        "starter": {"state": "starter", "digest": None},
        "sha512": {"digest": "sha512:" + "0" * 128},
        "no digest": {"digest": None},
    }
    if bad == "gone":
        at.upstream.withdrawn.add(head)
    elif bad in ("403", "502"):
        at.upstream.refused[head] = bad
    elif bad == "replaced":
        at.upstream.replaced[head, name] = packed(Name("x.tar.gz", "page"), "b1")
    else:
        at.upstream.spoiled[head, name] = spoiled[bad]
    for _ in range(1 if bad in ("gone", "replaced") else 3):
        report = at.run()
        assert not report.stopped
        assert head in report.offered
        assert any(head in each for each in report.waiting)
        at.upstream.pass_time(hours=2)
    at.upstream.withdrawn.clear()
    at.upstream.refused.clear()
    at.upstream.replaced.clear()
    at.upstream.spoiled.clear()
    at.run()
    at.upstream.pass_time(hours=30)
    # A healthy look between two bad ones: they prove nothing together.
    at.upstream.withdrawn.add(head)
    assert not at.run().stopped


@pytest.mark.parametrize("answer", ["502", "secondary"])
def test_a_build_that_is_not_answered_is_taken_by_the_next_run(
    at: FeedPublisher, answer: str
) -> None:
    """Only the request for the build that v0.3.0 names fails; the list is without it, too."""
    at.run()
    before, named = at.nightly, "b10621"
    at.upstream.pass_time(hours=36)
    at.upstream.refused[named] = answer
    report = at.run()
    newest = at.upstream.tags()[0]
    assert not report.stopped
    assert named not in report.offered
    if answer == "502":
        assert report.offered[0] == newest
        assert any(named in each for each in report.waiting)
    else:
        # It may be the limit of all requests: the run asks nothing more.
        assert report.offered == before
        assert "answers no more requests until" in report.waiting[-1]
        assert at.upstream.requests[-1].endswith(named)
    at.upstream.refused.clear()
    at.upstream.pass_time(hours=6)
    report = at.run()
    assert not report.stopped
    assert {named, at.upstream.tags()[0]} <= {*report.offered}


def test_a_damaged_archive_is_left_out_and_a_platform_without_its_default_too(
    at: FeedPublisher,
) -> None:
    tag = at.upstream.tags()[0]
    broken = f"llama-{tag}-bin-ubuntu-arm64.tar.gz"
    at.upstream.replaced[tag, broken] = b"\x1f\x8b no archive"
    report = at.run()
    assert at.nightly[0] == tag
    reasons = {each.asset: each.reason for each in report.left_out}
    assert "archive" in reasons[broken]
    assert "linux-arm64 has no build" in reasons[f"llama-{tag}-bin-ubuntu-vulkan-arm64.tar.gz"]
    assert "linux-arm64" not in at.documents()[tag]["platforms"]
    assert "linux-amd64" in at.documents()[tag]["platforms"]
    assert names(at.run()) == names(report)


def test_a_build_without_a_server_for_its_platform_is_never_taken(at: FeedPublisher) -> None:
    tag = at.upstream.tags()[0]

    def spoil(words: str, spoiled: str) -> str:
        asset = f"llama-{tag}-bin-{words}"
        name = next(each for each in names_at(day(8, 24)) if each.of(tag) == asset)
        at.upstream.replaced[tag, asset] = packed(name, tag, without=spoiled)
        return asset

    gone = spoil("win-vulkan-x64.zip", "llama-server.exe")
    moved = spoil("ubuntu-vulkan-arm64.tar.gz", "llama-server")
    marked = f"llama-{tag}-bin-ubuntu-sycl-fp32-x64.tar.gz"
    sycl = next(each for each in names_at(day(8, 24)) if each.of(tag) == marked)
    at.upstream.replaced[tag, marked] = packed(sycl, tag, mode=0o644)
    swapped = f"llama-{tag}-bin-ubuntu-vulkan-x64.tar.gz"
    other = next(
        each for each in names_at(day(8, 24)) if each.kind == "vulkan" and "arm64" in each.of(tag)
    )
    at.upstream.replaced[tag, swapped] = packed(other, tag)
    report = at.run()
    reasons = {each.asset: each.reason for each in report.left_out}
    assert reasons[gone] == "it has no llama-server.exe at its top"
    assert reasons[moved] == "it has no llama-server at its top"
    assert reasons[marked] == "its llama-server is not executable"
    assert reasons[swapped].startswith("its llama-server runs on linux-arm64, and not on linux-amd")
    assert f"{tag}: {swapped}: {reasons[swapped]}" in told(report.people)["left-out"]
    platforms = at.documents()[tag]["platforms"]
    assert not [name for name in platforms.values() if "vulkan" in name["variants"]]
    assert "cpu" in platforms["linux-amd64"]["variants"]


def spoil_new(at: FeedPublisher, how: Callable[[Name, str], bytes], *kinds: str) -> str:
    """Let new builds have other archives of these kinds; return the newest whole build."""
    at.run()
    whole = at.nightly[0]
    at.upstream.pass_time(hours=26)
    for tag in at.upstream.tags()[:20]:
        for name in names_at(day(8, 24)) if int(tag[1:]) > int(whole[1:]) else ():
            if name.pattern.endswith(kinds):
                at.upstream.replaced[tag, name.of(tag)] = how(name, tag)
    return whole


def test_builds_that_all_lack_their_server_are_not_taken_and_cost_two_downloads(
    at: FeedPublisher,
) -> None:
    def spoiled(name: Name, tag: str) -> bytes:
        return packed(
            name, tag, without="llama-server.exe" if "-win-" in name.pattern else "llama-server"
        )

    whole = spoil_new(at, spoiled, ".zip", ".tar.gz")
    asked = len(at.upstream.requests)
    report = at.run()
    assert (report.taken, report.stopped, report.offered[0]) == ((), {}, whole)
    fetched = {each.split("/")[-2] for each in at.upstream.requests[asked:] if "/download/" in each}
    assert len(fetched) <= 2
    assert "it has no llama-server at its top" in told(report.people)["frozen"][1]


def test_archives_with_another_top_folder_keep_the_channel(at: FeedPublisher) -> None:
    """A draft cannot help: the folder's name is not in the rules."""
    whole = spoil_new(at, lambda name, _: packed(name, "b1"), ".tar.gz")
    report = at.run()
    (held,) = report.held
    assert "linux-amd64: the platform" in report.held[held]
    assert report.offered[0] == whole
    left = {each.asset: each for each in report.left_out if each.release == held}
    each = left[f"llama-{held}-bin-ubuntu-x64.tar.gz"]
    assert "llama-b1" in each.reason
    assert not each.draft
    assert f"{held}: {each.asset}: {each.reason}" in told(report.people)["left-out"]


def test_what_a_second_companion_brings_is_no_library_of_the_system(
    at: FeedPublisher, tmp_path: Path
) -> None:
    """As if cuBLAS came apart from the other libraries of CUDA."""
    at.run()
    at.adopt([each.draft for each in at.run().left_out if each.draft])
    at.upstream.pass_time(hours=12)
    tag = at.upstream.tags()[0]
    needs, apart = f"llama-{tag}-bin-ubuntu-sycl-fp32-x64.tar.gz", "cublas-bin-ubuntu-x64.tar.gz"
    at.upstream.added = [apart]
    for asset, file in ((needs, "libneeds.so"), (apart, "libcublas.so.12")):
        name = Name(asset.replace(tag, "{tag}"), "sycl" if asset == needs else "page")
        library = needing(tmp_path, "libcublas.so.12")
        at.upstream.replaced[tag, asset] = packed(name, tag, ((file, library),))
    left = {each.asset: each for each in at.run().left_out if each.release == tag}
    assert left[needs].reason == (
        f"libcublas.so.12, which it needs, is in {apart}: a rule has one companion"
    )
    assert not left[needs].draft
    assert not left[apart].draft


def test_a_failed_download_is_tried_again_and_leaves_nothing_out(at: FeedPublisher) -> None:
    tag = at.upstream.tags()[0]
    at.upstream.unreachable.add(f"llama-{tag}-bin-ubuntu-x64.tar.gz")
    report = at.run()
    assert tag not in at.nightly
    assert any(line.startswith(f"{tag} was not taken") for line in report.waiting)
    at.upstream.unreachable.clear()
    assert tag in [each.release for each in at.run().taken]


def test_the_limit_of_requests_ends_a_run_and_keeps_what_was_done(at: FeedPublisher) -> None:
    at.upstream.left = 2
    report = at.run()
    assert report.taken == ()
    assert any("no more requests" in line for line in report.waiting)
    at.upstream.pass_time(hours=1)
    assert at.run().taken


def test_the_build_of_a_stable_version_is_taken_and_proposed_after_three_days(
    at: FeedPublisher,
) -> None:
    at.upstream.now = day(9, 1)
    at.upstream.every = 40
    delegate(at)
    at.sign()
    first = at.feed_and_sign()
    assert "b10621" in at.nightly
    assert first["proposal"] is None
    at.upstream.pass_time(hours=71)
    assert at.feed_and_sign()["proposal"] is None
    at.upstream.pass_time(hours=1)
    report = at.feed()
    proposed = report["proposal"]
    assert (proposed["release"], proposed["version"]) == ("b10621", "v0.3.0")
    assert (proposed["since"], proposed["hours"]) == ("2026-09-01T00:00:00Z", 72)
    assert "linux-amd64/cpu" in proposed["new"]
    assert "ready to become stable" in told(report["people"])["promote"][0]
    # A person decides: here it is what they do.
    at.edit("repository.toml", lambda document: document["channels"].update(stable=["b10621"]))
    assert at.run().proposal is None


def test_only_the_signed_time_counts_for_a_proposal(at: FeedPublisher) -> None:
    at.upstream.now = day(9, 1)
    at.upstream.every = 40
    delegate(at)
    at.sign()
    at.feed()
    at.upstream.pass_time(hours=72)
    report = at.feed_and_sign()
    assert report["proposal"] is None
    # A rule of a person changes the release file: the 72 hours begin again with its signature.
    at.upstream.pass_time(hours=72)
    at.adopt(each["draft"] for each in report["left_out"] if each["draft"])
    assert at.feed_and_sign()["proposal"] is None
    at.upstream.pass_time(hours=72)
    assert at.feed()["proposal"]["release"] == "b10621"


# --- the signature, in another process ------------------------------------------------------


def test_the_feed_signs_nothing_and_says_what_does(at: FeedPublisher) -> None:
    delegate(at)
    at.sign()
    words = ("feed", *at.asked, "--data", at.data)
    done = release_tool(*words, **at.upstream.environ)
    assert done.returncode == OPEN, done.stderr
    assert "next: tsuku-publish sign --channel nightly, in another process" in done.stdout
    assert published(at) == set()
    at.sign("--channel", "nightly", signers=MACHINE)
    assert published(at) == {*at.nightly}


@pytest.mark.parametrize("variable", [SIGNERS, PASSPHRASE, PASSPHRASE_FILE])
def test_N09_the_process_that_reads_builds_of_strangers_has_no_signer(
    at: FeedPublisher, variable: str
) -> None:
    environ = {**at.upstream.environ, variable: str(at.data.parent / "anything")}
    done = release_tool("feed", "--data", at.data, *at.asked, **environ)
    assert (done.returncode, is_one_error(done.stderr, "bad-usage")) == (2, True), done.stderr
    assert f"env -u {variable} tsuku-publish feed" in done.stderr
    assert at.upstream.requests == []


def test_the_channel_keeps_its_number_and_forgets_other_facts(
    at: FeedPublisher,
) -> None:
    rules = at.data / "rules.toml"
    rules.write_text(rules.read_text().replace("keep = 8 ", "keep = 2 "))
    seen = []
    for _ in range(4):
        seen += [each.release for each in at.run().taken]
        at.upstream.pass_time(hours=16)
    recorded = Facts(at.data / "facts").releases()
    kept = {*at.nightly}
    assert len(kept - {"b10621"}) == 2
    assert set(recorded) == kept
    assert load_state(at.data).taken == kept
    assert len(seen) > len(kept)
    digests = {asset.sha256 for each in recorded.values() for asset in each.assets}
    records = {path.stem for path in (at.data / "facts" / "archives").glob("*.json")}
    own = {path.stem for path in (copied_data(at.data.parent / "x") / "facts/archives").iterdir()}
    assert records - own <= digests
    assert own <= records
    at.documents()


def test_the_command_prints_what_to_decide_and_the_drafts(
    at: FeedPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", at.upstream.environ["SSL_CERT_FILE"])
    words = ["feed", "--data", at.data, "--api", at.upstream.api, "--now", "2026-08-24T00:00"]
    words += ["--trusted-root", at.upstream.trusted_root]
    done = release_tool(*words)
    assert (done.returncode, done.stderr) == (OPEN, "")
    assert "to be done: 1" in done.stdout
    assert "files of upstream need a line in rules.toml, since 2026-08-24 00:00 UTC" in done.stdout
    assert "[[rule]]" in done.stdout
    assert "next: tsuku-publish sign --raise" in done.stdout


def test_its_document_is_as_the_schema_says(at: FeedPublisher) -> None:
    words = ["feed", "--data", at.data, "--api", at.upstream.api, "--now", "2026-08-24T00:00"]
    words += ["--trusted-root", at.upstream.trusted_root, "--json"]
    done = release_process(*words, **at.upstream.environ)
    assert done.returncode == OPEN, done.stderr
    answer = read(done.stdout, PUBLISHER)["data"]
    assert answer["offered"] == list(at.nightly)
    assert answer["taken"][0]["attested"]
    assert any(each["draft"] for each in answer["left_out"])


def test_a_service_that_does_not_answer_is_one_error(at: FeedPublisher) -> None:
    before = {path: path.read_bytes() for path in at.data.rglob("*") if path.is_file()}
    done = release_tool("feed", "--data", at.data, "--api", "https://localhost:1/repos")
    assert done.returncode == 1
    assert done.stderr.startswith("error[publish]: localhost:1")
    assert {path: path.read_bytes() for path in at.data.rglob("*") if path.is_file()} == before


@pytest.mark.index
def test_upstreams_own_windows_build_is_measured(tmp_path: Path) -> None:
    """The real archive b10605, in the place where upstream published it."""
    with Upstream(time_of(10605), tmp_path / "upstream", every=5, limit=5000) as upstream:
        upstream.replaced["b10605", WINDOWS_BUILD] = upstream_windows_build()
        at = feed_publisher(tmp_path, upstream)
        assert [each.release for each in at.run().taken] == ["b10605"]
        windows = at.documents()["b10605"]["platforms"]["windows-amd64"]["variants"]["cpu"]
        (artifact,) = windows["artifacts"]
        assert (artifact["sha256"], artifact["size"]) == (WINDOWS_SHA256, 18_067_840)
        files = {each["path"] for each in artifact["files"]}
        assert {"llama-server.exe", "ggml-cpu-haswell.dll", "ggml-cpu-zen4.dll"} <= files
        assert len(artifact["pieces"]["sha256"]) == 5
        line = next(each for each in at.said if each.startswith(WINDOWS_BUILD))
        assert "processors: alderlake" in line


# --- what people have to do -----------------------------------------------------------------


def test_each_open_matter_is_told_once_with_since_when_and_what_to_run(at: FeedPublisher) -> None:
    """Nine names that no rule knows are one matter; it keeps its time, and ends when it is done."""
    first = at.run()
    (matter,) = first.people
    assert (matter.key, matter.since) == ("new-names", "2026-08-24T00:00:00Z")
    assert len(matter.facts) == len(names(first))
    text = "\n".join(matter.lines())
    assert "if you do nothing: they are left out" in text
    assert f"add what is right to {at.data / 'rules.toml'}" in text
    assert f"and {len(matter.facts) - 3} more" in text
    at.upstream.pass_time(hours=12)
    (again,) = at.run().people
    assert (again.key, again.since) == (matter.key, matter.since)
    at.adopt(matter.drafts)
    assert not at.run().people


def test_the_list_has_an_exit_code_and_a_metric_and_is_shown_again(at: FeedPublisher) -> None:
    metrics = at.data.parent / "feed.prom"
    report = at.run()
    words = ("feed", "--show", "--metrics", metrics, "--data", at.data)
    done = release_tool(*words)
    assert done.returncode == OPEN
    assert all(line in done.stdout for line in report.people[0].lines())
    assert 'tsuku_publish_matter{key="new-names"} 1787529600' in metrics.read_text()
    assert "tsuku_publish_matters 1\n" in metrics.read_text()
    wrong = release_tool("feed", "--accept", "new-game", "--data", at.data)
    assert (wrong.returncode, is_one_error(wrong.stderr, "publish")) == (1, True)
    assert "to be done: new-names" in wrong.stderr
    done = release_tool("feed", "--accept", "new-names", *words[2:])
    assert (done.returncode, done.stdout) == (0, "nothing is to be done\n")
    assert "tsuku_publish_matters 0\n" in metrics.read_text()
    # It stays so for the same names in the builds that come, and until other names come.
    at.upstream.pass_time(hours=12)
    report = at.run()
    assert report.taken
    assert not report.people
    at.upstream.renamed = {"sycl-fp32": "sycl-fp8"}
    at.upstream.pass_time(hours=12)
    (matter,) = at.run().people
    assert matter.about == ("llama-{tag}-bin-ubuntu-sycl-fp8-x64.tar.gz",)


@pytest.mark.parametrize(
    ("bad", "fact"), [("starter", "is not uploaded yet"), ("sha512", "gives no SHA-256")]
)
def test_a_channel_without_news_is_never_silent(at: FeedPublisher, bad: str, fact: str) -> None:
    at.run()
    for tag in (f"b{number}" for number in range(10600, 10800)):
        if bad == "starter":
            at.upstream.uploading.setdefault(tag, day(9, 9))
        else:
            asset = f"llama-{tag}-bin-ubuntu-x64.tar.gz"
            at.upstream.spoiled[tag, asset] = {"digest": "sha512:" + "0" * 128}
    at.upstream.pass_time(hours=20)
    assert "frozen" not in told(at.run().people)
    at.upstream.pass_time(hours=6)
    report = at.run()
    what, *facts = told(report.people)["frozen"]
    assert "nightly has had no new build for 1 days, and upstream has b" in what
    assert fact in facts[0]
    assert len(report.people) <= 2


def test_builds_with_the_tags_of_versions_are_one_matter(at: FeedPublisher) -> None:
    at.adopt([each.draft for each in at.run().left_out if each.draft])
    head = at.nightly[0]
    at.upstream.withdrawn |= {f"b{number}" for number in range(int(head[1:]) + 1, 12000)}
    for hours in range(0, 24, 6):
        at.upstream.extra |= {f"v1.0.{number + hours}": at.upstream.now for number in range(6)}
        report = at.run()
        at.upstream.pass_time(hours=6)
    assert report.offered[0] == head
    (matter,) = report.people
    assert (matter.key, matter.what.split()[0]) == ("versions", "24")


def test_an_upstream_that_is_silent_for_a_week_is_told(at: FeedPublisher) -> None:
    at.run()
    at.adopt([each.draft for each in at.run().left_out if each.draft])
    at.upstream.withdrawn |= {f"b{number}" for number in range(int(at.nightly[0][1:]) + 1, 12000)}
    for days in (3, 3):
        at.upstream.pass_time(days=days)
        assert "frozen" not in told(at.run().people)
    at.upstream.pass_time(days=1)
    (what, _) = told(at.run().people)["frozen"]
    assert what == "nightly has had no new build for 7 days, as upstream has none"
