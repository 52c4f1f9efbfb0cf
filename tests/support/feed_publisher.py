"""A publisher whose nightly channel the feed fills, and the people who decide what it proposes."""

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomlkit
from support.own_publisher import ROLE
from support.release_data import copied_data, forget_releases, release_tool, signers_file
from support.upstream_host import Upstream

from tsuku_publish.feed.report import OPEN, FeedReport, Matter
from tsuku_publish.feed.run import Feed
from tsuku_publish.release_files.plan import load_plan
from tsuku_publish.release_files.releases import release_files

FUTURE = ("rocm-10.0", "cuda-13.4", "ubuntu-cuda", "win-vulkan-arm64")
"""What no rule of 8 August could know."""
MACHINE = ("machine", "online-1")


def told(people: Iterable[Matter | Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """What people have to do: the lines of each matter, by its key."""
    made = (each if isinstance(each, Matter) else Matter(**each) for each in people)
    return {each.key: (each.what, *each.facts) for each in made}


@dataclass
class FeedPublisher:
    """A data folder, the host that plays upstream, and what the last run said."""

    data: Path
    upstream: Upstream
    said: list[str] = field(default_factory=list)

    def run(self, **more: Any) -> FeedReport:
        """One run of the feed, at the host's time."""
        self.said.clear()
        return Feed(
            data=self.data,
            environ=self.upstream.environ,
            now=self.upstream.now,
            say=self.said.append,
            api=self.upstream.api,
            trusted_root=self.upstream.trusted_root,
            **more,
        ).run()

    def feed(self, *words: str) -> dict[str, Any]:
        """The answer of the command, at the host's time, in a process without signers."""
        words = ("feed", "--json", *words, *self.asked, "--data", str(self.data))
        done = release_tool(*words, **self.upstream.environ)
        assert done.returncode in (0, OPEN), done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)["data"]
        return answer

    def feed_and_sign(self) -> dict[str, Any]:
        """Take what is new, then sign the channel with the signers of its machine."""
        answer = self.feed()
        self.sign("--channel", "nightly", signers=MACHINE)
        return answer

    @property
    def asked(self) -> tuple[str, ...]:
        """The options of ``feed`` that name the host and its time."""
        root, now = str(self.upstream.trusted_root), f"{self.upstream.now:%Y-%m-%dT%H:%M}"
        return ("--api", self.upstream.api, "--trusted-root", root, "--now", now)

    def tool(self, *words: str, signers: Iterable[str] = ()) -> subprocess.CompletedProcess[str]:
        """A command of somebody with these signers; without names, of all together."""
        names = (*signers,) or (*load_plan(self.data).keys,)
        environ = signers_file(self.data.parent / "signers.json", *names)
        environ["XDG_STATE_HOME"] = str(self.data.parent / "state")
        return release_tool(*words, "--data", self.data, **environ, **self.upstream.environ)

    @property
    def nightly(self) -> tuple[str, ...]:
        return load_plan(self.data).channels["nightly"]

    @property
    def signed(self) -> Path:
        return self.data.parent / "signed"

    def files(self) -> dict[str, bytes]:
        """The signed repository, as a host serves it."""
        found = (path for path in self.signed.rglob("*") if path.is_file())
        return {path.relative_to(self.signed).as_posix(): path.read_bytes() for path in found}

    def documents(self) -> dict[str, Any]:
        """The release files of all channels, as ``sign`` makes them."""
        made = release_files(load_plan(self.data), self.data, self.upstream.trusted_root)
        return {json.loads(each.data)["release"]: json.loads(each.data) for each in made}

    def edit(self, name: str, change: Callable[[Any], object]) -> None:
        """Change a TOML file of the data, as a person does."""
        path = self.data / name
        document: Any = tomlkit.parse(path.read_text("utf-8"))
        change(document)
        path.write_text(tomlkit.dumps(document), "utf-8")

    def adopt(self, drafts: Iterable[str]) -> None:
        """Add drafted rules as they are, as a maintainer does after reading them."""

        def add(document: Any) -> None:
            for draft in map(tomlkit.parse, dict.fromkeys(drafts)):
                for name, table in draft.get("requires", {}).items():
                    document["requires"].setdefault(name, table)
                for kind in ("rule", "skip", "library"):
                    for each in draft.get(kind, ()):
                        document[kind].append(each)

        self.edit("rules.toml", add)

    def sign(self, *words: str, command: str = "sign", signers: Iterable[str] = ()) -> None:
        """Sign at the host's time; without names, everybody does."""
        words = (command, *words, "--trusted-root", str(self.upstream.trusted_root))
        done = self.tool(*words, "--issued", self.stamp, signers=signers)
        assert done.returncode == 0, done.stderr

    @property
    def stamp(self) -> str:
        return f"{self.upstream.now:%Y-%m-%dT%H:%M:%SZ}"


def feed_publisher(folder: Path, upstream: Upstream) -> FeedPublisher:
    """A publisher of 8 August, before its first run: rules of that day, and empty channels."""
    data = copied_data(folder / "data", "machine")
    forget_releases(data)
    made = FeedPublisher(data, upstream)

    def forget(document: Any) -> None:
        for at in reversed(range(len(document["rule"]))):
            if any(word in document["rule"][at]["asset"] for word in FUTURE):
                del document["rule"][at]

    made.edit("rules.toml", forget)
    empty: dict[str, list[str]] = {"stable": [], "nightly": [], "index": []}
    made.edit("repository.toml", lambda document: document["channels"].update(empty))
    made.edit("repository.toml", lambda document: document.update(signed=str(made.signed)))
    return made


def settled_publisher(folder: Path, upstream: Upstream) -> FeedPublisher:
    """A publisher who has adopted the rules that its first run drafted, half a day later."""
    made = feed_publisher(folder, upstream)
    made.adopt([each.draft for each in made.run().left_out if each.draft])
    made.run()
    upstream.pass_time(hours=12)
    return made


def delegate(publisher: FeedPublisher) -> None:
    """Let a machine sign the nightly channel alone."""
    path = publisher.data / "repository.toml"
    table = ROLE.format(name="nightly", days=30, signers=["machine"], threshold=1)
    path.write_text(path.read_text("utf-8").replace("# `check` fails", f"{table}\n# `check` fails"))
