"""The commands for installed versions.

They are: list, which, use, rollback, fallback, uninstall, prune, verify.
"""

from __future__ import annotations

from contextlib import closing

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.render import installed as render
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal.answer import CommandResult, ReportedError
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.own_name import TSUKU


@click.command("list", cls=Command)
@click.option("--available", is_flag=True, help="List the releases that can be installed.")
@options.setting("repository")
@click.pass_obj
def list_command(console: Console, *, available: bool, repository: str | None) -> CommandResult:
    """List installed versions, or the releases on offer."""
    with open_session(console, looking=True, repository=repository) as session:
        if available:
            from tsuku_llm.steps.choosing.choice import load_catalog
            from tsuku_llm.steps.choosing.names import without_unknown
            from tsuku_llm.steps.metadata.repository import offered_releases

            offered = offered_releases(session, load_catalog(without_unknown(session)))
            return CommandResult(offered, render.available_lines(offered))
        from tsuku_llm.steps.install.versions import inventory

        found = inventory(session)
    return CommandResult(found, render.lines(found))


@click.command("which", cls=Command)
@click.argument("tool", required=False, shell_complete=options.completed_by("tool"))
@click.pass_obj
def which_command(console: Console, *, tool: str | None) -> CommandResult:
    """Print the path of the server, or of another tool.

    TOOL is a program of the build that serve starts, such as llama-cli.
    """
    with open_session(console, looking=True) as session:
        from tsuku_llm.steps.choosing.which import which

        found = which(session, tool)
    return CommandResult(found, (str(found.path),), exact=True)


@click.command(
    "use", cls=Command, examples={f"{TSUKU} use vulkan": "Use the Vulkan build from now on."}
)
@click.argument("version", shell_complete=options.completed_by("version"))
@options.allow_revoked
@click.pass_obj
def use_command(console: Console, *, version: str, allow_revoked: bool) -> CommandResult:
    """Make an installed version the active one.

    VERSION is an id that list shows, or a release or variant that only one of them has.
    """
    from tsuku_llm.steps.install.maintenance import use

    with open_session(console, allow_revoked=allow_revoked) as session:
        installed = use(session, version)
    return CommandResult(installed, render.active_lines(installed))


@click.command("rollback", cls=Command)
@options.allow_revoked
@click.pass_obj
def rollback_command(console: Console, *, allow_revoked: bool) -> CommandResult:
    """Go back to the previous active version."""
    from tsuku_llm.steps.install.maintenance import rollback

    with open_session(console, allow_revoked=allow_revoked) as session:
        installed = rollback(session)
    return CommandResult(
        installed,
        render.gone_back_lines(installed),
        next_step=f"to return to the version before: {TSUKU} rollback",
    )


@click.command("fallback", cls=Command)
@click.option(
    "--forget", is_flag=True, help="Forget these failures, so that serve tries them again."
)
@click.pass_obj
def fallback_command(console: Console, *, forget: bool) -> CommandResult:
    """List the versions that failed and are left out.

    serve does not start a version whose backend failed on these drivers.
    """
    from tsuku_llm.steps.serve.fallback import forget_failures, noted_failures

    with open_session(console, looking=not forget) as session:
        noted = (forget_failures if forget else noted_failures)(
            session.paths.state, session.machine.environ
        )
    return CommandResult(noted, render.fallback_lines(noted))


_dry_run = click.option(
    "--dry-run", is_flag=True, help="Show what would be removed; remove nothing."
)


@click.command("uninstall", cls=Command)
@click.argument("versions", nargs=-1, shell_complete=options.completed_by("version"))
@click.option("--all", "everything", is_flag=True, help="Remove every version, also damaged ones.")
@_dry_run
@click.pass_obj
def uninstall_command(
    console: Console, *, versions: tuple[str, ...], everything: bool, dry_run: bool
) -> CommandResult:
    """Remove installed versions.

    VERSIONS are ids that list shows, or a release or variant that only one of them has. A version
    that a running server uses stays.
    """
    from tsuku_llm.steps.install.maintenance import uninstall

    with open_session(console) as session:
        report = uninstall(session.store, versions, everything=everything, dry_run=dry_run)
    return CommandResult(report, render.uninstalled_lines(report, dry_run=dry_run))


@click.command("prune", cls=Command)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Also keep the N versions installed last.",
)
@click.option(
    "--caches", is_flag=True, help="Also remove the code that GPU drivers have compiled and cached."
)
@_dry_run
@click.pass_obj
def prune_command(console: Console, *, keep: int, caches: bool, dry_run: bool) -> CommandResult:
    """Remove old versions and leftovers.

    The active version, the one before it and every version in use stay.
    """
    from tsuku_llm.steps.install.maintenance import prune

    with open_session(console) as session:
        report = prune(session.store, session.paths, keep=keep, caches=caches, dry_run=dry_run)
    return CommandResult(report, render.pruned_lines(report, dry_run=dry_run))


@click.command("verify", cls=Command)
@click.argument("versions", nargs=-1, shell_complete=options.completed_by("version"))
@click.option(
    "--compute",
    is_flag=True,
    help="Also compare what the named versions, or the active one, compute with the right answers.",
)
@click.pass_obj
def verify_command(console: Console, *, versions: tuple[str, ...], compute: bool) -> CommandResult:
    """Check every installed file for changes.

    VERSIONS are ids that list shows, or a release or variant that only one of them has. Without
    any, all are checked.
    """
    from tsuku_llm.steps.install.verify import verify

    def checking(version: str) -> None:
        # The status has a thread, and a server that computes is tied to this process without one.
        if not compute:
            console.status.show(f"checking the files of {version}")

    with open_session(console, looking=True) as session, closing(console.status):
        verdicts = verify(session, versions, compute=compute, on_version=checking)
    failure = render.verified_failure(verdicts)
    return CommandResult(
        {"versions": verdicts},
        render.verified_lines(verdicts),
        exit_code=failure.exit_code if failure else 0,
        failure=ReportedError.of(failure) if failure else None,
    )
