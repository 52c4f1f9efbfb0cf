"""The move to a better build when the temporary state of the last install is over.

``serve`` calls this before a start, for a version that was chosen in such a state.
"""

from __future__ import annotations

from tsuku_llm.errors import TsukuError
from tsuku_llm.operations.choice import Choice, choose_like, refuse_revoked, version_of
from tsuku_llm.operations.fallback import must_ask
from tsuku_llm.operations.install import better_than, install_choice, is_about
from tsuku_llm.operations.session import Session
from tsuku_llm.operations.state_notes import StateNotes
from tsuku_llm.operations.temporary import Withheld, is_set, over, told_over
from tsuku_llm.selection import Candidate
from tsuku_llm.store.installed import Installed


def recovered(
    session: Session, notes: StateNotes, active: Installed, states: tuple[Withheld, ...]
) -> Installed:
    """Return the version to start: ``active``, or a better one if its temporary states are over.

    The move needs the user's consent as ``llm.fallback`` says; ``off`` only prints a note. The
    better version becomes the active one. A state that still holds is printed. If nothing can be
    installed, print a note and return ``active``.
    """
    environ = session.machine.environ
    # A driver that did not answer would cost its time limit again: without a change it is not asked
    # at a start. A variable that is still set needs no question either.
    known = notes.still_withheld(active.id)
    if all(is_set(each, environ) or (each.waits and known) for each in states):
        return active
    try:
        request = active.receipt.requested
        choice = choose_like(session.with_settings(backend=request), active)
        if not is_about(choice, active):
            return active
        better = better_than(session, choice, active)
        gone = over(states, choice.hardware, environ)
        if better and gone:
            return _moved(session, choice, active, better, told_over(active.receipt.variant, gone))
        # A variable is the user's own decision: it needs no warning.
        lasting = [each for each in states if each not in gone and each.api is not None]
        for each in lasting:
            name = active.receipt.variant
            session.user.note(f"warning: {name} was chosen because: {each.text}; {each.fix}")
        if lasting:
            notes.keep_withheld(active.id)
        elif better is None:
            # Nothing better fits: the receipt then says so, and the next start asks no driver.
            install_choice(session, choice)
    except TsukuError as error:
        session.user.note(f"a better build cannot be installed: {error.message}")
    return active


def _moved(
    session: Session, choice: Choice, active: Installed, better: Candidate, why: str
) -> Installed:
    """Install and activate ``better`` if the user agrees; return what to start."""
    refuse_revoked(session, choice)
    variant = better.variant
    here = session.reader.find(version_of(choice.release.release, variant))
    size = 0 if here else variant.download_size
    cost = "" if here else f" (a download of {size / 1e6:,.0f} MB)" if size else " (a download)"
    said = f"{why}; {variant.name}{cost} fits now"
    setting = session.settings.fallback
    if setting != "off" and not must_ask(setting, size):
        session.user.note(f"{said} and replaces it")
    elif setting == "off" or not session.user.ask(f"{said}. Replace {active.receipt.variant}?"):
        session.user.note(f"{said}; to move to it: tsuku-llm install")
        return active
    return install_choice(session, choice).installed or active
