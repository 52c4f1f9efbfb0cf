"""The build's other tools (llama-cli, llama-bench), run after the same checks as ``serve``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from tsuku_llm import launch
from tsuku_llm.errors import NotInstalled
from tsuku_llm.operations.serve import requested_version
from tsuku_llm.operations.session import Session, working_folder
from tsuku_llm.operations.start import build_of
from tsuku_llm.operations.vouching import vouch
from tsuku_llm.ownership import check_path
from tsuku_llm.store import Installed, Receipt

_LIBRARY = re.compile(r"\.(?:dll|dylib|so(?:\.[\d.]+)?)$")


def run_tool(session: Session, tool: str, arguments: Sequence[str]) -> int:
    """Check the installed tree and become ``tool``; on Windows wait and return its exit code.

    Raises ``NotInstalled`` if the build has no such tool, ``TamperedInstall``, ``UnsafeLocation``,
    ``Revoked`` and ``LaunchError``.
    """
    shelf = session.shelf
    installed = requested_version(shelf, session)
    plan = plan_of(session, installed, tool, arguments)
    # From here on other processes cannot remove this version; the tool inherits the descriptor and
    # keeps the hold.
    with shelf.hold(installed) as held:
        shelf.check(installed)
        vouch(session, installed.receipt)
        # llama.cpp also loads plugins from the current folder: it must be safe, and have none.
        check_path(plan.cwd)
        launch.require_no_plugins(plan.cwd)
        session.user.note(installed.receipt.line)
        return launch.replace(plan, keep=() if held is None else (held,))


def plan_of(
    session: Session, installed: Installed, tool: str, arguments: Sequence[str]
) -> launch.Plan:
    """Return the plan to become ``tool``. Raises ``NotInstalled``."""
    build = build_of(installed)._replace(server=tool_of(installed.receipt, tool))
    return launch.plan_tool(build, arguments, cwd=working_folder(), environ=session.machine.environ)


def path_of(session: Session, tool: str) -> Path:
    """Return the path of ``tool`` in the version that ``serve`` would start.

    Raises ``NotInstalled``.
    """
    installed = requested_version(session.shelf, session)
    return installed.tree / tool_of(installed.receipt, tool)


def tool_of(receipt: Receipt, name: str) -> str:
    """Return the path in the tree of the tool called ``name``, with or without ``.exe``.

    Raises ``NotInstalled``, whose facts list the tools that exist.
    """
    tools = tools_of(receipt)
    if name.removesuffix(".exe") in tools:
        return tools[name.removesuffix(".exe")]
    raise NotInstalled(
        f"{receipt.variant} of {receipt.release} has no tool {name}",
        facts=tuple(f"tool: {each}" for each in tools),
        hint="run one of these: tsuku-llm run TOOL -- ARGUMENTS",
    )


def tools_of(receipt: Receipt) -> Mapping[str, str]:
    """Return the programs in the server's folder: names without ``.exe``, and paths."""
    folder = PurePosixPath(receipt.server).parent
    links = {link.path for link in receipt.links}
    # Archives made on Windows do not mark programs as executable.
    files = {file.path for file in receipt.files if file.executable or file.path.endswith(".exe")}
    paths = sorted(links | files | {receipt.server})
    beside = [path for path in map(PurePosixPath, paths) if path.parent == folder]
    return {
        path.name.removesuffix(".exe"): str(path)
        for path in beside
        if not _LIBRARY.search(path.name)
    }
