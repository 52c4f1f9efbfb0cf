"""Make the program without Python from the wheel that ``ci/package`` made.

    python -m ci.program OUT [--commit COMMIT] [--work FOLDER] [--maintainer 'NAME <ADDRESS>']

OUT has the wheel of the commit, and gets ``tsuku-llm-VERSION-linux-x86_64.tar.gz`` and
``tsuku-llm_VERSION_amd64.deb``. FOLDER keeps what the interpreter is made of, and the interpreter
itself, for the next run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from ci.program.folder import make_archive, make_deb, make_folder
from ci.program.interpreter import make_interpreter

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Make both files, and print their digests."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="the folder with the wheel")
    parser.add_argument(
        "--commit", default="HEAD", help="the wheel's: its time is that of the files"
    )
    parser.add_argument("--maintainer", default="", help="who publishes the .deb: NAME <ADDRESS>")
    parser.add_argument("--work", type=Path, default=ROOT / "build/program")
    arguments = parser.parse_args()
    os.umask(0o022)
    asked = ["git", "log", "-1", "--format=%ct", arguments.commit]
    time = int(subprocess.run(asked, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    (wheel,) = arguments.out.glob("tsuku_llm-*.whl")
    interpreter = make_interpreter(arguments.work.resolve())
    with tempfile.TemporaryDirectory(prefix="program-") as scratch:
        folder = make_folder(interpreter, wheel, Path(scratch))
        made = (
            make_archive(folder, arguments.out, time),
            make_deb(folder, arguments.out, time, Path(scratch), arguments.maintainer),
        )
    for each in made:
        print(hashlib.sha256(each.read_bytes()).hexdigest(), each)


if __name__ == "__main__":
    main()
