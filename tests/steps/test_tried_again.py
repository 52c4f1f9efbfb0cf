"""An installed build that is tried again: its answers may be wrong since a driver was exchanged.

Such reports: only "####" with a new driver of NVIDIA, cured by the one before (ollama issue 1881);
garbage on one of two cards of a machine (KoboldCpp issue 1826), or with one runtime on cards that
were right with another (LM Studio issue 1821), right on the processor (llama.cpp issue 17106).

A variable of the driver stands for the other driver: it is one of the facts that are compared.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.builds import VULKAN_STEPS
from support.convergence import H200
from support.folder_shop import FolderShop, Notes
from support.sessions import changed

from tsuku_llm.ground.errors import GateFailed, NotInstalled, SelectionError
from tsuku_llm.launch.plan.fingerprint import choice_digest, driver_fingerprint
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.steps.install.install import install, keep_choice
from tsuku_llm.steps.install.own_build import install_own
from tsuku_llm.steps.install.update import UpToDate, check_update, update
from tsuku_llm.steps.install.verify import ComputedNow, verify
from tsuku_llm.steps.servers.unattended import unattended_update
from tsuku_llm.steps.session import Session
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.updates import read_journal, read_marks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

OTHER, WRONG = "MESA_OTHER_DRIVER", "MESA_WRONG_DRIVER"
LOOKED = "its answers are checked again"


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    return FolderShop(tmp_path / "shop")


def offer(shop: FolderShop, tag: str, *names: str, kind: str = "nan") -> None:
    """Publish builds; the one for Vulkan answers wrongly with the wrong driver."""
    variants = {}
    for name in names:
        steps: dict[str, Any] = {}
        if name == "vulkan":
            steps = {
                "backend": name,
                "devices": VULKAN_STEPS,
                "compute": (f"answers-with {WRONG} {kind}", "listen"),
            }
        packed = shop.stand_in(f"{tag}-{name}", **steps)
        variants[name] = shop.variant(packed, backend=name)
    shop.publish(tag, variants)


def user(shop: FolderShop, tmp_path: Path, **more: Any) -> Session:
    host = ReplayHost.load(H200)
    return shop.session(tmp_path / "home", host=host, refresh="always", agreed=True, **more)


def driven_by(session: Session, name: str) -> Session:
    """The same machine with another driver."""
    return changed(session, environ={**session.machine.environ, name: "1"}, note=Notes())


def told(session: Session) -> str:
    note = session.user.note
    assert isinstance(note, Notes)
    return "\n".join(note)


def active(session: Session) -> Installed:
    found = session.reader.active()
    assert found
    return found


def digest(session: Session) -> str:
    return choice_digest(driver_fingerprint(session.machine.environ))


def test_an_install_looks_again_once_after_a_change(shop: FolderShop, tmp_path: Path) -> None:
    offer(shop, "b1", "vulkan", "cpu")
    session = user(shop, tmp_path)
    install(session)
    assert active(session).receipt.computed_on == digest(session)
    assert install(session).outcome == "unchanged"
    assert LOOKED not in told(session)
    other = driven_by(session, OTHER)
    report = install(other)
    assert (report.outcome, LOOKED in told(other)) == ("unchanged", True)
    assert report.installed == active(other)
    assert active(other).receipt.computed_on == digest(other)
    assert active(other).receipt.deviation == 0
    again = driven_by(session, OTHER)
    install(again)
    assert LOOKED not in told(again)


def test_an_install_takes_the_next_variant_if_the_active_one_has_become_wrong(
    shop: FolderShop, tmp_path: Path
) -> None:
    offer(shop, "b1", "vulkan", "cpu")
    session = user(shop, tmp_path)
    install(session)
    wrong = driven_by(session, WRONG)
    report = install(wrong)
    assert report.outcome == "installed"
    assert active(wrong).receipt.variant == "cpu"
    assert "the vulkan build does not compute here" in active(wrong).receipt.reasons["vulkan"]
    # It is here, and with the right driver it can be chosen again.
    assert {each.receipt.variant for each in session.reader.installed()} == {"vulkan", "cpu"}
    assert install(session, force=True).candidate.variant.name == "vulkan"


def test_without_another_variant_the_wrong_one_is_told_and_stays(
    shop: FolderShop, tmp_path: Path
) -> None:
    offer(shop, "b1", "vulkan")
    session = user(shop, tmp_path)
    install(session)
    before = active(session)
    with pytest.raises(SelectionError) as caught:
        install(driven_by(session, WRONG))
    assert "does not compute here" in caught.value.facts[0]
    assert active(session) == before


def test_a_version_from_before_a_change_is_tried_before_the_switch(
    shop: FolderShop, tmp_path: Path
) -> None:
    offer(shop, "b1", "vulkan")
    session = user(shop, tmp_path)
    install(session)
    offer(shop, "b2", "cpu")
    assert install(session).outcome == "installed"
    with pytest.raises(SelectionError, match="failed to start"):
        install(driven_by(session, WRONG), release="b1")
    assert active(session).receipt.release == "b2"
    assert install(driven_by(session, OTHER), release="b1").outcome == "installed"


def test_an_update_without_news_looks_again_and_moves_nothing(
    shop: FolderShop, tmp_path: Path
) -> None:
    offer(shop, "b1", "vulkan", "cpu")
    session = user(shop, tmp_path)
    install(session)
    other = driven_by(session, OTHER)
    assert isinstance(update(other), UpToDate)
    assert active(other).receipt.computed_on == digest(other)
    wrong = driven_by(session, WRONG)
    with pytest.raises(GateFailed, match="its answers are wrong completely") as caught:
        update(wrong)
    assert caught.value.hint.endswith("the next variant that computes rightly: tsuku-llm install")
    assert active(wrong).receipt.variant == "vulkan"
    # A look changes nothing, and starts nothing.
    check_update(wrong)


def test_an_unattended_update_ends_with_the_error_and_marks_no_release(
    shop: FolderShop, tmp_path: Path
) -> None:
    offer(shop, "b1", "vulkan", "cpu")
    session = user(shop, tmp_path)
    install(session)
    with pytest.raises(GateFailed, match="does not compute here"):
        unattended_update(driven_by(session, WRONG))
    assert not read_marks(session.paths.data)
    assert read_journal(session.paths.data) is None
    assert active(session).receipt.variant == "vulkan"
    assert unattended_update(driven_by(session, OTHER)).outcome.value == "unchanged"


def test_an_update_tries_the_new_build_on_the_driver_of_now(
    shop: FolderShop, tmp_path: Path
) -> None:
    offer(shop, "b1", "vulkan")
    session = user(shop, tmp_path)
    install(session)
    offer(shop, "b2", "vulkan")
    with pytest.raises(SelectionError, match="failed to start"):
        update(driven_by(session, WRONG))
    assert active(session).receipt.release == "b1"


def test_a_start_that_keeps_its_choice_does_not_compute(shop: FolderShop, tmp_path: Path) -> None:
    offer(shop, "b1", "vulkan")
    session = user(shop, tmp_path)
    install(session)
    wrong = driven_by(session, WRONG)
    keep_choice(wrong, check_update(wrong).choice)
    receipt = active(wrong).receipt
    # The choice is of now, and the next install knows that the answers are not.
    assert (receipt.drivers, receipt.computed_on) == (digest(wrong), digest(session))


def test_a_build_of_ones_own_is_tried_again(shop: FolderShop, tmp_path: Path) -> None:
    offer(shop, "b1", "vulkan")
    session = user(shop, tmp_path)
    path = tmp_path / "builds" / "b1-vulkan"
    install_own(session, path)
    assert install_own(driven_by(session, OTHER), path).outcome == "unchanged"
    assert active(session).receipt.computed_on == digest(driven_by(session, OTHER))
    with pytest.raises(GateFailed, match="does not compute here"):
        install_own(driven_by(session, WRONG), path)
    with pytest.raises(GateFailed, match="does not compute here"):
        update(driven_by(session, WRONG))


# --- verify --compute ----------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "most"), [("nan", None), ("repeated", 100.0)])
def test_verify_computes_with_the_active_version_and_has_the_deviation(
    shop: FolderShop, tmp_path: Path, kind: str, most: float | None
) -> None:
    offer(shop, "b1", "vulkan", kind=kind)
    session = user(shop, tmp_path)
    with pytest.raises(NotInstalled, match="no version is active"):
        verify(session, compute=True)
    install(session)
    assert verify(session)[0].computed is None
    assert verify(session, compute=True)[0].computed == ComputedNow(0.0)
    (found,) = verify(driven_by(session, WRONG), compute=True)
    assert found.intact
    assert found.computed
    assert found.computed.failure
    assert "does not compute here" in found.computed.failure.message
    deviation = found.computed.deviation
    assert (deviation is None) if most is None else (deviation and 0.1 < deviation < most)


def test_only_the_active_or_the_named_version_computes(shop: FolderShop, tmp_path: Path) -> None:
    offer(shop, "b1", "vulkan")
    session = user(shop, tmp_path)
    install(session)
    offer(shop, "b2", "cpu")
    install(session)
    wrong = driven_by(session, WRONG)
    computed = {each.id[:2]: each.computed for each in verify(wrong, compute=True)}
    assert computed == {"b1": None, "b2": ComputedNow(0.0)}
    (found,) = verify(wrong, ["b1"], compute=True)
    assert found.computed
    assert found.computed.failure


def test_the_command_tells_what_is_wrong_and_ends_as_a_failed_gate(
    shop: FolderShop, tmp_path: Path
) -> None:
    offer(shop, "b1", "vulkan", kind="repeated")
    install(user(shop, tmp_path))
    person = shop.user(tmp_path / "home")
    done = person.run("verify", "--compute")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.endswith("\n  computes rightly here, within 0.0%\n")
    done = person.run("verify", "--compute", "--json", **{WRONG: "1"})
    assert (done.code, done.document["error"]["code"]) == (GateFailed.exit_code, "gate-failed")
    computed = done.document["data"]["versions"][0]["computed"]
    assert 0.1 < computed["deviation"] < 100
    assert computed["failure"]["code"] == "gate-failed"
    done = person.run("verify", "--compute", **{WRONG: "1"})
    assert done.code == GateFailed.exit_code
    assert "  the vulkan build does not compute here: its answers are wrong by" in done.stdout
    assert "update the driver, or install another release" in done.stdout


def test_install_and_doctor_have_the_deviation(shop: FolderShop, tmp_path: Path) -> None:
    offer(shop, "b1", "cpu")
    install(user(shop, tmp_path))
    person = shop.user(tmp_path / "home")
    installed = person.run("install", "--json", **{OTHER: "1"}).document["data"]["installed"]
    assert (installed["deviation"], installed["not_computed"]) == (0.0, "")
    found = person.run("doctor", "--json").document["data"]
    assert (found["deviation"], found["not_computed"]) == (0.0, "")


def test_a_changed_build_is_not_run(shop: FolderShop, tmp_path: Path) -> None:
    offer(shop, "b1", "cpu")
    session = user(shop, tmp_path)
    install(session)
    library = active(session).tree / "padding"
    library.chmod(0o644)
    library.write_text("other content")
    (found,) = verify(session, compute=True)
    assert found.computed == ComputedNow(None, "its files are not as they were installed")
    assert not found.intact
