"""The feed: runs against a host that plays upstream, with a clock that the tests set."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from support.builds import WINDOWS_BUILD, WINDOWS_SHA256, upstream_windows_build
from support.feed_publisher import FeedPublisher, feed_publisher
from support.release_data import copied_data, release_process, release_tool
from support.schemas import read
from support.upstream_builds import Name, day, names_at, packed
from support.upstream_host import Upstream, time_of

from ci.schemas import PUBLISHER
from tsuku_publish.classify import classify, load_rules
from tsuku_publish.facts import Facts
from tsuku_publish.feed.run import FeedReport
from tsuku_publish.feed.state import load_state


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    with Upstream(day(8, 24), tmp_path / "upstream", every=6, limit=5000) as upstream:
        yield upstream


@pytest.fixture
def at(tmp_path: Path, upstream: Upstream) -> FeedPublisher:
    return feed_publisher(tmp_path, upstream)


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
    assert f"{tag}: {rocm}: no rule knows it" in report.people
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


def test_a_build_that_stays_away_is_done_without(at: FeedPublisher) -> None:
    at.run()
    at.upstream.pass_time(hours=30)
    for tag in at.upstream.tags()[:40]:
        at.upstream.missing[tag] = ("s390x",)
    report = at.run()
    # The newest one is younger than the patience; an older one is taken without the build.
    assert report.waiting
    taken = report.taken[0].release
    assert "linux-s390x" not in at.documents()[taken]["platforms"]


def test_attestations_that_come_late_are_waited_for(at: FeedPublisher) -> None:
    first = at.upstream.tags()[0]
    at.upstream.attested[first] = "late"
    assert first not in [each.release for each in at.run().taken]
    at.upstream.pass_time(hours=6)
    at.run()
    assert "unattested" not in at.documents()[at.nightly[0]]


def test_a_release_that_is_never_attested_says_so(at: FeedPublisher) -> None:
    for tag in at.upstream.tags():
        at.upstream.attested[tag] = "no"
    at.run()
    tag = at.nightly[0]
    assert at.documents()[tag]["unattested"] == "Upstream had no attestation of it on 2026-08-24."


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
    assert any(line.startswith(f"{bad} is stopped") for line in report.people)
    assert bad not in Facts(at.data / "facts").releases()


def test_changed_bytes_stop_that_release_only(at: FeedPublisher) -> None:
    at.run()
    first = at.nightly[0]
    at.upstream.pass_time(hours=20)
    name = f"llama-{first}-bin-ubuntu-x64.tar.gz"
    at.upstream.replaced[first, name] = packed(Name("x.tar.gz", "page"), "b1")
    report = at.run()
    assert f"{first}: {name} has sha256" in report.stopped[first]
    assert first not in at.nightly
    assert at.nightly[0] == report.taken[0].release
    # Its recorded facts stay as they were.
    digests = {each.sha256 for each in Facts(at.data / "facts").releases()[first].assets}
    assert len(digests) == len(names_at(day(8, 24)))
    at.run()
    assert first not in at.nightly


def test_a_release_that_upstream_takes_back_is_stopped(at: FeedPublisher) -> None:
    at.run()
    at.upstream.pass_time(hours=20)
    at.run()
    gone = at.nightly[0]
    at.upstream.withdrawn.add(gone)
    report = at.run()
    assert gone in report.stopped
    assert gone not in at.nightly
    assert at.nightly


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


def test_a_failed_download_is_tried_again_and_leaves_nothing_out(at: FeedPublisher) -> None:
    tag = at.upstream.tags()[0]
    at.upstream.unreachable.add(f"llama-{tag}-bin-ubuntu-x64.tar.gz")
    report = at.run()
    assert tag not in at.nightly
    assert any(line.startswith(f"{tag} was not taken") for line in report.people)
    at.upstream.unreachable.clear()
    assert tag in [each.release for each in at.run().taken]


def test_the_limit_of_requests_ends_a_run_and_keeps_what_was_done(at: FeedPublisher) -> None:
    at.upstream.left = 10
    report = at.run()
    assert report.taken == ()
    assert any("no more requests" in line for line in report.waiting)
    at.upstream.pass_time(hours=1)
    assert at.run().taken


def test_the_build_of_a_stable_version_is_taken_and_proposed_after_three_days(
    at: FeedPublisher,
) -> None:
    at.upstream.now = day(9, 1)
    report = at.run()
    assert "v0.3.0 is b10621" in at.said
    assert "b10621" in at.nightly
    assert report.proposal is None
    for _ in range(3):
        at.upstream.pass_time(hours=24)
        report = at.run()
    assert report.proposal is not None
    assert (report.proposal.release, report.proposal.version) == ("b10621", "v0.3.0")
    assert report.proposal.hours == 72
    assert "linux-amd64/cpu" in report.proposal.new
    assert any("ready to become stable" in line for line in report.people)
    # A person decides: here it is what they do.
    at.edit("repository.toml", lambda document: document["channels"].update(stable=["b10621"]))
    assert at.run().proposal is None


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
    assert set(load_state(at.data).since) == kept
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
    assert (done.returncode, done.stderr) == (0, "")
    assert "To decide:" in done.stdout
    assert "[[rule]]" in done.stdout
    assert "next: tsuku-publish sign --raise" in done.stdout


def test_its_document_is_as_the_schema_says(at: FeedPublisher) -> None:
    words = ["feed", "--data", at.data, "--api", at.upstream.api, "--now", "2026-08-24T00:00"]
    words += ["--trusted-root", at.upstream.trusted_root, "--json"]
    done = release_process(*words, **at.upstream.environ)
    assert done.returncode == 0, done.stderr
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
