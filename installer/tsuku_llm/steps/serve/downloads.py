"""Whether a start could download its model: a build without HTTPS cannot, and fails late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tsuku_llm.ground.errors import LaunchError
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.launch.plan.wishes import downloads_in
from tsuku_llm.model_caches.finding import local_models
from tsuku_llm.steps.choosing.which import lacks_https
from tsuku_llm.store.records.installed import Installed

_ENDPOINTS = ("MODEL_ENDPOINT", "HF_ENDPOINT")
"""The variables that replace https://huggingface.co/ (upstream's common/common.cpp)."""


def require_https(
    installed: Installed,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    model_path: Sequence[str],
) -> None:
    """Refuse a start that has to download a model, with a build that cannot.

    A repository that was downloaded before is served from its cache. Raises ``LaunchError``.
    """
    needed = _first_download(arguments, environ, model_path)
    if needed is None or not lacks_https(installed):
        return
    receipt = installed.receipt
    upstreams = f"use upstream's build, which has it: {TSUKU} install --channel stable; or "
    raise LaunchError(
        "this build cannot download a model: it was built without HTTPS",
        facts=(
            f"asked for: {needed}",
            f"the build: {receipt.variant} of {receipt.release}, built by {receipt.publisher}",
        ),
        hint=(upstreams if receipt.channel != "stable" else "")
        + "download the GGUF file with another program, such as curl -L -O URL or hf download, "
        f"then: {TSUKU} serve -m FILE.gguf",
    )


def _first_download(
    arguments: Sequence[str], environ: Mapping[str, str], model_path: Sequence[str]
) -> str | None:
    """Return the first argument that needs HTTPS here, with its value; None if there is none."""
    plain = any(environ.get(name, "").startswith("http:") for name in _ENDPOINTS)
    for option, value in downloads_in(arguments, environ):
        if "://" in value:
            needed = value.lower().startswith("https:")
        elif "docker" in option.lower() or option == "-dr":
            needed = True
        else:
            found = (each.model_repository for each in local_models(environ, model_path).models)
            here = {each.casefold() for each in found if each}
            needed = not plain and value.partition(":")[0].casefold() not in here
        if needed:
            return f"{option} {value}"
    return None
