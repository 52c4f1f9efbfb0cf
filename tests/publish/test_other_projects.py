"""Changes that other projects' releases really had, played by upstream: what is signed then.

Each row has the report of a project, and what the same change would be here. From noon of a day on
every new build has it. The suite plays a sample, ``FUZZ_EXAMPLES=1000`` all of them.
"""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from support.feed_publisher import FeedPublisher, settled_publisher, told
from support.publisher_days import HOLDERS, Days, filled, started
from support.release_data import release_tool
from support.sweeps import stride
from support.upstream_builds import NOISE, Name, day, names_at, packed
from support.upstream_host import STABLE, Upstream, time_of

START = day(8, 20)
Spoil = Callable[[Upstream, str], None]


def build(tag: str, words: str) -> tuple[str, Name]:
    """An asset of a tag, and what upstream packs for it."""
    asset = f"llama-{tag}-bin-{words}"
    return asset, next(each for each in names_at(time_of(int(tag[1:]))) if each.of(tag) == asset)


def packs(
    words: str, like: str = "", without: str = "", mode: int = 0o755, more: bytes = b""
) -> Spoil:
    """Let a build have the bytes of another one, or lack a file, or have another one more."""

    def spoil(upstream: Upstream, tag: str) -> None:
        asset, _ = build(tag, words)
        _, other = build(tag, like or words)
        extra = (("debug.bin", more),) if more else ()
        upstream.replaced[tag, asset] = packed(other, tag, extra, without, mode)

    return spoil


