"""The commands ``install`` and ``update``."""

from __future__ import annotations

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.answer import CommandResult
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.console import Console
from tsuku_llm.cli.session import open_session
from tsuku_llm.config.settings import INSTALLING, STAYING


@click.command(
    "install",
    cls=Command,
    examples={
        "tsuku-llm install": "Choose, download, verify and install the best build.",
        "tsuku-llm install --dry-run": "Show what would be installed.",
        "tsuku-llm install --backend vulkan": "Install the Vulkan build.",
        "tsuku-llm install --release b11429": "Install this release.",
    },
)
@options.setting("backend")
@options.setting("channel")
@options.release
@options.setting("repository")
@options.ask_first
@options.offline
@options.allow_revoked
@click.option("--dry-run", is_flag=True, help="Show what would be installed; use no network.")
@options.yes
@click.option("--force", is_flag=True, help="Install it again if it is installed.")
@click.pass_obj
def install_command(  # noqa: PLR0913
    console: Console,
    *,
    backend: str | None,
    channel: str | None,
    release: str | None,
    repository: str | None,
    require_fresh: str | None,
    offline: bool,
    allow_revoked: bool,
    dry_run: bool,
    yes: bool,
    force: bool,
) -> CommandResult:
    """Install the build that fits this machine."""
    with open_session(
        console,
        probes=True,
        needs=INSTALLING if release is None else INSTALLING - STAYING,
        backend=backend,
        channel=channel,
        repository=repository,
        require_fresh=require_fresh,
        allow_revoked=allow_revoked,
        offline=offline,
        agreed=yes,
    ) as session:
        from tsuku_llm.cli.render import install as render
        from tsuku_llm.operations.install import install

        report = install(session, release=release, dry_run=dry_run, force=force)
    return CommandResult(
        render.data(report), render.lines(report), next_step=render.next_step(report)
    )


@click.command(
    "update",
    cls=Command,
    examples={
        "tsuku-llm update --check": "Show whether there is something newer.",
        "tsuku-llm rollback": "Go back to the version before the update.",
    },
)
@click.option("--check", is_flag=True, help="Show what an update would change; change nothing.")
@options.setting("channel")
@options.setting("repository")
@options.yes
@click.pass_obj
def update_command(
    console: Console, *, check: bool, channel: str | None, repository: str | None, yes: bool
) -> CommandResult:
    """Update to the newest release of the channel."""
    from tsuku_llm.cli.render import install as render
    from tsuku_llm.operations.update import UpToDate, check_update, update

    with open_session(
        console, needs=INSTALLING, channel=channel, repository=repository, agreed=yes
    ) as session:
        if check:
            checked = check_update(session)
            return CommandResult(render.update_data(checked), render.update_lines(checked))
        report = update(session)
    if isinstance(report, UpToDate):
        return CommandResult(render.up_to_date_data(report), render.up_to_date_lines(report))
    return CommandResult(
        render.data(report), render.lines(report), next_step=render.next_step(report)
    )
