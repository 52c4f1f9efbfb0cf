"""What real servers answered to ``--help``."""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "server_helps"


def recorded_help(tag: str) -> str:
    """Return the help of a release, as its Linux build printed it."""
    return (FOLDER / f"{tag}.txt").read_text("utf-8")
