"""The version that ``serve`` starts for a request: an installed one, or one that is offered."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import stored
from support.folder_shop import FolderShop
from support.release_server import NAME
from support.stored import make_receipt

from tsuku_llm.ground.errors import NotInstalled, UnknownRequest
from tsuku_llm.machine.backends import AMD, INTEL, NVIDIA
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.steps.choosing.which import meets
from tsuku_llm.steps.install.install import install
from tsuku_llm.steps.metadata.refresh import refresh
from tsuku_llm.steps.serve.fallback import LARGE, wanted_version
from tsuku_llm.steps.session import Session
from tsuku_llm.store.records.installed import Installed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")


@dataclass
class Asked:
    """A user who answers every question in the same way."""

    answer: bool = True
    questions: list[str] = field(default_factory=list)

    def __call__(self, question: str) -> bool:
        self.questions.append(question)
        return self.answer


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    """A shop with two builds for the processor: only their names differ."""
    shop = FolderShop(tmp_path / "shop")
    publish(shop, "b1")
    return shop


def publish(shop: FolderShop, tag: str, before: Mapping[str, Any] | None = None) -> None:
    """A release with two builds for the processor, behind those of ``before``."""
    names = ("cpu", "cpu-tuned")
    builds = {name: shop.variant(shop.packed(f"{tag}-{name}")) for name in names}
    shop.publish(tag, {**(before or {}), **builds})


def installed_in(home: Path, shop: FolderShop, *names: str) -> None:
    """Install these variants; the last one is the active one."""
    for name in names:
        install(shop.session(home, backend=name))


def wanted(shop: FolderShop, home: Path, backend: str, **changes: object) -> Installed:
    return wanted_version(shop.session(home, backend=backend, **changes))


def active(session: Session) -> str:
    found = session.reader.active()
    assert found
    return found.receipt.variant


# --- what is installed -----------------------------------------------------------------------


def test_an_installed_variant_is_used_without_a_question(shop: FolderShop, tmp_path: Path) -> None:
    home = tmp_path / "home"
    installed_in(home, shop, "cpu-tuned", "cpu")
    user = Asked()
    assert wanted(shop, home, "cpu-tuned", ask=user).receipt.variant == "cpu-tuned"
    assert wanted(shop, home, "auto", ask=user).receipt.variant == "cpu"
    assert user.questions == []


def test_another_variant_comes_from_the_release_in_use_or_from_the_newest(
    shop: FolderShop, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    installed_in(home, shop, "cpu-tuned")
    for tag in ("b3", "b2"):
        publish(shop, tag)
        session = shop.session(home, backend="cpu-tuned", refresh="always")
        install(session, release=tag)
    # b2 is in use, by another variant: b3 is newer, and b2 is what the user moved to.
    install(shop.session(home, backend="cpu"), release="b2")
    assert wanted(shop, home, "cpu-tuned").receipt.release == "b2"
    install(shop.session(home, backend="cpu"), release="b1")
    shop.session(home).store.remove(wanted(shop, home, "cpu-tuned").id)
    assert wanted(shop, home, "cpu-tuned").receipt.release == "b3"


# --- what is offered -------------------------------------------------------------------------


def test_a_missing_variant_is_offered_with_its_size_and_the_active_one_stays(
    shop: FolderShop, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    installed_in(home, shop, "cpu")
    publish(shop, "b2")
    user = Asked()
    found = wanted(shop, home, "cpu-tuned", ask=user)
    assert (found.receipt.variant, found.receipt.release) == ("cpu-tuned", "b1")
    (question,) = user.questions
    assert question == (
        "the backend cpu-tuned is requested, and cpu is installed. "
        "Install cpu-tuned (a download of 0.0 MB)?"
    )
    assert active(shop.session(home)) == "cpu"
    assert wanted(shop, home, "cpu-tuned", ask=user) == found
    assert len(user.questions) == 1


@pytest.mark.parametrize("backend", ["cpu-tuned", "CPU-Tuned"])
def test_without_a_yes_nothing_is_installed(shop: FolderShop, tmp_path: Path, backend: str) -> None:
    home = tmp_path / "home"
    installed_in(home, shop, "cpu")
    with pytest.raises(NotInstalled) as caught:
        wanted(shop, home, backend, ask=Asked(answer=False))
    assert str(caught.value.hint).startswith(f"run: tsuku-llm install --backend {backend}; or ")
    assert len(shop.session(home).reader.installed()) == 1


def test_with_fallback_auto_only_a_large_download_needs_a_yes(tmp_path: Path) -> None:
    shop, home = FolderShop(tmp_path / "shop"), tmp_path / "home"
    large = shop.variant(shop.packed("large"))
    large["artifacts"][0]["size"] = LARGE + 1
    del large["artifacts"][0]["pieces"]
    publish(shop, "b1", before={"large": large})
    install(shop.session(home, backend="cpu-tuned", refresh="always"))
    user = Asked(answer=False)
    with pytest.raises(NotInstalled):
        wanted(shop, home, "large", fallback="auto", ask=user)
    (question,) = user.questions
    assert question.endswith("Install large (a download of 100 MB)?")
    user.questions.clear()
    shop.session(home).store.remove(wanted(shop, home, "auto").id)
    stored.install(shop.session(home).store, "b1", "vulkan", backend="vulkan", repository=NAME)
    found = wanted(shop, home, "cpu-tuned", fallback="auto", ask=user)
    assert (found.receipt.variant, user.questions) == ("cpu-tuned", [])


def test_a_first_start_with_a_request_installs_it_as_the_active_one(
    shop: FolderShop, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    user = Asked()
    assert wanted(shop, home, "cpu-tuned", ask=user).receipt.variant == "cpu-tuned"
    assert user.questions[0].startswith("nothing is installed yet. Install cpu-tuned (")
    assert active(shop.session(home)) == "cpu-tuned"


def test_a_first_start_without_a_request_offers_what_install_chooses(
    shop: FolderShop, tmp_path: Path
) -> None:
    user = Asked()
    assert wanted(shop, tmp_path / "home", "auto", ask=user).receipt.variant == "cpu"
    question = "nothing is installed yet. Install the build that fits this machine?"
    assert user.questions == [question]
    assert active(shop.session(tmp_path / "home")) == "cpu"
    user = Asked(answer=False)
    with pytest.raises(NotInstalled, match="nothing is installed yet"):
        wanted(shop, tmp_path / "other", "auto", ask=user)
    assert user.questions == [question]


def test_a_word_that_nothing_has_gets_the_most_similar_one(
    shop: FolderShop, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    installed_in(home, shop, "cpu")
    with pytest.raises(UnknownRequest) as caught:
        wanted(shop, home, "cpu-tuneed")
    assert caught.value.hint == "did you mean cpu-tuned?"


def test_a_backend_that_does_not_fit_is_refused_with_its_reason(
    shop: FolderShop, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    installed_in(home, shop, "cpu")
    publish(shop, "b1", before={"vulkan": shop.variant(shop.packed("v"), backend="vulkan")})
    user = Asked()
    session = shop.session(home, backend="vulkan", ask=user, host=ReplayHost.load(BARE))
    refresh(session)
    with pytest.raises(NotInstalled) as caught:
        wanted_version(session)
    assert caught.value.message == "the backend vulkan is requested, and cpu is installed"
    assert caught.value.facts == ("vulkan: the Vulkan loader is not installed",)
    assert str(caught.value.hint).endswith(
        "; or use cpu, which is installed: tsuku-llm config set llm.backend auto"
    )
    with pytest.raises(NotInstalled) as caught:
        wanted(shop, home, "hip", ask=user)
    assert caught.value.facts == ("b1 has no build for rocm on linux-amd64",)
    assert user.questions == []


def test_a_maker_without_a_gpu_here_is_refused_with_that_reason(
    shop: FolderShop, tmp_path: Path
) -> None:
    """There is a build for the GPUs of this maker; the machine has only another maker's."""
    home = tmp_path / "home"
    publish(shop, "b1", before={"vulkan": shop.variant(shop.packed("v"), backend="vulkan")})
    machine = ReplayHost.load(BARE.with_name("h200-working-vulkan.json"))
    session = shop.session(home, backend="intel", ask=Asked(), host=machine)
    refresh(session)
    with pytest.raises(NotInstalled) as caught:
        wanted_version(session)
    assert caught.value.facts == (
        "vulkan: intel was requested, the Vulkan loader lists no such GPU",
    )


