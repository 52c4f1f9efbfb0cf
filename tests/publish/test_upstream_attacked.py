"""What a thief of a maintainer's token can do to the feed, and a maintainer who renames things.

Who has a token can publish, replace and delete releases, and can write their texts. What a workflow
attests takes more. Each case has a report of another project.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.feed_publisher import FeedPublisher, settled_publisher, told
from support.release_data import release_tool
from support.upstream_builds import day
from support.upstream_host import STABLE, Upstream, time_of

from tsuku_publish.feed.report import FeedReport
from tsuku_publish.upstream.facts import Facts

TEXT = "llama-{tag}-bin-ubuntu-riscv64.tar.gz"


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    with Upstream(day(8, 26), tmp_path / "upstream", every=6, limit=60) as upstream:
        yield upstream


@pytest.fixture
def at(tmp_path: Path, upstream: Upstream) -> FeedPublisher:
    return settled_publisher(tmp_path, upstream)


def live(at: FeedPublisher, hours: int) -> FeedReport:
    """Run every six hours; the last run is at the end."""
    for _ in range(0, hours, 6):
        report = at.run()
        at.upstream.pass_time(hours=6)
    return report


def age(at: FeedPublisher, report: FeedReport) -> timedelta:
    """How old the newest build of the channel was in the last run of ``live``."""
    newest = max(map(time_of, (int(tag[1:]) for tag in report.offered)))
    return at.upstream.now - timedelta(hours=6) - newest


def new_builds(at: FeedPublisher, attested: str, hours: int = 18) -> list[str]:
    """Let what is newer than the channel be attested so; later builds come after these hours."""
    new = [tag for tag in at.upstream.tags() if int(tag[1:]) > int(at.nightly[0][1:])]
    at.upstream.attested |= dict.fromkeys(new, attested)
    newest = int(at.upstream.tags()[0][1:])
    later = (f"b{number}" for number in range(newest + 1, newest + 100))
    at.upstream.uploading |= dict.fromkeys(later, at.upstream.now + timedelta(hours=hours))
    assert new
    return new


def new_version(
    at: FeedPublisher, monkeypatch: pytest.MonkeyPatch, version: str, build: str = ""
) -> str:
    """Publish a version now, which names the newest build that is in the channel, or another."""
    tag = build or at.nightly[0]
    monkeypatch.setitem(STABLE, version, (int(at.nightly[0][1:]), at.upstream.now))
    at.upstream.named[version] = tag
    return tag


# --- a thief of a token -------------------------------------------------------------------


def test_files_that_no_workflow_built_are_signed_by_no_machine(at: FeedPublisher) -> None:
    """https://github.com/cemu-project/Cemu/issues/1911: a thief replaced files of a release."""
    (tag, *_) = new_builds(at, "no")
    for each in at.upstream.release(tag)["assets"]:
        at.upstream.replaced[tag, each["name"]] = b"the thief's"
    report = live(at, 24)
    assert tag not in report.offered
    assert tag not in Facts(at.data / "facts").releases()
    assert "is not proven" in report.stopped[tag]
    assert any(line.startswith(tag) for line in told(report.people)["stopped"])
    assert age(at, report) < timedelta(hours=12)


def test_a_release_whose_attesting_step_never_ran_is_for_people(at: FeedPublisher) -> None:
    """https://github.com/nao1215/gup/pull/467: the next release put it right."""
    bare = new_builds(at, "no")
    report = live(at, 24)
    assert {*bare} <= {*report.stopped}
    assert {*bare}.isdisjoint(report.offered)
    assert age(at, report) < timedelta(hours=12)


@pytest.mark.parametrize("hidden", [{"state": "starter", "digest": None}, {"digest": None}])
def test_a_file_that_cannot_be_read_hides_no_other_that_was_replaced(
    at: FeedPublisher, hidden: dict[str, Any]
) -> None:
    """https://github.com/concourse/github-release-resource/pull/116: an upload never ended."""
    at.run()
    (head, *_) = at.nightly
    at.upstream.replaced[head, f"llama-{head}-bin-ubuntu-x64.tar.gz"] = b"the thief's"
    at.upstream.spoiled[head, f"llama-{head}-bin-macos-arm64.tar.gz"] = hidden
    report = live(at, 12)
    assert f"llama-{head}-bin-ubuntu-x64.tar.gz has sha256" in report.stopped[head]


