"""A server in the background that is there when it is needed: found by its name, or started."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

from tsuku_llm.config.keys import key_named
from tsuku_llm.ground.errors import AlreadyRunning, LaunchError, NotInstalled, revived
from tsuku_llm.ground.files import make_folder
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.processes import children
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.record import Record, ServerState, checked_name
from tsuku_llm.launch.plan.addresses import require_address
from tsuku_llm.launch.plan.secret_arguments import handed_over
from tsuku_llm.steps.install.install import install
from tsuku_llm.steps.serve.fallback import wanted_version
from tsuku_llm.steps.servers import background
from tsuku_llm.steps.session import Session
from tsuku_llm.store.locks import exclusive

_PAUSE = 0.1
"""Seconds between two looks at a server that another process starts."""


def ensure_server(
    session: Session,
    name: str,
    arguments: Sequence[str],
    chosen: Mapping[str, str],
    *,
    require_gpu: bool = False,
    on_loading: Callable[[str], None],
) -> tuple[Record, bool]:
    """Return the server of this name when it is ready; install a build and start it if needed.

    The second value tells whether this call started it.

    ``arguments`` are the server's, and count only for a start. ``chosen`` are the settings of this
    call. Any number of threads and processes may call this at once: one of them starts the server.
    Raises ``UsageError`` for an address that the server would misread, the errors of ``install``
    and of a start, and ``LockTimeout``.
    """
    # Now: the start would refuse it only after a download.
    require_address(arguments, session.machine.environ)
    instances = Instances(session.paths.state)
    make_folder(instances.folder, private=True)
    lock = instances.folder / f"{checked_name(name)}.start.lock"
    # Held until the server is ready: a caller that waits here finds it below. A ``serve --detach``
    # takes no such lock; the claim of the name decides between it and us.
    with exclusive(lock, timeout=session.settings.lock_timeout, on_wait=session.waiting):
        if found := _ready(session.user.note, instances, name):
            return found, False
        how = ("--notify", "library", *(["--require-gpu"] * require_gpu))
        try:
            return start_server(session, name, arguments, chosen, how, on_loading), True
        except AlreadyRunning:
            # Another process has taken the name between our look and the start.
            if found := _ready(session.user.note, instances, name):
                return found, False
            raise


def start_server(
    session: Session,
    name: str,
    arguments: Sequence[str],
    chosen: Mapping[str, str],
    how: Sequence[str],
    on_loading: Callable[[str], None],
) -> Record:
    """Start a server in the background, and a build for it is installed first if there is none.

    ``how`` are options of ``serve``. The rest is as for ``ensure_server``.
    """
    try:
        wanted_version(session)
    except NotInstalled:
        install(session)
    if not sys.executable:
        raise LaunchError(
            "the interpreter of this process is not known",
            hint=f"start the server with the command: {TSUKU} serve --detach",
        )
    # As in ``serve --detach``: no secret is an argument of the process that stays.
    words = handed_over(arguments)
    line = children.this_program("serve", *how, "--json", "--name", name, "--", *words.argv)
    variables = {key_named(f"llm.{key}").variable: value for key, value in chosen.items()}
    env = words.added_to({**session.machine.environ, **variables})
    on_loading("the server starts")
    said, code = background.start(name, line, on_loading, env)
    if code is not None:
        raise revived(said["code"], said["message"], tuple(said["facts"]), said["hint"])
    for warning in said.get("warnings", ()):
        session.user.note(warning)
    return background.server(session.paths.state, name)


def name_for(arguments: Sequence[str], chosen: Mapping[str, str]) -> str:
    """Return the name of a server that is found by what it serves.

    It has the name of the model's file, and a digest of all arguments and settings.
    """
    words = (*arguments, *(f"{key}={value}" for key, value in sorted(chosen.items())))
    digest = sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    models = [after for word, after in pairwise(arguments) if word == "-m"]
    stem = re.sub(r"[^a-z0-9]+", "-", Path(models[-1]).stem.lower() if models else "")
    return f"{stem.strip('-')[:40] or 'server'}-{digest}"


def _ready(note: Callable[[str], None], instances: Instances, name: str) -> Record | None:
    """Return the server of a name when it is ready; None if none runs or loads."""
    told = False
    while (record := instances.find(name)) and record.state.is_up:
        if record.state is not ServerState.STARTING:
            return record
        if not told:
            note(f"waiting for the server {name}, which another process starts")
            told = True
        # Its supervisor ends a server that makes no progress: then it is not up any more.
        time.sleep(_PAUSE)
    return None
