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
    "--data", type=FOLDER, default=DATA, help="Where rules, facts and the plan lie."
)
root_option = click.option(
    "--trusted-root", type=FILE, help="Sigstore's trusted root; sigstore-python's without it."
)
into_option = click.option(
    "--into", type=FOLDER, default=MANIFESTS, help="Where the repository lies."
)
gather_option = click.option(
    "--gather", type=FOLDER, help="Where the signatures of several holders come together."
)
issued_option = click.option(
    "--issued", type=DAY, default=TODAY, help="The day that new versions carry; today."
)
drop_option = click.option(
    "--drop",
    "dropping",
    metavar="TAG",
    multiple=True,
    help="A revoked release that is to be forgotten; its users may start it again.",
)