def test_an_upload_that_never_ends_stops_nothing_that_is_signed(at: FeedPublisher) -> None:
    """A file more, of which the service says that it is on its way, for days."""
    at.run()
    (head, *_) = at.nightly
    at.upstream.added = ["more.tar.gz"]
    at.upstream.spoiled[head, "more.tar.gz"] = {"state": "starter", "digest": None}
    at.upstream.uploading |= dict.fromkeys(at.upstream.tags(), day(9, 30))
    del at.upstream.uploading[head]
    report = live(at, 12)
    assert head in report.offered
    assert not report.stopped


def test_old_files_under_new_numbers_are_never_taken_and_starve_nobody(
    at: FeedPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """https://github.com/clojars/clojars-web/issues/429: a version far ahead of all others.

    The thief publishes attested files of an old build again, forty times, as newer ones.
    """
    like, original = at.nightly[0], at.upstream.release
    stamp = f"{at.upstream.now:%Y-%m-%dT%H:%M:%SZ}"
    at.upstream.extra = {f"b{number}": at.upstream.now for number in range(15000, 15040)}

    def release(tag: str) -> dict[str, Any]:
        if tag not in at.upstream.extra:
            return original(tag)
        made: dict[str, Any] = json.loads(json.dumps(original(like)).replace(like, tag))
        return {**made, "published_at": stamp}

    monkeypatch.setattr(at.upstream, "release", release)
    report = live(at, 30)
    assert at.upstream.extra.keys().isdisjoint(report.offered)
    assert at.upstream.extra.keys().isdisjoint(Facts(at.data / "facts").releases())
    assert age(at, report) < timedelta(hours=24)
    assert len(report.people) <= 3


def test_releases_without_files_cost_no_other_its_turn(at: FeedPublisher) -> None:
    """https://github.com/petauron/vastora/pull/473: releases that were left empty."""
    at.upstream.extra = {f"b{number}": at.upstream.now for number in range(15000, 15040)}
    at.upstream.extra |= {f"b{'9' * 30}": at.upstream.now, "b٣٣٣٣٣": at.upstream.now}
    at.upstream.pass_time(hours=13)
    report = at.run()
    assert [each.release for each in report.taken] == [report.offered[0]] == at.upstream.tags()[:1]


def test_a_release_that_is_a_draft_again_is_stopped(at: FeedPublisher) -> None:
    """https://github.com/aether-lang-dev/aether/pull/406: nobody can download a draft's files."""
    at.run()
    (head, *_) = at.nightly
    at.upstream.marked[head] = {"draft": True}
    report = live(at, 12)
    assert report.stopped == {head: f"{head} is a draft again"}


def test_a_tag_that_was_moved_without_other_bytes_stops_nothing(at: FeedPublisher) -> None:
    """https://github.com/COMBINE-lab/oarfish/issues/73: the same tree under another commit."""
    at.run()
    (head, *_) = at.nightly
    later = f"{at.upstream.now:%Y-%m-%dT%H:%M:%SZ}"
    at.upstream.marked[head] = {"published_at": later, "created_at": later}
    report = live(at, 12)
    assert head in report.offered
    assert not report.stopped


def test_a_build_that_lacks_something_does_not_become_whole_with_time(
    at: FeedPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """https://github.com/ekhodzitsky/gigastt/pull/64: no runner for one platform.

    A stable version names that build, so it waits for a person. The channel forgets what it was
    compared with.
    """
    (tag, *_) = at.upstream.tags()
    at.upstream.missing[tag] = ("macos-x64",)
    monkeypatch.setitem(STABLE, "v0.3.5", (int(tag[1:]), at.upstream.now))
    at.upstream.pass_time(hours=13)
    at.edit("rules.toml", lambda document: document["feed"].update(keep=2))
    report = live(at, 36)
    assert report.held == {tag: ("darwin-amd64: the platform",)}
    assert tag not in report.offered


# --- a maintainer who renames things ------------------------------------------------------


@pytest.mark.parametrize("version", ["v0.4.0-rc1", "v0.4.0-beta.2", "v0.4.0rc1"])
def test_a_candidate_that_is_not_marked_is_no_stable_version(
    at: FeedPublisher, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """https://github.com/cloudflare/wrangler-legacy/issues/707, and deb-get/pull/675."""
    new_version(at, monkeypatch, version)
    at.run()
    assert version not in Facts(at.data / "facts").versions


def test_a_version_that_is_marked_as_a_pre_release_is_told(
    at: FeedPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """https://github.com/superradcompany/microsandbox/pull/786: what is marked is not stable."""
    tag = new_version(at, monkeypatch, "v0.4.0")
    at.upstream.marked["v0.4.0"] = {"prerelease": True}
    report = live(at, 12)
    assert told(report.people)["versions"][1:] == ("v0.4.0 is marked as a pre-release",)
    at.upstream.marked.clear()
    report = at.run()
    assert Facts(at.data / "facts").versions["v0.4.0"] == tag
    assert "versions" not in told(report.people)


@pytest.mark.parametrize(
    ("tags", "form"),
    [
        # https://github.com/somepaulo/MoreWaita/issues/365
        (("0.4.0", "0.4.1"), "N.N.N"),
        # https://github.com/MDIL-SNU/SevenNet/issues/220
        (("v.0.4.0", "v.0.5.0"), "v.N.N.N"),
        # https://github.com/enso-org/enso/issues/1459
        (("llama-0.4.0", "llama-0.5.0"), "llama-N.N.N"),
        # https://github.com/unionlabs/union/pull/2159
        (("gguf-v0.17.1", "gguf-v0.18.0"), "gguf-vN.N.N"),
        # https://github.com/xournalpp/xournalpp/issues/3816
        (("build-10700", "build-10701"), "build-N"),
    ],
)
def test_another_form_of_tags_is_told_once(
    at: FeedPublisher, tags: tuple[str, str], form: str
) -> None:
    at.upstream.extra = {tags[0]: at.upstream.now}
    assert told(at.run().people)["tags"][1:] == (f"{form}: {tags[0]}",)
    at.upstream.extra = {}
    at.upstream.pass_time(hours=6)
    assert "tags" in told(at.run().people)
    release_tool("feed", "--accept", "tags", "--data", at.data)
    at.upstream.extra = {tags[1]: at.upstream.now, "release-0.3-b10621-1a2b3c4": at.upstream.now}
    assert "tags" not in told(at.run().people)


def test_a_mistyped_build_of_a_version_keeps_no_other_away_and_may_be_mended(
    at: FeedPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """https://github.com/rrrene/credo/issues/1309: one digit more in the title."""
    right = new_version(at, monkeypatch, "v0.4.0")
    new_version(at, monkeypatch, "v0.4.1", build=f"{right}0")
    report = live(at, 12)
    assert "v0.4.1 names" in told(report.people)["versions"][1]
    # The right one is needed, however many builds come after it.
    at.edit("rules.toml", lambda document: document["feed"].update(keep=2))
    report = live(at, 24)
    assert right in report.offered
    at.upstream.named["v0.4.1"] = report.offered[0]
    report = at.run()
    assert Facts(at.data / "facts").versions["v0.4.1"] == at.upstream.named["v0.4.1"]
    assert "versions" not in told(report.people)


def test_a_version_a_day_leaves_each_in_the_channel_until_one_was_there_long_enough(
    at: FeedPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """https://github.com/exoscale/cli/issues/440: two patch versions came within a day."""
    at.edit("rules.toml", lambda document: document["feed"].update(keep=3))
    named = []
    for patch in range(3):
        named.append(new_version(at, monkeypatch, f"v0.4.{patch}"))
        report = live(at, 24)
    assert {*named} <= {*report.offered}


def test_a_file_that_the_workflow_does_not_attest_is_left_out_alone(at: FeedPublisher) -> None:
    """https://github.com/dependabot/cli/issues/431: the glob of the attesting step missed it.

    A thief who adds a file to a release gets no further.
    """
    before = at.documents()[at.nightly[0]]["platforms"]
    (tag, *_) = new_builds(at, "builds")
    name = TEXT.format(tag=tag)
    at.upstream.added = [name]
    report = at.run()
    assert tag not in report.offered  # perhaps it comes later
    at.upstream.pass_time(hours=13)
    report = at.run()
    assert report.offered[0] == tag
    assert at.documents()[tag]["platforms"].keys() == before.keys()
    (left,) = [each for each in report.left_out if each.asset == name]
    assert "no attestation proves its origin" in left.reason
    assert not left.draft
    assert not [each for each in at.upstream.requests if each.endswith(name)]


def test_a_repository_that_moved_to_another_owner_is_for_people(at: FeedPublisher) -> None:
    """https://github.com/jdx/mise/pull/12766: certificates name the new one."""
    before = at.nightly
    new_builds(at, "elsewhere")
    report = live(at, 18)
    assert report.offered == before
    assert any("ggml-org/workflows" in why for why in report.stopped.values())
    assert "stopped" in told(report.people)


def test_a_branch_of_another_name_is_for_people(
    at: FeedPublisher,
) -> None:
    """https://github.com/testing-library/testcafe-testing-library/pull/348: master became main."""
    new = new_builds(at, "main")
    report = live(at, 24)
    assert {*new}.isdisjoint(report.offered)
    assert "refs/heads/main" in report.stopped[new[0]]