def test_if_it_does_not_run_the_next_one_is_offered(tmp_path: Path) -> None:
    shop, home = FolderShop(tmp_path / "shop"), tmp_path / "home"
    broken = shop.stand_in("broken", version=("err it is broken", "kill 6"))
    publish(shop, "b1", before={"broken": shop.variant(broken)})
    session = shop.session(home)
    stored.install(session.store, "b1", "vulkan", backend="vulkan", repository=NAME)
    user = Asked()
    assert wanted(shop, home, "cpu", ask=user, refresh="always").receipt.variant == "cpu"
    assert [question.split("Install ")[1].split(" ")[0] for question in user.questions] == [
        "broken",
        "cpu",
    ]


def test_a_no_ends_the_questions(tmp_path: Path) -> None:
    shop, home = FolderShop(tmp_path / "shop"), tmp_path / "home"
    publish(shop, "b1")
    session = shop.session(home)
    stored.install(session.store, "b1", "vulkan", backend="vulkan", repository=NAME)
    user = Asked(answer=False)
    with pytest.raises(NotInstalled):
        wanted(shop, home, "cpu", ask=user, refresh="always")
    assert len(user.questions) == 1


# --- what meets a request --------------------------------------------------------------------


def receipt_of(backend: str, *vendors: int | None, requested: str = "auto") -> Any:
    gpus = [{"vendor_id": vendor, "kind": "discrete"} for vendor in vendors]
    software = {"vendor_id": 0x10005, "kind": "software"}
    apis = [{"name": "vulkan", "gpus": [*gpus, software]}, {"name": "cuda", "gpus": []}]
    return make_receipt(
        variant=f"{backend}-1", backend=backend, requested=requested, hardware={"apis": apis}
    )


