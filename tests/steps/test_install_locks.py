"""What an install needs no lock for, and what a refused one leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from support.archives import Tar, tar_gz
from support.folder_shop import FolderShop
from support.http_faults import Exchange, FaultServer
from support.processes import gone, only_child
from support.release_server import NAME
from support.stored import snapshot

from tsuku_llm.ground.errors import UnsafeArchive
from tsuku_llm.steps.install.install import install
from tsuku_llm.steps.install.maintenance import use
from tsuku_llm.steps.metadata.refresh import refresh

pytestmark = pytest.mark.skipif(os.name != "posix", reason="stand-ins in C, POSIX signals")


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    shop = FolderShop(tmp_path / "shop")
    shop.publish("b1", {"cpu": shop.variant(shop.stand_in("b1-cpu"))})
    return shop


def test_S07_an_active_intact_version_needs_no_lock(shop: FolderShop, tmp_path: Path) -> None:
    session = shop.session(tmp_path / "home", backend="cpu")
    first = install(session).installed
    assert first
    impatient = session.with_settings(lock_timeout=0.0)
    before = snapshot(session.paths.data)
    with ExitStack() as held:
        for name in (first.id, "active"):
            held.enter_context(session.store.lock(name))
        assert install(impatient).outcome == "unchanged"
        assert use(impatient, "b1") == first
    assert snapshot(session.paths.data) == before


def test_S21_a_refused_archive_is_removed(shop: FolderShop, tmp_path: Path) -> None:
    packed = shop.stand_in("b2-cpu")
    packed.path.write_bytes(tar_gz([Tar(name="../evil", data=b"x")]))
    data = packed.path.read_bytes()
    evil = replace(packed, sha256=sha256(data).hexdigest(), size=len(data), pieces=None)
    shop.publish("b2", {"cpu": shop.variant(evil)})
    session = shop.session(tmp_path / "home", backend="cpu")
    with pytest.raises(UnsafeArchive):
        install(session)
    assert list((session.paths.data / "partials").iterdir()) == []
    assert list((session.paths.data / "staging").iterdir()) == []


FETCH = """
import os, sys
from pathlib import Path
from tsuku_llm.fetch import Network, fetch
from tsuku_llm.catalog.manifest import Artifact
a = Artifact(url=sys.argv[1], sha256="0" * 64, format="wheel")
with Network(os.environ) as network:
    fetch(a, Path(sys.argv[2]), network)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc knows the children")
def test_S04_pip_ends_if_its_parent_is_killed(tmp_path: Path) -> None:
    pip: list[int] = []

    def kill(exchange: Exchange) -> None:
        pip.append(only_child(child.pid))
        child.kill()
        exchange.hang()

    url = "pkg:pypi/tsuku-test-server@1.2.3?file_name=tsuku_test_server-1.2.3-py3-none-any.whl"
    with FaultServer([kill]) as server:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "TSUKU_"))}
        settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"{server.url}/simple"}
        with subprocess.Popen(
            [sys.executable, "-c", FETCH, url, str(tmp_path / "partials")],
            env={**kept, **settings},
        ) as child:
            child.wait()
        assert gone(*pip)


def test_a_variant_that_a_release_gains_later_is_tried(shop: FolderShop, tmp_path: Path) -> None:
    """The receipt of the active version cannot say why the new variant was passed over."""
    session = shop.session(tmp_path / "home")
    first = install(session)
    assert first.candidate.variant.name == "cpu"
    # The same build under two names: that is enough for another version.
    again = shop.variant(shop.packed("b1-again"))
    shop.publish("b1", {"better": again, "cpu": again})
    refresh(session.with_settings(repository=NAME))
    second = install(session)
    assert (second.outcome, second.candidate.variant.name) == ("installed", "better")
