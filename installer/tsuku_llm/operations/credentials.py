"""The secrets among a server's words and variables, and how a unit's server gets them unseen.

A unit of systemd is a file that others may read, and is copied and pasted. What is secret
therefore goes through the server's environment: llama.cpp has a variable for each option
below (``common/arg.cpp``). For any other option that takes a secret, systemd puts the value of
a variable in the place of the word (systemd.service(5), "command lines").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.disk import disk_errors
from tsuku_llm.durable import make_folder, replace_file
from tsuku_llm.errors import UsageError
from tsuku_llm.instances import checked_name
from tsuku_llm.operations.session import Session

MASK = "***"

_API_KEY = "LLAMA_API_KEY"
_VARIABLES = {"--api-key": _API_KEY, "--hf-token": "HF_TOKEN", "-hft": "HF_TOKEN"}
_SECRET_OPTION = re.compile(r"-hft|--(?:.*-)?(?:key|token|password|secret)")
_URL_USER = re.compile(r"://[^/?#]*@")
_OWN = re.compile(r"TSUKU_HOME|TSUKU_LLM_[A-Z_]+")


class Handover(NamedTuple):
    """What a unit may say, and what it must not.

    ``words`` are the server's, without secrets; one that is ``None`` is the value of the
    variable ``TSUKU_UNIT_WORD_N``, N being its place. ``told`` are variables that the unit may
    set, ``secret`` those that a closed file must hold.
    """

    words: tuple[str | None, ...]
    told: Mapping[str, str]
    secret: Mapping[str, str]


def handover(words: Sequence[str], environ: Mapping[str, str]) -> Handover:
    """Part what may be seen of a start from its secrets.

    ``words`` are the server's own. Of the environment our settings count, and the variables
    from which llama.cpp reads keys.
    """
    own = {name: environ[name] for name in sorted(environ) if _OWN.fullmatch(name)}
    secret = {name: value for name, value in own.items() if _URL_USER.search(value)}
    told = {name: value for name, value in own.items() if name not in secret}
    secret |= {name: environ[name] for name in _VARIABLES.values() if environ.get(name)}
    kept: list[str | None] = []
    keys: list[str] = []
    for option, value in _parted(words):
        variable = _VARIABLES.get(option)
        if value is None:
            kept.append(option)
        elif variable is None:
            kept += [option, None] if option else [None]
            secret[variable_of(len(kept) - 1)] = value
        elif variable == _API_KEY:
            keys.append(value)
        else:
            secret[variable] = value
    if keys:  # llama.cpp takes several, with commas between them
        secret[_API_KEY] = ",".join(keys)
    return Handover(tuple(kept), told, secret)


def variable_of(place: int) -> str:
    """The variable whose value stands in the place of a secret word."""
    return f"TSUKU_UNIT_WORD_{place}"


def keep_credentials(session: Session, name: str, secrets: Mapping[str, str], content: str) -> Path:
    """Write the file of a unit's ``secrets`` for this user's eyes only; its path.

    Raises UsageError for what systemd would drop: the server would start without its key.
    """
    for variable, value in secrets.items():
        if not value.isprintable():
            raise UsageError(
                f"{variable} has a character that systemd does not pass on",
                hint="take another key, or let the server read a file: --api-key-file FILE",
            )
    folder = session.state / "credentials"
    path = folder / f"{checked_name(name)}.env"
    make_folder(folder, private=True)
    with disk_errors("keeping the credentials of a unit", folder):
        replace_file(path, content.encode("utf-8"), mode=0o600)
    return path


def masked(words: Sequence[str]) -> tuple[str, ...]:
    """The words as they may be shown."""
    shown: list[str] = []
    for option, value in _parted(words):
        if option or value is None:
            shown.append(option)
        if value is not None:
            shown.append(MASK)
    return tuple(shown)


def _parted(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each word with the secret that follows it; a word that is a secret comes with ""."""
    waiting = iter(words)
    for word in waiting:
        option, equals, value = word.partition("=")
        option = option.replace("_", "-") if option.startswith("--") else option
        if _SECRET_OPTION.fullmatch(option):
            secret = value if equals else next(waiting, None)
            yield (word if secret is None else option), secret
        elif _URL_USER.search(word):
            yield "", word
        else:
            yield word, None
