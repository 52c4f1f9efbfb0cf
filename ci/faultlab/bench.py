"""What the trials share: a release server, homes of users, and the program.

A home is a folder with everything that a run could write to: the program's folder, the user's home,
the folder for temporary files, and a file that must not change. Homes are copied from templates,
with their hard links.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import stat
import tempfile
import threading
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from support.forked import Ended, Program, Running
from support.program import environment
from support.release_server import ReleaseServer, release_server
from support.repository import RepositorySimulator, release_document
from support.waiting import Standstill

from ci.faultlab.verdict import Finished
from tsuku_llm.ground.errors import TsukuError
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.store import Store

WORKERS = 2
SECOND = "second"
"""The name of the second repository."""

_OUTSIDE = b"untouched"
_DAMAGED = "damaged"
_SLOW = """
location /slow/ { limit_rate 400k; }
location /large/ { limit_rate 12m; }
"""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Home:
    """One user's folders, and the program as this user runs it."""

    folder: Path
    program: Program
    settings: Mapping[str, str]

    @property
    def data(self) -> Path:
        """The store's folder."""
        return self.folder / "tsuku" / "llm"

    @property
    def store(self) -> Store:
        """The store, read by the program's own code."""
        return Store(self.data)

    def env(self, **extra: str) -> dict[str, str]:
        """Return the environment of a run."""
        own = {"HOME": str(self.folder / "home"), "TMPDIR": str(self.folder / "tmp")}
        return environment(self.folder / "tsuku", **{**self.settings, **own, **extra})

    def run(self, *argv: str, **extra: str) -> Ended:
        """Run the program to its end."""
        return self.start(*argv, **extra).end()

    def hold(self, *argv: str, **extra: str) -> Running:
        """Prepare a run that begins when it is released."""
        return self.program.hold(argv, self.env(**extra), self.folder / "home")

    def start(self, *argv: str, **extra: str) -> Running:
        """Run the program in the background."""
        running = self.hold(*argv, **extra)
        running.release()
        return running

    def traced(self, argv: Sequence[str], *options: str, **extra: str) -> tuple[Ended, str]:
        """Run the program to its end under strace; return strace's log, too."""
        return self.program.traced(argv, self.env(**extra), self.folder / "home", *options)

    def must(self, *argv: str, **extra: str) -> Ended:
        """Run a command that prepares something and has to succeed.

        Raises ``Standstill`` if it hangs and ``RuntimeError`` if it fails.
        """
        ended = self.run(*argv, **extra)
        if ended.hung:
            raise Standstill(f"{' '.join(argv)}: {ended.hung[0]}")
        if ended.code:
            raise RuntimeError(f"{' '.join(argv)} ended with {ended.code}: {ended.stderr}")
        return ended

    def make(self) -> None:
        """Make the folders; the temporary folder above them is private."""
        for name in ("tsuku", "home", "tmp"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "outside").write_bytes(_OUTSIDE)

    def remove(self) -> None:
        """Remove the home."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def state(self) -> str | None:
        """Return the active release, or "damaged" unless every byte is intact; None without one."""
        try:
            active = self.store.active()
        except TsukuError:
            return _DAMAGED
        if active is None:
            return None
        return active.receipt.release if self._intact(active) else _DAMAGED

    def wrong(self, allowed: Collection[str | None]) -> list[str]:
        """Return what is wrong after a fault: the state, other versions, foreign files."""
        found = []
        state = self.state()
        if state not in allowed:
            found.append(f"the state is {state}")
        found += [f"{version}: unverified under versions/" for version in self._unverified()]
        found += [f"written outside: {name}" for name in self._foreign()]
        return found

    def runs(self) -> list[str]:
        """Return an error unless the installed version starts.

        Without an installed version, ``serve`` must end with 7.
        """
        ended = self.run("serve", "--exec", "--", "--version")
        wanted = 0 if self.store.installed() else 7
        return [] if ended.code == wanted else [f"serve ended with {ended.code}: {ended.stderr!r}"]

    def leftovers(self) -> list[str]:
        """Return the files that a command must not leave behind when it succeeds."""
        folders = (self.data / "staging", self.data / "partials", self.folder / "tmp")
        names = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
        names += [path for path in self.data.rglob("*") if path.suffix in (".tmp", ".pid")]
        return [f"left behind: {path.relative_to(self.folder)}" for path in names]

    def _unverified(self) -> Iterator[str]:
        yield from self.store.damaged()
        yield from (each.id for each in self.store.installed() if not self._intact(each))

    def _intact(self, version: Installed) -> bool:
        try:
            self.store.check(version, full=True)
        except TsukuError:
            return False
        return True

    def _foreign(self) -> Iterator[str]:
        # Only these four names belong in the folder, and the user's home must stay empty.
        yield from {path.name for path in self.folder.iterdir()} - {
            *("tsuku", "home", "tmp", "outside")
        }
        yield from (str(path) for path in (self.folder / "home").rglob("*"))
        if (self.folder / "outside").read_bytes() != _OUTSIDE:
            yield "outside"


class Bench:
    """A release server, a fork server, and homes made from templates.

    Trials use it from several threads: the lock guards the counters of names and releases.
    """

    def __init__(
        self, folder: Path, shop: ReleaseServer, program: Program, finished: Finished
    ) -> None:
        self.folder = folder
        self.shop = shop
        self.program = program
        self.finished = finished
        self._numbers = itertools.count()
        self._releases = itertools.count(1)
        self._lock = threading.Lock()
        self._machine = folder / "machine.json"
        self.second = RepositorySimulator(f"{shop.nginx.url}/{SECOND}/", name=SECOND)
        (folder / "second-root.json").write_bytes(self.second.pinned_root)
        # Record this machine once: later homes replay it and load no driver.
        self.new_home("prober").must("probe", "--record", str(self._machine))

    def new_home(self, name: str, folder: Path | None = None) -> Home:
        """Make an empty home; its user trusts the release server's certificate.

        The hardware is a recording of this machine: no fault here is about the probe.
        """
        settings = {"SSL_CERT_FILE": str(self.shop.nginx.authority)}
        settings |= {"NO_PROXY": "localhost,127.0.0.1"}
        links = str(self.folder / "links")  # the package index, for pip
        settings |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": links}
        settings |= {"RUSTUP_HOME": str(self.folder / "rustup")}  # for rustc, which pip runs
        if self._machine.exists():
            settings |= {"TSUKU_LLM_FAKE_HARDWARE": str(self._machine)}
        home = Home((folder or self.folder) / name, self.program, settings)
        home.make()
        return home

    def customer(self, name: str, folder: Path | None = None) -> Home:
        """Make a home whose user has added the release server's repository and uses it."""
        home = self.new_home(name, folder)
        root = self.folder / "root.json"
        root.write_bytes(self.shop.simulator.pinned_root)
        shop = self.shop.simulator
        home.must("repository", "add", shop.name, shop.url, "--root", str(root))
        home.must("config", "set", "llm.repository", shop.name)
        return home

    def derived(self, template: Home, name: str, *argv: str) -> Home:
        """Copy a home for good, and run one more command in the copy."""
        home = Home(self.folder / name, self.program, template.settings)
        copy_tree(template.folder, home.folder)
        home.must(*argv)
        return home

    @contextlib.contextmanager
    def made(self, template: Home, write: Callable[[Path], None]) -> Iterator[Home]:
        """Yield a home for the block; ``write`` creates the program's folder."""
        home = Home(self.folder / self._name("made"), self.program, template.settings)
        home.make()
        (home.folder / "tsuku").rmdir()
        write(home.folder / "tsuku")
        try:
            yield home
        finally:
            home.remove()

    def _name(self, word: str) -> str:
        # Trials run in several threads, and two of them must not get the same name.
        with self._lock:
            return f"{word}-{next(self._numbers)}"

    # Releases

    def new_tags(self, count: int) -> list[str]:
        """Return tags of releases that are not published yet, each newer than the one before."""
        # The same for tags: releases of different threads must differ.
        with self._lock:
            return [f"b{next(self._releases)}" for _ in range(count)]

    def publish(self, tag: str, serve: Sequence[str] = ("listen",)) -> None:
        """Publish a release of two archives, with a file that no other release has.

        Its server does the steps of ``serve``.
        """
        packed = self.shop.stand_in(f"{tag}-cpu", padding=3000, serve=serve)
        runtime = self.shop.companion(f"{tag}-runtime")
        self.shop.publish(tag, {"cpu": self.shop.variant(packed, runtime)})

    def publish_second(self, tag: str) -> None:
        """Publish a release of one archive in the second repository."""
        variant = self.shop.variant(self.shop.stand_in(f"{tag}-cpu", padding=3000))
        platform = {"default": "cpu", "preference": {"portable": ["cpu"], "native": ["cpu"]}}
        platforms = {"linux-amd64": {**platform, "variants": {"cpu": variant}}}
        self.second.publish(release_document(tag, platforms=platforms))
        self.second.write(self.shop.nginx.root / SECOND)

    def publish_wheel(self, tag: str) -> None:
        """Publish a release in the channel ``index``: its archive is a wheel that pip downloads."""
        tree = self.shop.nginx.root.parent / "builds" / f"{tag}-cpu"
        self.shop.stand_in(f"{tag}-cpu", padding=3000)
        project, links = f"tsuku_faults_{tag}", self.folder / "links"
        links.mkdir(exist_ok=True)
        path = links / f"{project}-1.0-py3-none-any.whl"
        about = f"{project}-1.0.dist-info"
        with zipfile.ZipFile(path, "w") as wheel:
            for file in sorted(each for each in tree.rglob("*") if each.is_file()):
                wheel.write(file, f"{project}/bin/{file.name}")
            wheel.writestr(
                f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n"
            )
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
        data = path.read_bytes()
        name = project.replace("_", "-")
        artifact = {
            "url": f"pkg:pypi/{name}@1.0?file_name={path.name}",
            "sha256": hashlib.sha256(data).hexdigest(),
            "size": len(data),
            "format": "wheel",
            "root": f"{project}/bin",
        }
        variant = {**self.shop.variant(), "artifacts": [artifact]}
        self.shop.publish(tag, {"cpu": variant}, channels=("index",))

    @contextlib.contextmanager
    def copy(self, template: Home) -> Iterator[Home]:
        """Yield a copy of a home for the block."""
        home = Home(self.folder / self._name("copy"), self.program, template.settings)
        copy_tree(template.folder, home.folder)
        for version in home.store.installed():
            home.store.check(version)  # a copy has other inodes: store their fingerprints
        try:
            yield home
        finally:
            home.remove()


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder with its modes, symbolic links and hard links; the target may exist."""
    seen: dict[int, Path] = {}
    for folder, names, files in os.walk(source):
        here = target / Path(folder).relative_to(source)
        here.mkdir(exist_ok=here == target)
        here.chmod(stat.S_IMODE(Path(folder).stat().st_mode))
        for name in (*files, *(name for name in names if (Path(folder) / name).is_symlink())):
            _copy_file(Path(folder) / name, here / name, seen)


def _copy_file(source: Path, target: Path, seen: dict[int, Path]) -> None:
    status = source.lstat()
    if stat.S_ISLNK(status.st_mode):
        target.symlink_to(source.readlink())
    # The same file under another name: keep it one file, as the store links shared files.
    elif status.st_ino in seen:
        target.hardlink_to(seen[status.st_ino])
    else:
        shutil.copy2(source, target)
        if status.st_nlink > 1:
            seen[status.st_ino] = target


@contextlib.contextmanager
def open_bench(finished: Finished) -> Iterator[Bench]:
    """Yield a bench on a memory disk if there is one: thousands of installs flush their files."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # a unique folder
    with tempfile.TemporaryDirectory(prefix="faults-", dir=memory) as name:
        # strace prints resolved paths, and they are compared with this one.
        folder = Path(name).resolve()
        with release_server(folder / "shop", _SLOW) as shop:
            program = Program(folder)
            try:
                yield Bench(folder, shop, program, finished)
            finally:
                program.close()


def side_by_side(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int = WORKERS
) -> Iterator[tuple[Item, Result]]:
    """Do work on several items in a pool of threads; yield each with its result, in their order."""
    listed = list(items)
    with ThreadPoolExecutor(workers) as pool:
        yield from zip(listed, pool.map(work, listed), strict=True)


def sample(items: Sequence[Item], one_in: int) -> list[Item]:
    """Return one in ``one_in`` of the items, always with the last one; all for 1."""
    return [item for at, item in enumerate(reversed(items)) if at % one_in == 0][::-1]
