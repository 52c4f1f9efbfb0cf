"""Whether a start could download its model: a build without HTTPS cannot, and fails late."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence

from tsuku_llm.errors import LaunchError
from tsuku_llm.launch.wishes import downloads_in
from tsuku_llm.operations.models import local_models
from tsuku_llm.operations.session import Session
from tsuku_llm.store.installed import Installed

_WORDS = b"HTTPS is not supported"
"""What a server says that was built without; with HTTPS these words are not compiled.

See ``common_http_client`` in upstream's common/http.h.
"""

_ENDPOINTS = ("MODEL_ENDPOINT", "HF_ENDPOINT")
"""The variables that replace https://huggingface.co/ (upstream's common/common.cpp)."""


def require_https(
    session: Session, installed: Installed, arguments: Sequence[str], environ: Mapping[str, str]
) -> None:
    """Refuse a start that has to download a model, with a build that cannot.

    A repository that was downloaded before is served from its cache. Raises ``LaunchError``.
    """
    needed = _first_download(session, arguments, environ)
    if needed is None or not _lacks_https(installed):
        return
    receipt = installed.receipt
    # Its own repository's upstream builds have HTTPS; another channel's may be of anyone.
    other = "" if receipt.channel == "stable" else "use upstream's build, which has it: "
    other += "" if receipt.channel == "stable" else "tsuku-llm install --channel stable; or "
    raise LaunchError(
        "this build cannot download a model: it was built without HTTPS",
        facts=(
            f"asked for: {needed}",
            f"the build: {receipt.variant} of {receipt.release}, built by {receipt.publisher}",
        ),
        hint=f"{other}download the GGUF file with another program, such as curl -L -O URL or "
        "hf download, then: tsuku-llm serve -m FILE.gguf",
    )


def _first_download(
    session: Session, arguments: Sequence[str], environ: Mapping[str, str]
) -> str | None:
    """Return the first argument that needs HTTPS here, with its value; None if there is none."""
    plain = any(environ.get(name, "").startswith("http:") for name in _ENDPOINTS)
    wanted = downloads_in(arguments, environ)
    here: set[str] | None = None
    for option, value in wanted:
        if "://" in value:
            if value.lower().startswith("https:"):
                return f"{option} {value}"
            continue
        if plain and not option.startswith(("-d", "--docker", "LLAMA_ARG_DOCKER")):
            continue
        if here is None:
            found = local_models(session).models
            here = {each.repository.casefold() for each in found if each.repository}
        if value.partition(":")[0].casefold() not in here:
            return f"{option} {value}"
    return None


def _lacks_https(installed: Installed) -> bool:
    """Tell whether the server, or a library of llama.cpp beside it, has the words of a refusal."""
    links = {link.path for link in installed.receipt.links}
    for file in installed.receipt.files:
        name = file.path.rpartition("/")[2]
        # Not the libraries of ggml: a backend has hundreds of megabytes, and talks to no host.
        if "llama" not in name or file.path in links or not file.size:
            continue
        with (
            open(os.path.join(installed.tree, file.path), "rb") as content,  # noqa: PTH118, PTH123
            mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            if data.find(_WORDS) >= 0:
                return True
    return False
