"""The secrets in the arguments of a build's programs, and how they are handed over. Pure.

Every user of the machine can read the arguments of every process (``ps``), for as long as it lives.
The environment of a process is for its user only (proc(5)). llama.cpp has a variable for each
option below (``common/arg.cpp``, b11434); it reads the variable as it reads the option.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tsuku_llm.ground.safe_text import MASK, Secret, has_secret, redacted
from tsuku_llm.launch.plan.wishes import spelled

_API_KEY = "LLAMA_API_KEY"
_VARIABLES = {
    "--api-key": _API_KEY,
    "-hft": "HF_TOKEN",
    "--hf-token": "HF_TOKEN",
    # It has headers and environments of the servers that it names.
    "--mcp-servers-json": "LLAMA_ARG_MCP_SERVERS_JSON",
}
"""The options whose value is a secret."""

_URL_VARIABLES = {
    **dict.fromkeys(("-mu", "--model-url"), "LLAMA_ARG_MODEL_URL"),
    **dict.fromkeys(("-mmu", "--mmproj-url"), "LLAMA_ARG_MMPROJ_URL"),
}
"""The options whose value is a URL, which may hold a secret."""

VARIABLES = tuple(dict.fromkeys(_VARIABLES.values()))
"""The variables whose value is a secret to llama.cpp."""

_SECRET_OPTION = re.compile(r"-hft|--(?:.*-)?(?:key|token|password|secret)|--mcp-servers-json")
_SECRET_VARIABLE = re.compile(r"KEY$|TOKEN|PASSWORD|SECRET|MCP_SERVERS_JSON$")

_SHORTEST = 4
"""Characters of a secret that is searched for in a text."""


class HandedOver(NamedTuple):
    """Arguments without secrets, and the variables that have these instead."""

    argv: tuple[str, ...]
    secrets: Mapping[str, Secret]

    def added_to(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the program that gets these arguments."""
        return {**env, **{name: secret.reveal() for name, secret in self.secrets.items()}}


def handed_over(argv: Sequence[str]) -> HandedOver:
    """Move the secrets of a program's arguments into variables.

    As in llama.cpp, the last argument counts, and before the user's variable; of API keys all
    arguments count. A secret without a variable of its own stays an argument: the program reads it
    nowhere else.
    """
    kept: list[str] = []
    found: dict[str, str] = {}
    for option, value in parted(argv):
        variable = _VARIABLES.get(option) or _URL_VARIABLES.get(option)
        if value is None:
            kept.append(option)
        elif variable is None:
            kept += [option, value] if option else [value]
        elif variable == _API_KEY and variable in found:
            found[variable] += f",{value}"
        else:
            found[variable] = value
    return HandedOver(tuple(kept), {name: Secret(value) for name, value in found.items()})


def masked(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments with each secret replaced, to be shown."""
    shown: list[str] = []
    for option, value in parted(argv):
        if option or value is None:
            shown.append(option)
        if value is not None:
            shown.append(redacted(value) if has_secret(value) else MASK)
    return tuple(shown)


def shown_variable(name: str, value: str) -> str:
    """Return the value of a variable, to be shown."""
    return MASK if _SECRET_VARIABLE.search(name) else redacted(value)


def without_secrets(text: str, argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return a text of unknown origin, such as a traceback, without the secrets of this run.

    They are those in its arguments, and the variables with such names.
    """
    found = [value for _, value in parted(argv) if value]
    found += [value for name, value in environ.items() if _SECRET_VARIABLE.search(name)]
    for value in sorted(found, key=len, reverse=True):
        # A shorter one says nothing, and could be a part of any word.
        if len(value) >= _SHORTEST:
            text = text.replace(value, MASK)
    return redacted(text)


def parted(argv: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each argument and the secret that follows; one that is a secret comes with ""."""
    waiting = iter(argv)
    for argument in waiting:
        option, equals, value = spelled(argument).partition("=")
        if _SECRET_OPTION.fullmatch(option):
            # "--api-key=KEY" or "--api-key KEY".
            secret = value if equals else next(waiting, None)
            yield (argument if secret is None else option), secret
        elif option in _URL_VARIABLES and not equals:
            url = next(waiting, None)
            if url is not None and has_secret(url):
                yield option, url
            else:
                yield from ((each, None) for each in (argument, url) if each is not None)
        elif has_secret(argument):
            yield "", argument
        else:
            yield argument, None
