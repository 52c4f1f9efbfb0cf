"""A conversation in the terminal: the server that answers, and its answers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from tsuku_llm.ground.errors import LaunchError, NotRunning, StoreError, UsageError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.record import Record, ServerState
from tsuku_llm.launch.ask.canary import models_of
from tsuku_llm.launch.ask.chat import Message, Piece, bounded, stream_answer
from tsuku_llm.launch.ask.health import api_key
from tsuku_llm.launch.plan.addresses import address_of, require_address
from tsuku_llm.launch.plan.wishes import last_value, wishes_in
from tsuku_llm.steps.servers.background import server, stop_if_there
from tsuku_llm.steps.servers.ensuring import start_server
from tsuku_llm.steps.servers.server_trials import command_of
from tsuku_llm.steps.session import Session

_NAME = "chat"
_OWN_BOUND = ("-n", "--predict", "--n-predict", "LLAMA_ARG_N_PREDICT")


@contextmanager
def answering_server(
    session: Session,
    arguments: Sequence[str],
    on_loading: Callable[[str], None],
    name: str | None = None,
) -> Iterator[Record]:
    """Give a server with these arguments for the block; one that is started here ends with it.

    A server that runs already is used if it is the one called ``name``, or if it has this model and
    only the model is wanted. Raises ``UsageError``, ``NotRunning``, and the errors of an install
    and of a start.
    """
    environ = session.machine.environ
    if name is not None:
        record = server(session.paths.state, name)
        if record.state not in (ServerState.RUNNING, ServerState.UNWATCHED):
            raise NotRunning(f"the server {name} is not ready", hint=f"see: {TSUKU} status")
        argv, env = _command_of(session, record)
        _refuse_tls(argv, env)
        if not wishes_in(argv, env).names_model:
            raise UsageError(
                f"the server {name} has several models",
                hint=f"choose one on its page: {TSUKU} open --name {name}; or start another "
                f"server: {TSUKU} chat -m MODEL",
            )
        yield record
        return
    require_address(arguments, environ)
    _refuse_tls(arguments, environ)
    if found := _running(session, arguments):
        session.user.note(f"the server {found.name} answers, which runs already")
        yield found
        return
    taken = {record.name for record in Instances(session.paths.state).all()}
    name = next(
        each for number in count(1) if (each := f"{_NAME}-{number}".removesuffix("-1")) not in taken
    )
    names_a_port = any(word.partition("=")[0] == "--port" for word in arguments)
    # The user may think for long; and the folder is the user's, for relative paths.
    record = start_server(
        session,
        name,
        arguments if names_a_port else ("--port", "0", *arguments),
        {"idle_timeout": "0"},
        ("--notify", "starter"),
        on_loading,
    )
    try:
        yield record
    finally:
        stop_if_there(session.paths.state, name)


def answer(
    session: Session, name: str, messages: Sequence[Message]
) -> Generator[Piece, None, None]:
    """Yield the server's answer to these messages, as it comes; it is bounded.

    Raises ``NotRunning`` if the server has ended, and ``LaunchError`` if it refuses, or if its
    answer breaks off.
    """
    # Now: its supervisor may have started it again, at another port.
    record = server(session.paths.state, name)
    try:
        argv, env = _command_of(session, record)
        key = api_key(wishes_in(argv, env))
        pieces = stream_answer(record.listening(address_of(argv, env)), key, messages)
        # The user's own bound holds alone.
        yield from pieces if last_value(argv, env, _OWN_BOUND) else bounded(pieces)
    except (OSError, ValueError) as error:
        facts = (str(error),)
        if not (now := server(session.paths.state, name)).state.is_up:
            raise NotRunning(
                f"the server {name} has ended",
                facts=(now.reason,) if now.reason else facts,
                hint=f"see its log: {record.log_command}",
            ) from error
        raise LaunchError(
            "the answer broke off", facts=facts, hint=f"see its log: {record.log_command}"
        ) from error


def served_as(session: Session, name: str) -> tuple[str, tuple[str, ...], bool]:
    """Return the URL of a server's OpenAI API, the names of its models, and whether it wants a key.

    A router is asked for its models; there is at least one name.
    Raises ``NotRunning``, and ``LaunchError`` for a server that is not ready or has no port.
    """
    record = server(session.paths.state, name)
    if not record.state.is_up:
        raise NotRunning(f"the server {name} does not run any more", hint=f"see: {TSUKU} status")
    if (base := record.urls.base_url) is None:
        if record.urls.curl:
            raise LaunchError(
                f"the server {name} listens at a Unix socket, which other programs take no URL for",
                hint="start it with --host 127.0.0.1 and --port after --",
            )
        raise LaunchError(
            f"the server {name} is not ready", hint=f"see its log: {record.log_command}"
        )
    argv, env = _command_of(session, record)
    wishes = wishes_in(argv, env)
    alias = last_value(argv, env, ("-a", "--alias", "LLAMA_ARG_ALIAS"))
    # A server with one model takes any name for it; this one may stand in quotes and in a shell.
    named = wishes.hub[-1] if wishes.hub else "default"
    loaded = Path(wishes.model).stem if wishes.model else named
    names: tuple[str, ...] = (alias[1].partition(",")[0] if alias else loaded,)
    if not (wishes.names_model or alias):
        offered = models_of(record.listening(address_of(argv, env)), wishes)
        names = tuple(filter(_PLAIN.fullmatch, offered)) or names
    has_key = True  # a file of keys that is gone: the server has read it
    with suppress(OSError):
        has_key = api_key(wishes) is not None
    return base, tuple(_OTHER.sub("-", each) for each in names), has_key


_OTHER = re.compile(r"[^A-Za-z0-9.:/@+_-]")
_PLAIN = re.compile(r"[A-Za-z0-9.:/@+_-]+")


def _refuse_tls(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    if address_of(arguments, environ).tls:
        raise UsageError("chat does not use TLS", hint="leave out the certificate of the server")


def _command_of(session: Session, record: Record) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return what a running server was told, also in the files that its build reads."""
    version = None
    with suppress(StoreError):  # it was damaged or removed while its server runs
        version = session.reader.find(record.report.id) if record.report else None
    return command_of(record, version)


def _running(session: Session, arguments: Sequence[str]) -> Record | None:
    """Return a server that runs with the model of these arguments; None if they ask for more."""
    wanted = wishes_in(arguments, {})
    hub = bool(wanted.hub) and len(wanted.hub) == len(arguments)
    if not hub and arguments[::2] not in (("-m",), ("-m", "--mmproj")):
        return None
    for record in Instances(session.paths.state).all():
        if record.state is ServerState.RUNNING:
            argv, env = _command_of(session, record)
            if address_of(argv, env).tls:
                continue
            runs = wishes_in(argv, env)
            if hub and runs.hub == wanted.hub:
                return record
            # A relative path is relative to the server's folder.
            if not hub and os.path.isabs(path := runs.model or ""):
                with suppress(OSError, ValueError):
                    if os.path.samefile(path, arguments[1]):
                        return record
    return None
