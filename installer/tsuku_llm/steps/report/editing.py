"""``config edit``: the config file in the user's editor, checked before it is saved.

The editor gets a copy. The user's text is never lost: whatever ends the command before the text is
saved, a copy that was changed stays, and its path is told.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tsuku_llm.config.editing import replace_content
from tsuku_llm.config.file import read
from tsuku_llm.config.settings import in_file, unique, warning_of
from tsuku_llm.ground.disk import disk_errors
from tsuku_llm.ground.errors import ConfigError, TsukuError, UsageError
from tsuku_llm.ground.foreign import read_foreign
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.ownership import check_path
from tsuku_llm.steps.choosing.names import unknown_names
from tsuku_llm.steps.session import Session

_TEMPLATE = b"# Settings of tsuku-llm; the command config list shows all\n[llm]\n"
"""What the editor shows if there is no config file."""


def edit_config(session: Session, open_editor: Callable[[Path], None]) -> bool:
    """Let the user edit a copy of the config file, and save it if it is right.

    Return False if the user changed nothing. ``open_editor`` returns when the user has finished,
    and raises ``UsageError`` if the editor fails. A value that was wrong before only gives a
    warning. Raises ``ConfigError`` for other wrong values if the user does not edit again, for a
    file that cannot be read, and for one that changed meanwhile; ``UnsafeLocation``; and the errors
    of ``replace_content``.
    """
    path = session.paths.config_file
    check_path(path)
    before = read(path)
    start = _TEMPLATE if before is None else before
    with disk_errors("copying the config file", Path(tempfile.gettempdir())):
        # Only this user can read the folder: the file may hold passwords of mirrors.
        folder = Path(tempfile.mkdtemp(prefix="tsuku-llm-config-"))
        copy = folder / path.name
        copy.write_bytes(start)
    session.user.note(f"editing a copy: {copy}")
    try:
        after = _edited(session, copy, start, open_editor)
        if after is not None:
            _save(path, before, after, copy)
    except BaseException:
        # Also after Ctrl-C: the editor may still be running and write into the folder.
        if _has_work(copy, start):
            session.user.note(f"your text was not saved; it is kept: {copy}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    return after is not None


def _edited(
    session: Session, copy: Path, start: bytes, open_editor: Callable[[Path], None]
) -> bytes | None:
    """Return what the user made of the copy, which is right; None if nothing was changed.

    Raises ``ConfigError`` if it is wrong, and the user does not edit it again.
    """
    old = _problems(session, start)
    while True:
        open_editor(copy)
        try:
            after = read_foreign(copy)
        except OSError as error:
            raise UsageError(
                "the editor left no file that can be read, and nothing was saved",
                facts=(str(error),),
                hint=f"edit again: {TSUKU} config edit",
            ) from error
        if after == start:
            return None
        found = _problems(session, after)
        # A file that cannot be parsed has no single values: what is wrong is never old.
        new = {key: why for key, why in found.items() if key not in old or key[1] is None}
        for warning in in_file(session.paths, after).warnings:
            session.user.note(f"warning: {warning}")
        for why in unique(found[key] for key in found if key not in new):
            session.user.note(f"warning: {warning_of(why)}")
        if not new:
            return after
        wrong = tuple(f"{why.message}: {', '.join(why.facts)}" for why in unique(new.values()))
        for line in wrong:
            session.user.note(line)
        if not session.user.ask("This cannot be saved. Edit it again?"):
            raise ConfigError(
                "the settings are wrong, and nothing was saved",
                facts=wrong,
                hint=f"correct your text and copy it: {copy}",
            )


def _save(path: Path, before: bytes | None, after: bytes, copy: Path) -> None:
    """Replace the config file, unless another program has changed it. Raises ``ConfigError``."""
    if read(path) != before:
        raise ConfigError(
            f"the config file {path} was changed meanwhile, and nothing was saved",
            hint=f"compare it with your text: {copy}",
        )
    replace_content(path, after)


def _problems(session: Session, data: bytes) -> dict[tuple[str, str | None], TsukuError]:
    """Return what is wrong with a config file of this content, by key and value.

    The value is None if the file as a whole is wrong.
    """
    configuration = in_file(session.paths, data)
    found: dict[tuple[str, str | None], TsukuError] = {}
    for entry in configuration.entries:
        if entry.problem:
            written = None if entry.written is None else repr(entry.written)
            found[entry.key.key, written] = entry.problem
    settings = configuration.settings
    for key, why in unknown_names(session._replace(settings=settings)).items():
        found[key, repr(getattr(settings, key))] = why
    return found


def _has_work(copy: Path, start: bytes) -> bool:
    """Return whether the folder holds anything of the user: a changed copy, or an editor's file."""
    try:
        return read_foreign(copy) != start or [*copy.parent.iterdir()] != [copy]
    except OSError:
        return True
