"""Commands that revoke a release, and that withdraw a revocation."""

from datetime import datetime
from pathlib import Path

import click

from ci.release import revoked
from ci.release.commands.options import DAY, TODAY, data_option
from ci.release.plan import known_document

day_option = click.option("--on", "day", type=DAY, default=TODAY, help="The day of it; today.")


@click.command()
@data_option
@day_option
@click.argument("tag")
@click.option("--reason", required=True, help="The reason for users, in one line.")
@click.option("--by-name", is_flag=True, help="Allow it if its files are not in the data.")
def revoke(*, data: Path, day: datetime, tag: str, reason: str, by_name: bool) -> None:
    """Record that a release must not be used any more; then sign --raise, and publish."""
    document = None if by_name else known_document(tag, data)
    revoked.revoke(data, tag, reason, day.date(), document)
    click.echo(f"{tag} is revoked from {day:%Y-%m-%d} on: sign --raise, then publish")


@click.command()
@data_option
@day_option
@click.argument("tag")
def withdraw(*, data: Path, day: datetime, tag: str) -> None:
    """Record that a revocation was a mistake; clients end it once it is signed."""
    revoked.withdraw(data, tag, day.date())
    click.echo(f"{tag}: its revocation is withdrawn: sign --raise, then publish")
