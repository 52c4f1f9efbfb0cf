"""How the running copy of this program was installed, by the files around it."""

from __future__ import annotations

import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import tomli

import tsuku_llm
from tsuku_llm.ground.foreign import parse_object, read_text
from tsuku_llm.ground.processes import children
from tsuku_llm.machine.own_copy import NAME, CopyFacts, Updater, updater_of

FROM_BUNDLE = "from-bundle"
"""The file in an environment that a bundle made; the bundle's own program writes it."""

_TOOLS = ("uv", "git")


def own_updater() -> Updater:
    """Return how this copy was installed, and what updates it."""
    return updater_of(copy_facts())


def copy_facts() -> CopyFacts:
    """Return what the files around the running copy say."""
    package = Path(tsuku_llm.__file__).parent
    prefix = Path(sys.prefix)
    own = own_distribution(package)
    recorded = _recorded(own)
    editable = recorded.get("dir_info", {}).get("editable") is True
    clone = _clone_of(prefix)
    if editable:
        clone = Path(url2pathname(urlsplit(recorded["url"]).path))
    stdlib = Path(sysconfig.get_path("stdlib"))
    return CopyFacts(
        prefix=prefix,
        python=sys.executable,
        package=package,
        installer=None if own is None else (own.read_text("INSTALLER") or "").strip(),
        origin=str(recorded.get("url", "")),
        editable=editable,
        # conda makes whole Pythons that are environments.
        environment=sys.prefix != sys.base_prefix or (prefix / "conda-meta").is_dir(),
        managed=(stdlib / "EXTERNALLY-MANAGED").is_file(),
        user_site=package.is_relative_to(site.getusersitepackages()),
        uv_tool=(prefix / "uv-receipt.toml").is_file(),
        pipx=(prefix / "pipx_metadata.json").is_file(),
        bundle=(prefix / FROM_BUNDLE).is_file(),
        clone=clone,
        is_repository=clone is not None and (clone / ".git").exists(),
        tools=frozenset(filter(children.which, _TOOLS)),
        index=tuple(_index_of(prefix)),
    )


def own_distribution(package: Path) -> Distribution | None:
    """Return the metadata that belongs to the running package; another copy may be there, too."""
    for each in distributions(name=NAME):
        if Path(str(each.locate_file(package.name))) == package:
            return each
        origin = _recorded(each)
        if origin.get("dir_info", {}).get("editable") is True:
            folder = Path(url2pathname(urlsplit(origin["url"]).path))
            if package.is_relative_to(folder):
                return each
    return None


def _index_of(prefix: Path) -> Iterator[tuple[str, str]]:
    """Yield the variables for the index that uv or pipx noted when they installed the copy."""
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        receipt = tomli.loads(read_text(prefix / "uv-receipt.toml"))
        for each in receipt["tool"]["options"].get("index", ()):
            yield "UV_DEFAULT_INDEX" if each.get("default") else "UV_INDEX", str(each["url"])
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        noted = parse_object(read_text(prefix / "pipx_metadata.json"))
        words = noted["main_package"]["pip_args"]
        for word, after in zip(words, [*words[1:], ""], strict=True):
            if word in ("-i", "--index-url"):
                yield "PIP_INDEX_URL", after
            elif word.startswith("--index-url="):
                yield "PIP_INDEX_URL", word.partition("=")[2]


def _recorded(own: Distribution | None) -> dict[str, Any]:
    """Return the content of direct_url.json: empty for what came from an index."""
    text = own.read_text("direct_url.json") if own else None
    try:
        found = parse_object(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found.get("url"), str) else {}


def _clone_of(prefix: Path) -> Path | None:
    """Return the folder whose install.sh makes this environment."""
    clone = prefix.parent
    parts = (clone / "install.sh", clone / "installer" / "tsuku_llm")
    return clone if prefix.name == ".venv" and all(part.exists() for part in parts) else None
