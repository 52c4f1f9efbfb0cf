"""Where nothing can be chosen or started, the error's commands lead to a build."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from support.folder_shop import NOW, FolderShop
from support.release_server import NAME
from support.repository import release_document
from support.sessions import changed
from support.stored import install as put

from tsuku_llm.ground.errors import (
    DownloadError,
    NotInstalled,
    ProxyError,
    SelectionError,
    UnknownRequest,
)
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.probe import probe
from tsuku_llm.steps.choosing.choice import choose, required
from tsuku_llm.steps.choosing.which import requested_version
from tsuku_llm.steps.install.install import install
from tsuku_llm.steps.metadata.refresh import WAYS_OUT, refresh
from tsuku_llm.steps.session import Session
from tsuku_llm.store.store import Store

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
WITHOUT_GPU = SNAPSHOTS / "debian-12-vm-no-gpu.json"


@pytest.fixture
def folder_shop(tmp_path: Path) -> FolderShop:
    return FolderShop(tmp_path / "shop")


def publish(shop: FolderShop, tag: str, backend: str, channel: str = "stable") -> None:
    build = shop.variant(shop.packed(f"{tag}-{backend}"), backend=backend)
    shop.publish(tag, {backend: build}, channels=(channel,))


def on(shop: FolderShop, home: Path, machine: Path, **changes: object) -> Session:
    return changed(shop.session(home), host=ReplayHost.load(machine), **changes)


def riscv(folder: Path) -> Path:
    """A machine with another processor than the builds are for."""
    recording = json.loads(WITHOUT_GPU.read_text())
    recording["system"]["machine"] = "riscv64"
    machine = folder / "riscv.json"
    machine.write_text(json.dumps(recording))
    return machine


def followed(session: Session, hint: str) -> str:
    """Run the last command of a hint as a plan, and return the variant that it would install."""
    words = shlex.split(hint.rsplit("tsuku-llm install", maxsplit=1)[1])
    told = dict(zip(words[::2], words[1::2], strict=True))
    names = {"--channel": "channel", "--backend": "backend", "--repository": "repository"}
    settings = {names[name]: value for name, value in told.items() if name in names}
    planned = install(changed(session, **settings), release=told.get("--release"), dry_run=True)
    return planned.candidate.variant.name


def hint_of(session: Session, release: str | None = None) -> str:
    with pytest.raises(SelectionError) as caught:
        install(session, release=release, dry_run=True)
    return caught.value.hint


def test_a_channel_that_has_a_fitting_build_is_offered(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    publish(folder_shop, "b1", "cpu", "other")
    publish(folder_shop, "b2", "cuda")
    session = on(folder_shop, tmp_path / "home", WITHOUT_GPU)
    hint = hint_of(session)
    assert hint.endswith(f"install --release b1 --channel other --repository {NAME}")
    assert followed(session, hint) == "cpu"


def test_an_older_release_is_offered_for_a_named_one_that_does_not_fit(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    publish(folder_shop, "b1", "cpu")
    publish(folder_shop, "b2", "cuda")
    session = on(folder_shop, tmp_path / "home", WITHOUT_GPU)
    hint = hint_of(session, "b2")
    assert "--release b1 --channel stable" in hint
    assert followed(session, hint) == "cpu"


def test_a_release_that_fits_keeps_the_requested_backend(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    publish(folder_shop, "b1", "cuda", "other")
    publish(folder_shop, "b2", "cpu")
    machine = SNAPSHOTS / "rtx-5080-driver-575.json"
    session = on(folder_shop, tmp_path / "home", machine, backend="gpu")
    hint = hint_of(session)
    first, second = hint.split("; or: ")
    assert "--channel other --backend gpu" in first
    assert followed(session, first) == "cuda"
    assert followed(session, second) == "cpu"


def test_a_backend_that_fits_is_offered_where_no_release_has_the_requested_one(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    publish(folder_shop, "b1", "cpu")
    session = on(folder_shop, tmp_path / "home", WITHOUT_GPU, backend="gpu")
    hint = hint_of(session)
    assert hint.endswith("tsuku-llm install --backend cpu")
    assert followed(session, hint) == "cpu"


def test_a_revoked_release_is_not_offered(folder_shop: FolderShop, tmp_path: Path) -> None:
    build = folder_shop.variant(folder_shop.packed("b1-cpu"))
    platform = {"default": "cpu", "preference": {}, "variants": {"cpu": build}}
    revoked = release_document("b1", platforms={"linux-amd64": platform}, revoked=True)
    folder_shop.simulator.publish(revoked, channels=("other",))
    publish(folder_shop, "b2", "cuda")
    session = on(folder_shop, tmp_path / "home", WITHOUT_GPU)
    assert "b1" not in hint_of(session)


def test_a_release_for_the_platform_is_offered_with_its_repository(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    build = folder_shop.variant(folder_shop.packed("b1-cpu"))
    platform = {"default": "cpu", "preference": {}, "variants": {"cpu": build}}
    document = release_document("b1", platforms={"linux-riscv64": platform})
    folder_shop.simulator.publish(document, channels=("stable",))
    publish(folder_shop, "b2", "cpu")
    session = on(folder_shop, tmp_path / "home", riscv(tmp_path))
    with pytest.raises(UnknownRequest) as caught:
        install(session, release="b2", dry_run=True)
    assert caught.value.hint == f"tsuku-llm install --release b1 --repository {NAME}"
    assert followed(session, caught.value.hint) == "cpu"


def test_a_platform_without_builds_is_told_that_nothing_helps(
    folder_shop: FolderShop, tmp_path: Path
) -> None:
    publish(folder_shop, "b1", "cpu")
    with pytest.raises(UnknownRequest) as caught:
        install(on(folder_shop, tmp_path / "home", riscv(tmp_path)), dry_run=True)
    assert caught.value.hint == (
        f"nothing here changes that: no release of {NAME} is for linux-riscv64"
    )


GLIBC = {"glibc": "9.9"}
AMPERE = {"cuda": {"toolkit": "13.4", "sass": ["8.0"], "ptx": []}}


@pytest.mark.parametrize(
    ("machine", "backend", "requires", "command"),
    [
        ("debian-12-vm-no-gpu", "cpu", GLIBC, "install --from-source"),
        ("rtx-3090-ubuntu-22.04", "cuda", GLIBC, "install --from-source --backend cuda"),
        ("gtx-1080-ti-driver-550", "cuda", AMPERE, "install --from-source --backend cuda"),
        # No driver shows a GPU, and Windows: a compiled build would not help either.
        ("debian-12-vm-no-gpu", "cuda", GLIBC, None),
        ("windows-without-vcruntime", "cpu", {"vcruntime": "14.0"}, None),
    ],
)
def test_a_build_is_compiled_where_that_helps_and_no_signed_one_fits(
    folder_shop: FolderShop,
    tmp_path: Path,
    machine: str,
    backend: str,
    requires: dict[str, object],
    command: str | None,
) -> None:
    host = ReplayHost.load(SNAPSHOTS / f"{machine}.json")
    # A recorded machine is not this one, and nothing is compiled for it.
    hardware = replace(probe(host), simulated=None)
    build = folder_shop.variant(folder_shop.packed("b1"), backend=backend) | {"requires": requires}
    platform = {"default": backend, "preference": {}, "variants": {backend: build}}
    document = release_document("b1", platforms={hardware.platform: platform})
    folder_shop.simulator.publish(document, channels=("stable",))
    folder_shop.write()
    word = "auto" if backend == "cpu" else backend
    session = changed(folder_shop.session(tmp_path / "home"), backend=word)
    refresh(session, patience=5)
    for asked in (hardware, probe(host)):
        with pytest.raises(SelectionError) as caught:
            required(session, choose(session, hardware=asked))
        offers = command is not None and asked is hardware
        assert ("--from-source" in caught.value.hint) == offers
        if offers:
            assert caught.value.hint.endswith(f"tsuku-llm {command}")


# --- what is installed -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "undo"),
    [
        ({}, "tsuku-llm config set llm.backend auto"),
        ({"TSUKU_LLM_BACKEND": "cuda"}, "unset TSUKU_LLM_BACKEND"),
    ],
)
def test_a_backend_that_is_not_installed_leads_to_what_is(
    folder_shop: FolderShop, tmp_path: Path, environ: dict[str, str], undo: str
) -> None:
    session = on(folder_shop, tmp_path / "home", WITHOUT_GPU, backend="cuda", environ=environ)
    put(Store(session.paths.data))
    with pytest.raises(NotInstalled) as caught:
        requested_version(session)
    assert caught.value.hint == (
        f"run: tsuku-llm install --backend cuda; or use what is installed: {undo}"
    )


# --- a repository that cannot be reached -----------------------------------------------------


@pytest.mark.parametrize(
    ("repository", "url", "words"),
    [
        (None, None, f"for other ways see {WAYS_OUT}"),
        (
            None,
            "https://a.invalid/",
            f"tsuku-llm config unset llm.repository_url; or see {WAYS_OUT}",
        ),
        (NAME, None, f"tsuku-llm repository add {NAME} URL --root FILE"),
    ],
)
def test_a_proxy_in_the_way_names_what_moves_the_repository(
    folder_shop: FolderShop, tmp_path: Path, repository: str | None, url: str | None, words: str
) -> None:
    publish(folder_shop, "b1", "cpu")
    session = folder_shop.session(tmp_path / "home")
    # Nothing listens at port 1; the name is never resolved, as a proxy would do that.
    proxy = {"HTTPS_PROXY": "http://127.0.0.1:1"}
    moved = changed(
        session,
        now=NOW,
        environ=proxy,
        repository=repository,
        repository_url=(url,) if url else (),
        mirror=(),
    )
    if repository:
        file = session.paths.data / "metadata" / NAME / "repository.json"
        document = json.loads(file.read_text()) | {"url": "https://a.invalid/"}
        file.write_text(json.dumps(document))
    with pytest.raises(ProxyError) as caught:
        refresh(moved, patience=5)
    assert caught.value.hint.endswith(words)


@pytest.mark.parametrize("mirror", [(), ("https://mirror.invalid/",)])
@pytest.mark.parametrize("url", [None, "https://127.0.0.1:1/", "file:///nonexistent/copy/"])
def test_a_repository_that_does_not_answer_never_names_what_is_set_already(
    folder_shop: FolderShop, tmp_path: Path, url: str | None, mirror: tuple[str, ...]
) -> None:
    # Nothing listens at port 1; without a URL the proxy is in the way of the official host.
    environ = {} if url else {"HTTPS_PROXY": "http://127.0.0.1:1"}
    session = changed(
        folder_shop.session(tmp_path / "home"),
        now=NOW,
        environ=environ,
        repository=None,
        repository_url=(url,) if url else (),
        mirror=mirror,
    )
    with pytest.raises(DownloadError) as caught:
        refresh(session, patience=5)
    hint = caught.value.hint
    # With a mirror, nothing else was asked: its operator and a page are behind the same proxy.
    mirrored = bool(mirror) and url is None
    assert ("HTTPS_PROXY" in hint) == (url is None)
    assert (WAYS_OUT in hint) != mirrored
    assert "llm.mirror" not in hint
    assert "tsuku-llm mirror DIR" not in hint
    # A copy may have no updater, and no package may have the metadata.
    assert "self-update" not in hint
    assert "pkg:" not in hint
    assert ("config unset llm.repository_url" in hint) == (url is not None)
    assert ("check that the whole repository lies in" in hint) == str(url).startswith("file:")
