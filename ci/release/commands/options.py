"""Options that several commands share, and their default places."""

from datetime import datetime, timezone
from pathlib import Path

import click

from ci.release.plan import DATA

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "manifests"
FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, exists=True, path_type=Path)
DAY = click.DateTime(["%Y-%m-%d"])
TODAY = datetime.now(timezone.utc).strftime("%Y-%m-%d")

data_option = click.option(
    "--data", type=FOLDER, default=DATA, help="The folder of rules, facts and plan."
)
root_option = click.option(
    "--trusted-root", type=FILE, help="Sigstore's trusted root; else sigstore-python's."
)
into_option = click.option(
    "--into", type=FOLDER, default=MANIFESTS, help="The folder of the repository."
)
gather_option = click.option(
    "--gather", type=FOLDER, help="The folder that collects the holders' signatures."
)
issued_option = click.option(
    "--issued", type=DAY, default=TODAY, help="The date of new versions; default: today."
)
drop_option = click.option(
    "--drop",
    "dropping",
    metavar="TAG",
    multiple=True,
    help="A revoked release to forget; its users may start it again.",
)
