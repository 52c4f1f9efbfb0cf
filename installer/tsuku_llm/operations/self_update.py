"""The update of this program by the tool that installed it."""

from __future__ import annotations

import json
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

import tsuku_llm
from tsuku_llm import __version__
from tsuku_llm.errors import NoUpdater, UpdaterFailed
from tsuku_llm.own_copy import NAME, CopyFacts, Updater, updater_of

_TOOLS = ("uv", "pipx", "git")


class SelfUpdate(NamedTuple):
    """What a run found and did; ``version`` was the program's, ``new_version`` is it now.

    ``ran`` tells whether the updater ran. ``new_version`` is None if it did not, or if the program
    cannot tell.
    """

    updater: Updater
    version: str
    ran: bool = False
    new_version: str | None = None


def self_update(*, dry_run: bool, agreed: Callable[[Updater], bool]) -> SelfUpdate:
    """Find what updates this copy, and run it if ``agreed``.

    Raises ``NoUpdater`` if nothing does, and ``UpdaterFailed``.
    """
    updater = own_updater()
    found = SelfUpdate(updater, __version__)
    if dry_run:
        return found
    if not updater.commands:
        facts = (updater.text, updater.reason)
        raise NoUpdater("this copy cannot update itself", facts=facts, hint=updater.hint)
    if sys.platform == "win32":
        raise NoUpdater(
            "this copy cannot update itself while it runs",
            facts=(updater.text, "Windows does not replace the files of a running program"),
            hint=f"run this yourself: {' && '.join(map(' '.join, updater.commands))}",
        )
    if not agreed(updater):
        return found
    for command in updater.commands:
        _run(command, updater.folder)
    return found._replace(ran=True, new_version=_installed_version())


def _run(command: tuple[str, ...], folder: Path | None) -> None:
    try:
        # Its words go to stderr: stdout has only our answer.
        child = subprocess.Popen(command, cwd=folder, stdout=2)
    except OSError as error:
        raise UpdaterFailed(f"{command[0]} cannot be started", facts=(str(error),)) from error
    try:
        code = child.wait()
    except BaseException:
        # Ctrl-C has reached it as well; a SIGTERM to us alone has not.
        child.terminate()
        child.wait()
        raise
    if code:
        raise UpdaterFailed(
            f"{' '.join(command)} ended with exit code {code}",
            facts=("its own words are above", f"in {folder}") if folder else (),
            hint="this program still works if the updater changed nothing; else install it again",
        )


def _installed_version() -> str | None:
    """Return the version that a new process of this program has."""
    done = subprocess.run(
        [sys.executable, "-m", "tsuku_llm", "--version"],
        cwd=sys.prefix,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split()[-1] if done.returncode == 0 and done.stdout.strip() else None


def own_updater() -> Updater:
    """Return how this copy was installed, and what updates it."""
    return updater_of(copy_facts())


def copy_facts() -> CopyFacts:
    """Return what the files around the running copy say."""
    package = Path(tsuku_llm.__file__).parent
    prefix = Path(sys.prefix)
    own = _own_distribution(package)
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
        clone=clone,
        is_repository=clone is not None and (clone / ".git").exists(),
        tools=frozenset(filter(shutil.which, _TOOLS)),
    )


def _own_distribution(package: Path) -> Distribution | None:
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


def _recorded(own: Distribution | None) -> dict[str, Any]:
    """Return the content of direct_url.json: empty for what came from an index."""
    text = own.read_text("direct_url.json") if own else None
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("url"), str) else {}


def _clone_of(prefix: Path) -> Path | None:
    """Return the folder whose install.sh makes this environment."""
    clone = prefix.parent
    parts = (clone / "install.sh", clone / "installer" / "tsuku_llm")
    return clone if prefix.name == ".venv" and all(part.exists() for part in parts) else None
