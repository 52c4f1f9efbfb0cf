"""The commands that change a store, and the releases that may be active during and after each."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ci.faultlab.bench import SECOND, Bench, Home


@dataclass(frozen=True)
class Operation:
    """A command, its initial home, and the releases that may be active during and after it.

    ``again`` lists the states in which the same command is run a second time. It leaves out a final
    state in which the command would undo itself or be refused.
    """

    name: str
    argv: tuple[str, ...]
    template: Home
    allowed: Collection[str | None]
    final: str | None
    again: Collection[str | None]
    codes: Collection[int] = ()
    """Further exit codes: a fault can hit pip, which the program starts."""
    stride: int = 1
    """A sweep takes one in so many of its points, as each run takes seconds."""

    def again_in(self, home: Home) -> Iterator[str]:
        """Run the same command once more without a fault; yield what is wrong after it."""
        # In any other state the command would fail or undo itself.
        if home.state() not in self.again:
            return
        ended = home.run(*self.argv)
        if ended.code:
            yield f"then ended with {ended.code}: {ended.stderr!r}"
        if home.state() != self.final:
            yield f"then ended in state {home.state()}"
        yield from (f"then {text}" for text in home.leftovers())


def operations(bench: Bench) -> Iterator[Operation]:
    """Yield the five commands; use each before asking for the next.

    An update takes the newest release, and releases published here stay.
    """
    tags = bench.new_tags(3)
    bench.publish(tags[0])
    fresh = bench.customer(f"before-{tags[0]}")
    states = {None, tags[0]}
    yield Operation("install", ("install",), fresh, states, tags[0], states)
    one = bench.derived(fresh, f"with-{tags[0]}", "install")
    bench.publish(tags[1])
    yield Operation("update", ("update",), one, {*tags[:2]}, tags[1], {*tags[:2]})
    two = bench.derived(one, f"with-{tags[1]}", "update")
    yield Operation("rollback", ("rollback",), two, {*tags[:2]}, tags[0], {tags[1]})
    remove = ("uninstall", tags[1])
    yield Operation("uninstall", remove, two, {tags[1], None}, None, {tags[1]})
    bench.publish(tags[2])
    three = bench.derived(two, f"with-{tags[2]}", "update")
    yield Operation("prune", ("prune",), three, {tags[2]}, tags[2], {tags[2]})


def other_sources(bench: Bench) -> Iterator[Operation]:
    """Yield an install from a second repository, and one through the package index.

    Use each before asking for the next.
    """
    tags = bench.new_tags(2)
    bench.publish_second(tags[0])
    two = bench.customer(f"before-{tags[0]}")
    root = bench.folder / "second-root.json"
    two.must("repository", "add", SECOND, bench.second.url, "--root", str(root))
    states = {None, tags[0]}
    argv = ("install", "--repository", SECOND)
    yield Operation("install from a second repository", argv, two, states, tags[0], states)
    bench.publish_wheel(tags[1])
    fresh = bench.customer(f"before-{tags[1]}")
    states = {None, tags[1]}
    argv = ("install", "--channel", "index")
    yield Operation("install through the index", argv, fresh, states, tags[1], states, (4,), 10)
