"""The move to a better build on a machine that is not as it was when the last one was chosen.

``serve`` calls this before a start, for a version that was chosen in a temporary state, or for
other drivers or devices.
"""

from __future__ import annotations

from contextlib import suppress

from tsuku_llm.ground.errors import StoreError, TsukuError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.machine.hardware import Hardware
from tsuku_llm.probe import probe
from tsuku_llm.steps.choosing.choice import choose_like, refuse_revoked
from tsuku_llm.steps.choosing.temporary import Withheld, is_set, over, told_moved
from tsuku_llm.steps.drivers.state_notes import StateNotes
from tsuku_llm.steps.install.downloads import cost, left_to_download
from tsuku_llm.steps.install.install import better_than, install_choice, is_about, keep_choice
from tsuku_llm.steps.serve.fallback import must_ask
from tsuku_llm.steps.session import Session
from tsuku_llm.store.records.installed import Installed


def recovered(
    session: Session,
    notes: StateNotes,
    active: Installed,
    states: tuple[Withheld, ...],
    *,
    changed: bool,
) -> Installed:
    """Return the version to start: ``active``, or a better one that fits the machine now.

    ``states`` are the temporary ones in which it was chosen, and ``changed`` tells that it was
    chosen for other drivers or devices.

    The move needs the user's consent as ``llm.fallback`` says; ``off`` only prints a note. The
    better version becomes the active one. A state that still holds is printed. If nothing can be
    installed, print a note and return ``active``.
    """
    environ = session.machine.environ
    limit = session.settings.probe_timeout
    # Without a change of the drivers, two are not asked again at a start: one that did not answer
    # within the same limit, which would cost that time, and one beside a GPU's build that works. A
    # variable that is still set needs no question either.
    on_gpu = active.receipt.backend != "cpu"
    known = notes.still_withheld(active.id, limit)
    gone: tuple[Withheld, ...] = ()
    asks = (changed and not known) or not all(
        is_set(each, environ) or (known and (each.waits or on_gpu)) for each in states
    )
    if asks:
        hardware = probe(session.machine.host, limit)
        gone = over(states, hardware, environ)
        try:
            instead = _better(session, active, hardware, gone) if gone or changed else None
        except TsukuError as error:
            session.user.note(f"a better build cannot be installed: {error.message}")
            return active
        if instead:
            return instead
    # A variable is the user's own decision: it needs no warning.
    lasting = [each for each in states if each not in gone and each.api is not None]
    if asks and (lasting or changed):
        notes.keep_withheld(active.id, limit)
    # A GPU's build may well be the best one in any case.
    for each in () if on_gpu else lasting:
        name = active.receipt.variant
        session.user.note(f"warning: {name} was chosen because: {each.text}; {each.fix}")
    return active


def _better(
    session: Session, active: Installed, hardware: Hardware, gone: tuple[Withheld, ...]
) -> Installed | None:
    """Return the better version, installed and active; None without one or without consent."""
    request = active.receipt.requested
    choice = choose_like(session.with_settings(backend=request), active, hardware=hardware)
    if not is_about(choice, active):
        return None
    better = better_than(session.reader, session.machine.environ, choice, active)
    if better is None:
        fits = choice.selection.candidate(active.receipt.variant) is not None
        if fits and not any(problem.transient for problem in hardware.all_problems):
            # It is the best one. The receipt then has the machine of now, so the next start asks no
            # driver. A user who may not write it asks once for each state of the drivers.
            with suppress(StoreError):
                keep_choice(session, choice)
        return None
    refuse_revoked(choice, allow_revoked=session.allow_revoked)
    name, variant = active.receipt.variant, better.variant
    size = left_to_download(session, choice, better)
    price = f" ({cost(size)})" if size != 0 else ""
    said = f"{told_moved(name, gone)}; {variant.name}{price} fits now"
    setting = session.settings.fallback
    if setting != "off" and not must_ask(setting, size):
        session.user.note(f"{said} and replaces it")
    elif setting == "off" or not session.user.ask(f"{said}. Replace {name}?"):
        session.user.note(f"{said}; to move to it: {TSUKU} install")
        return active
    else:
        session = session._replace(agreed=True)
    return install_choice(session, choice).installed
