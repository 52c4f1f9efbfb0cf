"""Rules that a person wrote wrongly, and pauses of days: the feed goes on, and says so."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from support.feed_publisher import MACHINE, FeedPublisher, delegate, feed_publisher, told
from support.upstream_builds import day
from support.upstream_host import Upstream

from tsuku_publish.errors import PublishError
from tsuku_publish.feed.state import load_state
from tsuku_publish.release_files.refresh import Refresh
from tsuku_publish.upstream.classify import load_rules
from tsuku_publish.upstream.facts import Facts
from tsuku_publish.upstream.source.facts import load_sources, record
from tsuku_publish.upstream.source.marked import Fact


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    with Upstream(day(8, 24), tmp_path / "upstream", every=8, limit=5000) as upstream:
        yield upstream


@pytest.fixture
def at(tmp_path: Path, upstream: Upstream) -> FeedPublisher:
    return feed_publisher(tmp_path, upstream)


CHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    "ubuntu-sycl-fp32-x64": ("there is no [platforms.linux-amd46]", {"platform": "linux-amd46"}),
    "ubuntu-sycl-fp16-x64": (
        "[requires.nobel] is not defined",
        {"variants": [{"name": "sycl-fp16", "backend": "sycl", "requires": ["nobel"]}]},
    ),
    "ubuntu-vulkan-x64": ("unknown field `varients`", {"varients": []}),
    "win-sycl-x64": (
        "no preference for sicl",
        {"variants": [{"name": "sycl", "backend": "sicl", "requires": []}]},
    ),
    "ubuntu-s390x": ("Expected `array` of length >= 1", {"variants": []}),
    "ubuntu-vulkan-arm64": (
        "cannot be understood",
        {"variants": [{"name": "vulkan", "backend": "vulkan", "requires": ["number"]}]},
    ),
    "linux-arm64-snapdragon": (
        "has unknown words",
        {"variants": [{"name": "opencl", "backend": "opencl", "requires": ["word"]}]},
    ),
    "win-opencl-adreno-arm64": (
        "Expected `array`, got `str`",
        {"variants": [{"name": "a", "backend": "opencl", "requires": [], "arguments": "-x"}]},
    ),
}
"""Rules of known assets as a person may change them: the reason, and what is changed."""

ADDED: tuple[tuple[str, dict[str, Any]], ...] = (
    # It fits two assets, of which one has a good rule.
    (
        "win-cuda-13.3-x64",
        {
            "asset": "llama-{tag}-bin-win-cuda-{any}-x64.zip",
            "platform": "windows-amd64",
            "variants": [{"name": "cuda", "backend": "cuda", "requires": []}],
        },
    ),
    # Another build of the platform has that name.
    (
        "win-rocm-7.14-x64",
        {
            "asset": "llama-{tag}-bin-win-rocm-7.14-x64.zip",
            "platform": "windows-amd64",
            "variants": [{"name": "vulkan", "backend": "rocm", "requires": []}],
        },
    ),
    # A table that is no table.
    (
        "ubuntu-rocm-7.14-x64",
        {
            "asset": "llama-{tag}-bin-ubuntu-rocm-7.14-x64.tar.gz",
            "platform": "linux-amd64",
            "variants": [{"name": "rocm-7.14", "backend": "rocm", "requires": ["text"]}],
        },
    ),
)


def test_every_wrong_rule_costs_its_own_build_alone(at: FeedPublisher) -> None:
    delegate(at)
    good = at.run()
    at.adopt([each.draft for each in good.left_out if "win-cuda-13.3-arm64" in each.asset])
    at.run()
    at.sign()
    before = at.documents()[at.nightly[0]]["platforms"]
    right = (at.data / "rules.toml").read_text("utf-8")

    def spoil(document: Any) -> None:
        document["requires"]["number"] = {"vulkan": 1.2}
        document["requires"]["word"] = {"phlogiston": "1.0"}
        document["requires"]["text"] = "1.0"
        for rule in document["rule"]:
            for words, (_, change) in CHANGED.items():
                if rule["asset"].startswith(f"llama-{{tag}}-bin-{words}."):
                    rule.update(change)
        for _, rule in ADDED:
            document["rule"].append(rule)
        document["rule"].append({"platform": "linux-amd64"})
        document["skip"].append({"why": "it names no asset"})

    at.edit("rules.toml", spoil)
    at.upstream.pass_time(hours=12)
    answer = at.feed_and_sign()
    # A new build is taken and signed, and all that is wrong is named.
    (new,) = (each["release"] for each in answer["taken"])
    assert answer["stopped"] == {}
    reasons = {each["asset"].split("-bin-")[1]: each["reason"] for each in answer["left_out"]}
    for words, (reason, _) in CHANGED.items():
        (why,) = (each for name, each in reasons.items() if name.startswith(f"{words}."))
        assert reason in why, words
    for words, _ in ADDED:
        (why,) = (each for name, each in reasons.items() if name.startswith(f"{words}."))
        assert "is wrong" in why, words
    # A second rule for an asset would be wrong, too, so none is drafted.
    assert not [each["asset"] for each in answer["left_out"] if each["draft"]]
    people = "\n".join(told(answer["people"])["wrong-rules"])
    count = len(load_rules(at.data).builds) + len(load_rules(at.data).wrong)
    assert f"[[rule]] {count - 1} of rules.toml is wrong: it cannot be understood" in people
    assert "of rules.toml is wrong" in people
    assert "[[skip]] 5 of rules.toml is wrong" in people
    # All other builds are there, and a platform without its default is not.
    platforms = at.documents()[new]["platforms"]
    lost = {
        f"{platform}/{name}"
        for platform, old in before.items()
        for name in old["variants"].keys() - platforms.get(platform, {"variants": {}})["variants"]
    }
    assert lost == {
        "linux-amd64/sycl-fp32", "linux-amd64/sycl-fp16", "linux-amd64/vulkan",
        "windows-amd64/sycl", "linux-s390x/cpu", "linux-arm64/vulkan",
        "linux-arm64/opencl-snapdragon", "windows-arm64/opencl-adreno",
    }  # fmt: skip
    # A person at the keyboard hears of it at once.
    with pytest.raises(PublishError, match=r"\[\[rule\]\] .* is wrong"):
        Refresh(at.data, {}, print)
    # Mended, all are back in the next run, without another download.
    (at.data / "rules.toml").write_text(right, "utf-8")
    asked = len(at.upstream.requests)
    at.run()
    assert not [each for each in at.upstream.requests[asked:] if "/download/" in each]
    mended = at.documents()[new]["platforms"]
    assert {name: {*each["variants"]} for name, each in mended.items()} == {
        name: {*each["variants"]} for name, each in before.items()
    }


def test_a_rule_is_not_taken_twice_and_the_first_one_stays(at: FeedPublisher) -> None:
    """As of a person who adds a draft that is there already."""

    def add(document: Any) -> None:
        document["rule"].append(tomlkit.parse(tomlkit.dumps(document["rule"][0])))

    at.edit("rules.toml", add)
    (wrong,) = load_rules(at.data).wrong
    assert "another rule has vulkan of this asset already" in str(wrong)
    report = at.run()
    assert str(wrong) in told(report.people)["wrong-rules"]
    assert "vulkan" in at.documents()[at.nightly[0]]["platforms"]["linux-amd64"]["variants"]


def test_a_fault_that_all_builds_share_stops_no_release_for_good(at: FeedPublisher) -> None:
    """No platform has the default that its table names, so nothing remains of any release."""
    delegate(at)
    at.run()
    at.sign()
    right = (at.data / "rules.toml").read_text("utf-8")

    def spoil(document: Any) -> None:
        for platform in document["platforms"].values():
            platform["default"] = "gpu"

    at.edit("rules.toml", spoil)
    at.upstream.pass_time(hours=12)
    signed = at.files()
    answer = at.feed()
    assert "darwin-amd64 has no build for its default, gpu" in " ".join(
        told(answer["people"])["wrong-rules"]
    )
    root = ("--trusted-root", str(at.upstream.trusted_root))
    done = at.tool("sign", "--channel", "nightly", *root, signers=MACHINE)
    assert done.returncode == 1
    assert "linux-amd64: there is no variant gpu, its default" in done.stderr
    assert load_state(at.data).stopped == {}
    assert at.files() == signed
    (at.data / "rules.toml").write_text(right, "utf-8")
    answer = at.feed_and_sign()
    assert len(answer["taken"]) == 1


def test_no_rule_is_drafted_where_two_sources_disagree_about_an_asset_with_a_rule(
    at: FeedPublisher,
) -> None:
    """As of SYCL between b11149 and b11334, if it were device code, which is not guessed."""
    at.run()
    at.adopt([each.draft for each in at.run().left_out if each.draft])
    whole = at.nightly[0]
    asset = "llama-{tag}-bin-win-cuda-12.4-x64.zip"
    facts = at.data / "facts"
    source = load_sources(facts)[0]
    changed = {**source.assets[asset], "sass": Fact(("9.0",), "")}
    record(facts, replace(source, assets={**source.assets, asset: changed}))
    record(facts, replace(source, tag=whole, also=()))
    at.upstream.pass_time(hours=20)
    report = at.run()
    (held,) = report.held
    assert report.offered[0] == whole
    # Its companion belongs to it, and is no new name.
    left = [each for each in report.left_out if each.release == held]
    assert {each.asset for each in left} == {
        asset.format(tag=held),
        "cudart-llama-bin-win-cuda-12.4-x64.zip",
    }
    for each in left:
        assert f"the sources of {whole} and b11117 say different things of its cuda" in each.reason
        assert not each.draft
    assert [*told(report.people)] == ["left-out"]
    lines = {f"{held}: {each.asset}: {each.reason}" for each in left}
    assert {*told(report.people)["left-out"][1:]} == lines


# --- pauses -------------------------------------------------------------------------------


def test_after_a_pause_of_days_older_pages_are_read_for_stable_versions(
    at: FeedPublisher, upstream: Upstream
) -> None:
    at.run()
    upstream.every = 2
    upstream.now = day(8, 31)
    report = at.run()
    pages = [each for each in upstream.requests if "&page=" in each]
    # v0.3.0 came on 25 August, 60 releases ago.
    assert Facts(at.data / "facts").versions == {"v0.3.0": "b10621"}
    assert pages
    assert len(report.taken) == 2
    del upstream.requests[:]
    upstream.pass_time(hours=6)
    at.run()
    assert not [each for each in upstream.requests if "&page=" in each]


def test_a_list_without_an_end_is_cut_off_and_says_so(
    at: FeedPublisher, upstream: Upstream
) -> None:
    drafts = [
        {**upstream.release("b10350"), "tag_name": f"b{number}", "draft": True}
        for number in range(20000, 20030)
    ]
    upstream.instead = json.dumps(drafts).encode()
    report = at.run()
    assert len([each for each in upstream.requests if "&page=" in each]) == 19
    (_, line) = told(report.people)["unread"]
    assert "back to b20000" in line
