"""The program for hosts without a package index: a bundle, and a folder of wheels."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.bundles import PYTHON, ProgramShop
from support.folder_shop import FolderShop
from support.sessions import changed

from ci.fleetlab.fleet import SNAPSHOTS
from tsuku_operator.bundle.bundle import create_bundle
from tsuku_operator.bundle.bundle_choice import BundleWish


def press_program(folder: Path, into: Path) -> None:
    """Make ``program.bundle`` and ``wheels`` in a folder; the packages are this environment's.

    A bundle has a build, too; the role ``tool`` installs only the program from it.
    """
    folder.mkdir()
    program = ProgramShop(folder / "wheels")
    shop = FolderShop.offering(folder / "shop", "b1")
    session = changed(shop.session(folder / "operator"), environ=program.environ)
    wish = BundleWish(
        machines=(SNAPSHOTS / "two-h200.json",), pythons=(PYTHON,), wheel=program.wheel
    )
    create_bundle(session, into / "program.bundle", wish, lock=program.lock)
    shutil.copytree(program.index.folder, into / "wheels")
    shutil.copy(program.wheel, into / "wheels")