def truncated(upstream: Upstream, tag: str) -> None:
    asset, name = build(tag, "ubuntu-x64.tar.gz")
    data = packed(name, tag)
    upstream.replaced[tag, asset] = data[: len(data) * 4 // 5]


def lacks(*parts: str) -> Spoil:
    return lambda upstream, tag: upstream.missing.update({tag: parts})


def attested(state: str) -> Spoil:
    return lambda upstream, tag: upstream.attested.update({tag: state})


def renames(old: str, new: str) -> Spoil:
    return lambda upstream, _: upstream.renamed.update({old: new})


def partial_by_hand(upstream: Upstream, tag: str) -> None:
    upstream.missing[tag] = ("ubuntu-arm64", "ubuntu-vulkan-arm64", "macos-x64")
    upstream.attested[tag] = "no"


class Change(NamedTuple):
    """A change of a project: the report, what it is here, and what people hear of it."""

    report: str
    spoil: Spoil
    heard: str
    loss: str = ""


CHANGES = {
    "a dot in one name": Change(
        "https://github.com/chmln/sd/issues/81",
        renames("ubuntu-x64", "ubuntu-.x64"), "new-names", "linux-amd64: the platform"),
    "every name is another one": Change(
        "https://github.com/sunny0826/kubecm/issues/720",
        renames("llama-b", "llama_.b"), "frozen"),
    "the toolkit's patch in the name": Change(
        "https://github.com/LostRuins/koboldcpp/issues/827",
        renames("cuda-12.4", "cuda-12.4.1150"), "new-names"),
    "a run that was cancelled, and files put there by hand": Change(
        "https://github.com/Dicklesworthstone/pi_agent_rust/issues/146",
        partial_by_hand, "held", "darwin-amd64: the platform"),
    "Windows on ARM has the programs of x64": Change(
        "https://github.com/prefix-dev/pixi/issues/6059",
        packs("win-cpu-arm64.zip", like="win-cpu-x64.zip"), "left-out",
        "windows-arm64: the platform"),
    "the Intel Mac has the programs of Apple silicon": Change(
        "https://github.com/drdo/redu/issues/116",
        packs("macos-x64.tar.gz", like="macos-arm64.tar.gz"), "left-out",
        "darwin-amd64: the platform"),
    "amd64 has the programs of aarch64": Change(
        "https://github.com/Dicklesworthstone/coding_agent_session_search/issues/140",
        packs("ubuntu-vulkan-x64.tar.gz", like="ubuntu-vulkan-arm64.tar.gz"), "left-out",
        "linux-amd64: 1 of 1 vulkan"),
    "truncated before its digest was computed": Change(
        "https://github.com/themuffinator/openQ4/issues/160",
        truncated, "left-out", "linux-amd64: the platform"),
    "not executable": Change(
        "https://github.com/oxipng/oxipng/issues/575",
        packs("ubuntu-vulkan-x64.tar.gz", mode=0o644), "left-out", "linux-amd64: 1 of 1 vulkan"),
    "a library is not in the archive any more": Change(
        "https://github.com/lz4/lz4/issues/1657",
        packs("win-cpu-x64.zip", without="ggml-cpu-haswell.dll"), "held",
        "windows-amd64/cpu: its library ggml-cpu-haswell.dll"),
    "with debug symbols": Change(
        "https://github.com/FalkorDB/FalkorDB/pull/1647",
        packs("ubuntu-x64.tar.gz", more=NOISE), "held",
        "linux-amd64/cpu: its size, more than threefold"),
    "no runner for the Intel Mac": Change(
        "https://github.com/ekhodzitsky/gigastt/pull/64",
        lacks("macos-x64"), "held", "darwin-amd64: the platform"),
    "the assets are in a second draft, and the release is empty": Change(
        "https://github.com/swellweb/targetBridge/issues/87",
        lacks("llama"), "frozen"),
    "a shared workflow of another repository attests": Change(
        "https://github.com/fluxcd/flux-mirror/pull/25",
        attested("elsewhere"), "stopped"),
    "one platform's job fails for a day": Change(
        "https://github.com/foxglove/foxglove-cli/issues/98",
        lacks("ubuntu-arm64"), "held", "linux-arm64: the platform"),
}  # fmt: skip


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    with Upstream(START, tmp_path / "upstream", every=6, limit=60) as upstream:
        yield upstream


@pytest.fixture
def at(tmp_path: Path, upstream: Upstream) -> FeedPublisher:
    return settled_publisher(tmp_path, upstream)


def require_right(at: FeedPublisher) -> None:
    """Require of all that would be signed: upstream's bytes, and a server for each platform."""
    for tag, document in at.documents().items():
        for platform, entry in document["platforms"].items():
            for variant in entry["variants"].values():
                files = {
                    each["path"]: each for archive in variant["artifacts"]
                    for each in archive["files"]
                }  # fmt: skip
                server = files[variant["server"]]
                assert platform.startswith("windows") or server["executable"], (tag, platform)
                name = variant["artifacts"][0]["url"].rpartition("/")[2]
                processor = (
                    "arm64" if "arm64" in platform else "s390x" if "s390x" in platform else "x64"
                )
                assert processor in name, (tag, platform)
                digest = f"sha256:{variant['artifacts'][0]['sha256']}"
                listed = {
                    each["name"]: each["digest"] for each in at.upstream.release(tag)["assets"]
                }
                assert listed[name] == digest, (tag, name)


@pytest.mark.parametrize("what", [*CHANGES][:: stride(4)])
def test_a_change_of_another_project_signs_nothing_wrong(at: FeedPublisher, what: str) -> None:
    change, upstream = CHANGES[what], at.upstream
    whole = at.documents()[at.nightly[0]]["platforms"]
    head, spoiled = at.nightly[0], set[str]()
    heard: dict[str, tuple[str, ...]] = {}
    for _ in range(6):
        for tag in upstream.tags()[:30]:
            if int(tag[1:]) > int(head[1:]) and tag not in spoiled:
                spoiled.add(tag)
                change.spoil(upstream, tag)
        report = at.run()
        heard |= told(report.people)
        assert {*spoiled}.isdisjoint(report.offered), what
        require_right(at)
        assert len(report.people) <= 3
        upstream.pass_time(hours=6)
    assert change.heard in heard, heard
    if change.loss:
        assert change.loss in heard["held"], heard
    # The same platforms and variants as before, from the last whole release.
    assert at.documents()[report.offered[0]]["platforms"] == whole
    # It is mended in the builds after that: nobody has to do a thing for the channel to go on.
    upstream.renamed.clear()
    upstream.pass_time(hours=12)
    report = at.run()
    newest = report.offered[0]
    assert newest not in spoiled
    assert upstream.now - time_of(int(newest[1:])) < timedelta(hours=24)
    assert {*told(report.people)} <= {"stopped"}


HALF_A_YEAR = os.environ.get("TSUKU_LLM_HALF_A_YEAR") == "1"
LATER = {
    "v0.9.0": (12344, day(11, 16)), "v1.0.0": (12652, day(11, 30)), "v1.1.0": (12960, day(12, 14)),
    "v1.2.0": (13268, day(12, 28)), "v1.3.0": (13554, day(12, 28) + timedelta(days=13)),
    "v1.4.0": (13884, day(12, 28) + timedelta(days=28)),
}  # fmt: skip
"""Stable versions after the last one that was seen, two weeks apart as those were: a guess.

None is on a day on which names change: a version has assets of its own, with names of its own.
"""


def test_half_a_year_with_upstreams_transitions_and_the_changes_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """180 days at upstream's pace; every ninth day a change comes for 36 hours. The suite has five.

    People look at noon: they add drafts, promote what is proposed, and accept nothing. A day is
    late for nightly if a whole build is a day old and the channel has it not, and for stable if a
    version of a whole build is seven days old and users have it not.
    """
    for version, known in LATER.items():
        monkeypatch.setitem(STABLE, version, known)
    days, start = (180, day(8, 9)) if HALF_A_YEAR else (5, day(8, 24))
    with Upstream(start, tmp_path / "upstream", limit=60) as upstream:
        at = started(tmp_path, upstream)
        people = Days(at)
        late, late_stable, spoiled = set[int](), set[int](), set[str]()
        oldest_nightly, oldest_stable, runs, edits = timedelta(), timedelta(), 0, 0
        for hour in range(0, days * 24, 6):
            number, since = divmod(hour - 48, 9 * 24)
            change = [*CHANGES.values()][number % len(CHANGES)] if 0 <= since < 36 else None
            upstream.renamed.clear()
            for tag in upstream.tags()[:40] if change and number >= 0 else ():
                if tag not in upstream._assets and tag not in spoiled:
                    spoiled.add(tag)
                    change.spoil(upstream, tag)
            report = at.run()
            people.sign_nightly()
            runs += 1
            require_right(at)
            assert spoiled.isdisjoint(report.offered)
            drafts = [draft for each in report.people for draft in each.drafts]
            if hour % 24 == 12:
                people.timers()
                if drafts and not change:
                    edits += 1
                    at.adopt(map(filled, drafts))
                if report.proposal:
                    people.promote(report.proposal.release)
            # How long the oldest whole build that users of the channel do not have has been there.
            newer = [
                time_of(int(tag[1:])) for tag in upstream.tags()
                if tag not in spoiled and int(tag[1:]) > int(report.offered[0][1:])
            ]  # fmt: skip
            behind = upstream.now - min(newer, default=upstream.now)
            oldest_nightly = max(oldest_nightly, behind)
            if behind >= timedelta(hours=24):
                late.add(hour // 24)
            upstream.pass_time(hours=6)
            # What users of stable have until the next run.
            newer = [
                when for version, (named, when) in STABLE.items()
                if f"b{named}" not in spoiled and version > people.served and when <= upstream.now
            ]  # fmt: skip
            behind = upstream.now - min(newer, default=upstream.now)
            oldest_stable = max(oldest_stable, behind)
            if behind >= timedelta(days=7):
                late_stable.add(hour // 24)
        promotions = people.work["promotions"]
        commands = edits + promotions.commands.total() - people.ceremonies  # the host's are a job's
        with capsys.disabled():
            print(  # noqa: T201
                f"\n{runs} runs; nightly late on days {sorted(late)}, {oldest_nightly} at most; "
                f"stable late on days {sorted(late_stable)}, {oldest_stable} at most; "
                f"{edits} edits, {promotions.times} promotions, {commands} commands of people, "
                f"{commands / days * 7:.2f} a week"
            )
        assert len(late) <= days // 100
        assert len(late_stable) <= days // 100
        assert edits <= max(1, days // 7)
        # A promotion is three commands, of two of three holders in turn: one a week for each.
        assert 3 <= commands <= max(3, len(HOLDERS) * days // 7)
        assert promotions.times


def test_a_platform_that_went_for_good_costs_one_command(at: FeedPublisher) -> None:
    """https://github.com/LBALab/lba2-classic-community/pull/106: no Intel Mac any more."""
    for _ in range(3):
        at.upstream.missing |= dict.fromkeys(at.upstream.tags()[:9], ("macos-x64",))
        at.upstream.missing.pop(at.nightly[0], None)
        report = at.run()
        at.upstream.pass_time(hours=8)
    assert [*told(report.people)] == ["held"]
    release_tool("feed", "--accept", "held", "--data", at.data)
    for _ in range(3):
        at.upstream.missing |= dict.fromkeys(at.upstream.tags()[:9], ("macos-x64",))
        report = at.run()
        assert not report.people
        at.upstream.pass_time(hours=8)
    assert at.upstream.now - time_of(int(report.offered[0][1:])) < timedelta(hours=24)


def test_a_platform_that_comes_hours_later_is_waited_for(at: FeedPublisher) -> None:
    """https://github.com/Orange-OpenSource/hurl/issues/2318: linux-arm64 came some hours later."""
    late = at.upstream.tags()[0]
    at.upstream.missing[late] = ("ubuntu-arm64",)
    report = at.run()
    assert late not in report.offered
    assert not report.people
    del at.upstream.missing[late]
    at.upstream._assets.pop(late)
    at.upstream.pass_time(hours=6)
    report = at.run()
    assert "linux-arm64" in at.documents()[report.offered[0]]["platforms"]
    assert not report.people


def test_bytes_that_were_replaced_and_restored_stop_nothing(at: FeedPublisher) -> None:
    """https://github.com/farsightsec/mtbl/issues/80: the old file was put back."""
    at.run()
    head = at.nightly[0]
    asset, _ = build(head, "ubuntu-x64.tar.gz")
    at.upstream.replaced[head, asset] = b"another build of the same tag"
    assert not at.run().stopped
    at.upstream.replaced.clear()
    at.upstream.pass_time(hours=6)
    assert not at.run().stopped
    assert head in at.nightly


def test_a_release_that_comes_again_with_other_bytes_is_stopped(at: FeedPublisher) -> None:
    """https://github.com/DanBloomberg/leptonica/issues/756: deleted, and made again."""
    at.run()
    head = at.nightly[0]
    at.upstream.withdrawn.add(head)
    at.run()
    at.upstream.withdrawn.clear()
    asset, name = build(head, "ubuntu-x64.tar.gz")
    at.upstream.replaced[head, asset] = packed(name, head, (("later", b"1"),))
    at.upstream.pass_time(hours=12)
    report = at.run()
    assert head in report.stopped
    assert head not in report.offered


def test_an_asset_that_gets_another_name_after_it_was_signed_is_told(at: FeedPublisher) -> None:
    """https://github.com/OpenLoco/OpenLoco/issues/3853: the names were mended in place."""
    at.run()
    head = at.nightly[0]
    asset, _ = build(head, "ubuntu-x64.tar.gz")
    at.upstream.spoiled[head, asset] = {"name": asset.replace("x64", "x86-64")}
    at.run()
    at.upstream.pass_time(hours=12)
    report = at.run()
    assert "is recorded and not published any more" in report.stopped[head]
    assert report.offered[0] > head


def test_a_version_that_was_only_a_test_is_forgotten(at: FeedPublisher) -> None:
    """https://github.com/ShadowsocksR-Live/overtls/issues/111: tagged to try the workflow."""
    at.upstream.extra = {"v0.3.12": at.upstream.now}
    report = at.run()
    assert "its text names no build" in told(report.people)["versions"][1]
    at.upstream.extra = {}
    at.upstream.pass_time(hours=6)
    assert "versions" not in told(at.run().people)
