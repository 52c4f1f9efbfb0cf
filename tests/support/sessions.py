"""Sessions for operations that run in the process of a test."""

from pathlib import Path
from typing import Any

from tsuku_llm.config.keys import KEYS
from tsuku_llm.config.paths import Paths
from tsuku_llm.config.settings import DEFAULT, Configuration, Setting
from tsuku_llm.fetch import Silent
from tsuku_llm.steps.session import Machine, Session, User

DEFAULTS = Configuration(tuple(Setting(key, key.default, DEFAULT) for key in KEYS)).settings


def make_session(data: Path, machine: Machine, **changes: Any) -> Session:
    """A session without notes or questions, which asks for no newer metadata; then ``changed``."""
    paths = Paths(data.parent / "config.toml", data, data / "state", None)
    settings = DEFAULTS._replace(refresh="never", update_check=False)
    user = User(note=lambda _: None, progress=Silent(), ask=lambda _: False)
    return changed(Session(paths, settings, machine, user), **changes)


def changed(session: Session, **changes: Any) -> Session:
    """The session with other values, each in the part that has a field of that name."""
    for name, value in changes.items():
        for part in ("paths", "settings", "machine", "user"):
            holder = getattr(session, part)
            if name in holder._fields:
                session = session._replace(**{part: holder._replace(**{name: value})})
                break
        else:
            session = session._replace(**{name: value})
    return session
