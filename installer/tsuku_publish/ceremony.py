"""The order in which holders sign: at one machine, or one holder after another."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tsuku_llm.files import make_folder, replace_file
from tsuku_publish.copies import MemoryCopy, RepositoryFolder
from tsuku_publish.documents import ReleaseFile
from tsuku_publish.errors import PublishError
from tsuku_publish.folder import write
from tsuku_publish.plan import Plan
from tsuku_publish.signing import Signers, lacking, offline_files, sign


class Ceremony:
    """The signing of a plan and its release files into a repository; ``say`` reports progress."""

    def __init__(
        self,
        plan: Plan,
        releases: Sequence[ReleaseFile],
        signers: Signers,
        say: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._releases = releases
        self._signers = signers
        self._say = say

    def alone(self, into: Path) -> None:
        """Write the repository with the signers at hand. Raises ``PublishError``."""
        self._require_not_older(into)
        self._write(into, RepositoryFolder(into), MemoryCopy({}))

    def in_turn(self, into: Path, gathered: Path) -> None:
        """Add the signatures of the signers at hand to those gathered in a folder.

        The last holder writes the repository: when no threshold lacks a signature and the online
        signer is at hand. Raises ``PublishError``.
        """
        # First of all: no file may be written if the plan is older than what is published.
        self._require_not_older(into)
        published = RepositoryFolder(into)
        begun = RepositoryFolder(gathered)
        files = offline_files(self._plan, self._releases, self._signers, published, begun)
        for name, data in files.items():
            make_folder((gathered / name).parent)
            replace_file(gathered / name, data)
        missing = lacking(self._plan, files, published)
        for line in missing:
            self._say(line)
        if missing:
            return
        if set(self._plan.roles["timestamp"].signers) <= self._signers.keys():
            self._write(into, published, begun)
        else:
            self._say("every threshold is reached: it is the online signer's turn")

    def _require_not_older(self, into: Path) -> None:
        """Refuse to sign a version below the published one: that version had other content.

        The folder keeps only the newest version, so the contents cannot be compared.
        """
        for role in ("root", "targets"):
            names = (path.name.partition(".")[0] for path in into.glob(f"metadata/*.{role}.json"))
            published = max((int(name) for name in names if name.isdecimal()), default=0)
            planned = self._plan.roles[role].version
            if planned < published:
                raise PublishError(
                    f"{role} {planned} is planned, and {role} {published} is published already: "
                    "use --raise"
                )

    def _write(
        self, into: Path, published: RepositoryFolder, begun: RepositoryFolder | MemoryCopy
    ) -> None:
        files = sign(self._plan, self._releases, self._signers, published, begun)
        write(into, files)
        self._say(f"{into}: {len(files)} files, signed and checked")