@pytest.mark.parametrize(
    ("backend", "vendors", "word", "met"),
    [
        ("rocm", (), "hip", True),
        ("rocm", (), "AMD", True),
        ("rocm", (), "nvidia", False),
        ("cpu", (), "intel", False),
        ("vulkan", (NVIDIA,), "nvidia", True),
        ("vulkan", (NVIDIA, NVIDIA), "NVIDIA", True),
        ("vulkan", (NVIDIA, AMD), "nvidia", False),
        ("vulkan", (), "intel", False),
        ("vulkan", (None,), "intel", False),
        ("vulkan", (INTEL,), "vulkan-1", True),
        ("sycl", (), "oneapi", True),
        ("vulkan", (AMD,), "gpu", True),
    ],
)
def test_a_receipt_meets_the_words_of_a_request(
    backend: str, vendors: tuple[int | None, ...], word: str, *, met: bool
) -> None:
    assert meets(receipt_of(backend, *vendors), word) is met


def test_a_build_for_all_makers_meets_the_one_that_it_was_installed_for() -> None:
    assert meets(receipt_of("vulkan", NVIDIA, AMD, requested="amd"), "amd")
    assert not meets(receipt_of("vulkan", NVIDIA, AMD, requested="amd"), "nvidia")


def test_a_receipt_of_an_older_program_meets_no_maker() -> None:
    assert not meets(make_receipt(variant="vulkan", backend="vulkan"), "nvidia")


# --- the same build for the GPUs of another maker --------------------------------------------

BARE = Path(__file__).parents[1] / "snapshots" / "container-without-gpus.json"
HYBRID = Path(__file__).parents[1] / "snapshots" / "hybrid-intel-and-nvidia.json"
BOTH = (
    "out Available devices:",
    "out   Vulkan0: Intel(R) Iris(R) Xe Graphics (RPL-P) (24576 MiB, 20000 MiB free)",
    "out   Vulkan1: NVIDIA GeForce RTX 4060 Laptop GPU (8188 MiB, 8000 MiB free)",
)


def test_an_installed_build_gets_the_devices_of_the_maker_that_is_requested_now(
    tmp_path: Path,
) -> None:
    shop, home = FolderShop(tmp_path / "shop"), tmp_path / "home"
    build = shop.variant(shop.stand_in("v", devices=BOTH), backend="vulkan")
    shop.publish("b1", {"vulkan": build, "cpu": shop.variant(shop.packed("c"))})
    found = []
    for word in ("auto", "intel", "intel", "nvidia", "auto"):
        session = shop.session(home, backend=word, host=ReplayHost.load(HYBRID))
        installed = install(session).installed
        assert installed
        found.append((installed.receipt.requested, installed.receipt.device))
    assert found == [
        ("auto", "Vulkan1"),
        ("intel", "Vulkan0"),
        ("intel", "Vulkan0"),
        ("nvidia", "Vulkan1"),
        ("auto", "Vulkan1"),
    ]
    assert len(session.reader.installed()) == 1
    user = Asked()
    session = shop.session(home, backend="intel", host=ReplayHost.load(HYBRID), ask=user)
    assert wanted_version(session).receipt.device == "Vulkan0"
    assert len(user.questions) == 1
