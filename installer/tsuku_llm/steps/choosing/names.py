"""Settings that name a backend, channel, release or repository: whether such a one exists.

Only the copies of signed metadata on this machine count, so this asks no host.
"""

from __future__ import annotations

from tsuku_llm.catalog import loading
from tsuku_llm.catalog.loading import Catalog
from tsuku_llm.catalog.repositories import OFFICIAL, repositories, repository
from tsuku_llm.choose.selection import known_request
from tsuku_llm.config.keys import INSTALLED
from tsuku_llm.config.settings import NAMING, warning_of
from tsuku_llm.ground.errors import StoreError, TrustError, TsukuError, UnknownRequest
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.probe import platform_key
from tsuku_llm.steps.session import Session, note_place


def check_exists(session: Session, key: str, value: str) -> None:
    """Refuse the value of a setting that names nothing; ``key`` is one of ``NAMING``.

    A name may belong to any repository of this machine: the user may choose that one next. If no
    metadata can be read, the name is accepted with a note. Raises ``UnknownRequest``, which lists
    what exists, and ``CorruptStore`` for a repository that cannot be understood.
    """
    if key == "release" and value == INSTALLED:
        return
    if key == "repository":
        repository(session.paths.data, value)
        return
    missing: UnknownRequest | None = None
    # Names of the repository in use come first: the error is about that one.
    wanted = session.settings.repository or OFFICIAL
    known = sorted(repositories(session.paths.data), key=lambda each: each.name != wanted)
    for each in known:
        try:
            _require(session, loading.load(each, session.paths.data), key, value)
        except UnknownRequest as error:
            missing = missing or error
        except (TrustError, StoreError) as error:
            session.user.note(f"{each.name} could not be asked for a {key}: {error.message}")
        else:
            return
    if missing:
        if not missing.hint.startswith("did you mean"):
            missing.hint = f"take one of these: {TSUKU} config set llm.{key} NAME"
        raise missing


def _require(session: Session, catalog: Catalog, key: str, value: str) -> None:
    """Refuse a name that this repository does not have. Raises ``UnknownRequest``."""
    if key == "channel":
        catalog.releases(value)
    elif key == "release":
        catalog.entry(value)
    else:
        platform = platform_key(session.machine.host)
        releases = catalog.readable(catalog.entries, session.user.note)
        found = (release.platforms.get(platform) for _, release in releases)
        names = {variant.name for each in found if each for variant in each.variants}
        # An installed variant can be used, also if no release has it any longer.
        names |= {each.receipt.variant for each in session.reader.installed()}
        known_request(value, sorted(names))


def unknown_names(session: Session) -> dict[str, TsukuError]:
    """Return the keys of settings that name nothing, and why; flags are not looked at."""
    settings = session.settings
    wrong: dict[str, TsukuError] = {}
    for key in NAMING:
        if key not in settings.chosen - settings.flags:
            continue
        try:
            if (value := getattr(settings, key)) is not None:  # a word is no name
                check_exists(session, key, value)
        except UnknownRequest as error:
            note_place(session.settings, key, error)
            wrong[key] = error
        except (TrustError, StoreError) as error:
            session.user.note(f"llm.{key} could not be checked: {error.message}")
    return wrong


def without_unknown(session: Session) -> Session:
    """Return the session as if settings that name nothing were not set, with a warning for each."""
    wrong = unknown_names(session)
    for error in wrong.values():
        session.user.note(f"warning: {warning_of(error)}")
    return session._replace(settings=session.settings.without(wrong))
