"""What the release tool asks upstream's hosting service, against a host that plays it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.release_data import copied_data
from support.upstream_builds import day, names_at
from support.upstream_host import STABLE, Upstream

from tsuku_llm.fetch import Network
from tsuku_llm.fetch.http.limits import Timing
from tsuku_publish.errors import PublishError
from tsuku_publish.release_files.refresh import Refresh
from tsuku_publish.upstream.attestations import published_bundles
from tsuku_publish.upstream.hosting import (
    VARIABLE,
    HostingService,
    IncompleteRelease,
    RateLimited,
    named_tag,
    parse_release,
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with Upstream(day(8, 27), tmp_path_factory.mktemp("upstream"), every=40) as upstream:
        yield upstream


@pytest.fixture
def upstream(running: Upstream) -> Upstream:
    running.now = day(8, 27)
    running.requests.clear()
    running.pass_time()
    return running


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def service(upstream: Upstream, waits: list[float]) -> Iterator[HostingService]:
    with Network(upstream.environ, timing=Timing(sleep=waits.append)) as network:
        yield HostingService(upstream.api, {}, network)


def test_releases_are_listed_newest_first_and_an_unchanged_list_is_free(
    upstream: Upstream, service: HostingService
) -> None:
    first = service.listing("")
    assert first.releases
    tags = [each["tag_name"] for each in first.releases]
    builds = [int(tag[1:]) for tag in tags if tag.startswith("b")]
    assert builds == sorted(builds, reverse=True)
    assert "v0.3.0" in tags
    left = upstream.left
    assert service.listing(first.etag).releases is None
    assert upstream.left == left
    upstream.pass_time(days=3)
    later = service.listing(first.etag)
    assert later.releases
    assert len(later.releases) > len(first.releases)


def test_a_stable_version_names_a_build_that_is_there(service: HostingService) -> None:
    tag = named_tag(service.release("v0.3.0"), "v0.3.0")
    assert tag == f"b{STABLE['v0.3.0'][0]}"
    release = parse_release(service.release(tag), tag)
    assert len(release.assets) == len(names_at(day(8, 25)))
    assert release.published == "2026-08-25"
    with pytest.raises(PublishError, match=r"v0\.5\.0: the service does not have it"):
        service.release("v0.5.0")


@pytest.mark.parametrize("branch", ["release-0.3-b10621-1a2b3c4", "b10621-1a2b3c4", "xb10621"])
def test_a_build_of_a_release_branch_is_no_build_of_the_main_branch(
    upstream: Upstream, service: HostingService, monkeypatch: pytest.MonkeyPatch, branch: str
) -> None:
    # The forms of scripts/make-release-desc.sh: '(^|-)b[0-9]+(-[0-9a-f]{7})?$'.
    monkeypatch.setitem(upstream.named, "v0.3.0", branch)
    with pytest.raises(PublishError, match=f"v0.3.0 is {branch}, which is no build of the main"):
        named_tag(service.release("v0.3.0"), "v0.3.0")


def test_the_text_and_the_file_of_a_stable_version_name_one_build(service: HostingService) -> None:
    data = service.release("v0.3.0").replace(b"[b10621]", b"[b10622]")
    with pytest.raises(
        PublishError, match=r"its text names b10622, and its nightly-tag\.txt anoth"
    ):
        named_tag(data, "v0.3.0")
    data = data.replace(b"Nightly build", b"Build")
    with pytest.raises(PublishError, match="its text names no build"):
        named_tag(data, "v0.3.0")


def test_a_release_that_is_being_uploaded_is_incomplete(
    upstream: Upstream, service: HostingService
) -> None:
    tag = upstream.tags()[0]
    upstream.uploading[tag] = upstream.now.replace(hour=5)
    with pytest.raises(IncompleteRelease, match="is not uploaded yet"):
        parse_release(service.release(tag), tag)
    upstream.pass_time(hours=6)
    assert parse_release(service.release(tag), tag).tag == tag


def test_at_the_limit_of_requests_nothing_more_is_asked(
    upstream: Upstream, service: HostingService
) -> None:
    upstream.now = day(12, 31).replace(year=2099)  # the limit ends an hour after this
    upstream.left = 1
    service.release("v0.3.0")
    asked = len(upstream.requests)
    with pytest.raises(RateLimited, match=r"no more requests until 2099-12-31 01:00 UTC") as caught:
        service.release("v0.3.0")
    assert len(upstream.requests) == asked
    assert VARIABLE in caught.value.hint


def test_a_refused_request_says_until_when(upstream: Upstream, service: HostingService) -> None:
    upstream.left = 0
    with pytest.raises(RateLimited, match="2026-08-27 01:00 UTC"):
        service.listing("")


def test_a_short_retry_after_is_waited_for_and_a_long_one_is_not(
    upstream: Upstream, service: HostingService, waits: list[float]
) -> None:
    upstream.delay = 7
    assert service.listing("").releases
    assert waits == [7.0]
    upstream.delay = 3600
    with pytest.raises(RateLimited, match="no more requests until"):
        service.listing("")
    assert waits == [7.0]


def test_a_secondary_limit_ends_the_requests_also_without_a_time(
    upstream: Upstream, service: HostingService
) -> None:
    """docs.github.com, "Rate limits for the REST API": a 403 with a text, or Retry-After."""
    upstream.secondary = True
    with pytest.raises(RateLimited, match="no more requests until"):
        service.listing("")
    asked = len(upstream.requests)
    with pytest.raises(RateLimited):
        service.release("v0.3.0")
    assert len(upstream.requests) == asked
    upstream.secondary = False


def test_a_token_goes_to_the_service_and_into_no_message(upstream: Upstream) -> None:
    with Network(upstream.environ) as network:
        service = HostingService(upstream.api, {VARIABLE: "very-secret"}, network)
        assert service.listing("").releases
        with pytest.raises(PublishError) as caught:
            HostingService("https://localhost:1/x", {VARIABLE: "very-secret"}, network).listing("")
    assert upstream.tokens[-1] == "x-access-token:very-secret"
    assert "secret" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("body", [b"<html><title>log in</title>", b"{}", b"[1]", b"no"])
def test_an_answer_of_another_shape_is_one_error(
    upstream: Upstream, service: HostingService, body: bytes
) -> None:
    upstream.instead = body
    with pytest.raises(PublishError):
        service.listing("")
    upstream.instead = None


def test_refresh_asks_the_service_that_the_rules_name(upstream: Upstream, tmp_path: Path) -> None:
    data = copied_data(tmp_path / "data")
    rules = data / "rules.toml"
    rules.write_text(
        rules.read_text().replace("https://api.github.com/repos/ggml-org/llama.cpp", upstream.api)
    )
    said: list[str] = []
    Refresh(data, upstream.environ, said.append).record("v0.3.0", None, None)
    assert said == ["v0.3.0 is b10621"]
    with pytest.raises(PublishError, match="certificate"):
        Refresh(data, {}, said.append).record("v0.3.0", None, None)


def test_an_attestation_names_every_asset_of_its_release(service: HostingService) -> None:
    service.listing("")
    release = parse_release(service.release("b10621"), "b10621")
    first, last = release.assets[0], release.assets[-1]
    answers = [service.attestations(each.sha256) for each in (first, last)]
    bundles = [json.loads(answer or b"{}")["attestations"] for answer in answers]
    # The last one is a companion without a tag in its name: it is in other releases, too.
    assert (len(bundles[0]), len(bundles[1])) == (1, 3)
    assert service.attestations("00" * 32) is None


def test_one_request_is_enough_for_the_attestations_of_a_build(
    upstream: Upstream, service: HostingService
) -> None:
    release = parse_release(service.release("b10621"), "b10621")
    digests = {each.name: each.sha256 for each in release.assets}
    asked = len(upstream.requests)
    (bundle,) = published_bundles(service, "b10621", digests)
    assert len(upstream.requests) == asked + 1
    assert bundle["dsseEnvelope"]
    # Of a build without any, older ones have the companion, whose name has no tag: not asked for.
    upstream.attested["b10621"] = "no"
    assert published_bundles(service, "b10621", digests) == []
    assert len(upstream.requests) == asked + 3
    del upstream.attested["b10621"]


def test_the_nine_changes_are_in_the_names() -> None:
    """Before and after each: what appears, and what goes."""

    def new(month: int, number: int) -> tuple[set[str], set[str]]:
        before = {each.pattern for each in names_at(day(month, number - 1))}
        after = {each.pattern for each in names_at(day(month, number))}
        return after - before, before - after

    came, went = new(8, 11)
    assert {each for each in went if "hip-radeon" in each or "rocm-7.2" in each} == went
    assert len(came) == len(went) == 2
    assert any("win-cuda-13.3-arm64" in each for each in new(8, 18)[0])
    assert min(when for _, when in STABLE.values()) == day(8, 25)
    assert all("rocm-10.0" in each for each in new(9, 3)[0])
    assert any("win-cuda-13.4-x64" in each for each in new(9, 9)[0])
    assert len(new(9, 15)[0]) == 6
    assert all("2026.4-" in each for each in new(9, 20)[0])
    assert all("2026.4.1-" in each for each in new(10, 2)[0])
    assert new(10, 4) == ({"llama-{tag}-bin-win-vulkan-arm64.zip"}, set())


def test_an_answer_is_limited(upstream: Upstream) -> None:
    upstream.instead = b" " * (9 << 20)
    with Network(upstream.environ) as network, pytest.raises(PublishError, match="too long"):
        HostingService(upstream.api, {}, network).listing("")
    upstream.instead = None
