"""The acts: each shows one thing on the fleet, and begins where the one before it ended."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ci.fleetlab.company import DEAD, company
from ci.fleetlab.fleet import DUO, FRAIL, HOSTS, STORE, VETERAN, fleet
from ci.fleetlab.network import OUTSIDE, make_switches
from ci.fleetlab.plays import BARE
from ci.fleetlab.press import press_program
from ci.fleetlab.show import SOUND, NotShownError, Show
from ci.fleetlab.timers import night
from tsuku_llm import __version__

EXPECTED = {each.name: each.variant for each in (*HOSTS, *FRAIL)}
CANARIES = {each.name for each in HOSTS if each.ring == "canary"}
MENDED = tuple(each.name for each in FRAIL)
FIRST = next(iter(EXPECTED))
"""The host of a play's first batch: the first of the inventory."""


def show_all(folder: Path, cgroups: Sequence[Path], program: Path) -> int:
    """Run each act; return 1 if one was not shown."""
    make_switches()
    with (
        fleet(folder / "machines", cgroups, program) as machines,
        company(folder, machines) as publisher,
    ):
        show = Show(machines, publisher)
        show.say(f"{len(machines.hosts)} hosts, a mirror and a control node run")
        press_program(folder / "press", machines.control.home)
        acts = (
            install_program,
            bring_up,
            run_again,
            fetch_metrics,
            stop_after_first_batch,
            push_through_rings,
        )
        try:
            for act in acts:
                act(show)
        except NotShownError as error:
            show.say(f"{error}\n{show.printed}")
            return 1
        show.say(f"all {show.shown} claims were shown")
        return 0


def install_program(show: Show) -> None:
    """Show the role ``tool``: from a bundle and from wheels, where no package index is."""
    nowhere = dict.fromkeys(BARE, "")
    show.require("two hosts have no program", show.of_all(show.program, BARE), nowhere)
    ended = show.play("tool.yml", "bare")
    show.require("the role tool installs it, from a bundle and from wheels", ended.failed, {})
    wanted = dict.fromkeys(BARE, f"tsuku-llm {__version__}")
    show.require("it runs there", show.of_all(show.program, BARE), wanted)
    again = show.play("tool.yml", "bare")
    changes = {name: each.changed for name, each in again.hosts.items()}
    show.require("a second run of it changes nothing", changes, dict.fromkeys(BARE, 0))


def bring_up(show: Show) -> None:
    """Show the first play: right variants, archives that cross once, two hosts that fail."""
    show.company.build("b1")
    show.company.sign(canary=["b1"], early=["b1"], all=["b1"])
    out = show.of_all(lambda host: show.reaches(host, OUTSIDE))
    show.require("no host reaches the outside", set(out.values()), {False})
    duo = show.fleet.hosts[DUO.name]
    with ThreadPoolExecutor(1) as pool:
        playing = pool.submit(show.play, "site.yml")
        # The middle of its download: some bytes of the archive have arrived.
        while not any(part.stat().st_size for part in duo.home.rglob("*.part")):
            if playing.done():
                raise NotShownError(f"duo did not download: {playing.result().text}")
            time.sleep(0.1)
        duo.link("data", "down")
        ended = playing.result()
    show.require("only the two frail hosts failed", sorted(ended.failed), sorted(MENDED))
    for name, reason in ended.failed.items():
        show.say(f"{name}: {reason}")
    reasons = {
        DUO.name: "Network is unreachable" in ended.failed[DUO.name],
        VETERAN.name: "are free" in ended.failed[VETERAN.name],
    }
    wanted = dict.fromkeys(MENDED, True)
    show.require("one names the network, the other one its disk", reasons, wanted)
    variants = {name: each.partition("-")[2] for name, each in show.of_all(show.active).items()}
    right = {name: EXPECTED[name] for name in SOUND}
    show.require("each host has the variant that a person expects", variants, right)
    show.require("each host's server runs b1", set(show.of_all(show.serves).values()), {"b1"})
    once = {f"b1-{name}.tar.gz": 1 for name in EXPECTED.values()}
    show.require("each archive crossed exactly once", dict(show.company.crossed()), once)


def run_again(show: Show) -> None:
    """Show that the same plays change nothing, and bring up the mended hosts."""
    changed = show.company.copy().hosts["mirror"].changed
    show.require("the mirror is up to date: its play changes nothing", changed, 0)
    before = show.of_all(show.state)
    show.company.release_brake()
    show.fleet.hosts[DUO.name].link("data", "up")
    show.fleet.ssh(VETERAN.name, "mount", "-o", "remount,size=1g", STORE)
    ended = show.play("site.yml")
    show.require("with the link and the disk mended, no host fails", ended.failed, {})
    changes = {name: ended.hosts[name].changed for name in SOUND}
    show.require("the second run changed nothing, it says", changes, dict.fromkeys(SOUND, 0))
    after = show.of_all(show.state)
    changed = {
        name: sorted(before[name].items() ^ after[name].items())
        for name in SOUND
        if before[name] != after[name]
    }
    show.require("nor does any file or process say otherwise", changed, {})
    mended = show.of_all(show.active, MENDED)
    wanted = {name: f"b1-{EXPECTED[name]}" for name in MENDED}
    show.require("the two mended hosts have their variants", mended, wanted)
    show.require("still, nothing crossed twice", set(show.company.crossed().values()), {1})
    # Each host one, and the rest of the download that was broken.
    asked = len(EXPECTED) + 1
    show.require(f"the mirror was asked for archives {asked} times", show.company.asked(), asked)


def fetch_metrics(show: Show) -> None:
    """Show the role ``exporter``: its timer writes, and a node exporter tells it over HTTP."""
    told = show.of_all(show.exported, tuple(EXPECTED))
    wanted = dict.fromkeys(EXPECTED, ("b1", 1.0))
    show.require("each node exporter tells that b1 serves there", told, wanted)


def stop_after_first_batch(show: Show) -> None:
    """Show a play with a release whose server is dead: it ends with the first host."""
    show.company.build("b2", DEAD)
    every = ["b2", "b1"]
    show.company.sign(canary=every, early=every, all=every)
    table = show.table("apply", "--update")
    states = {name: row.state for name, row in table.hosts.items()}
    wanted = {name: "went back" if name == FIRST else "not reached" for name in EXPECTED}
    show.require("fleet apply --update ends after its first batch", states, wanted)
    show.say(f"{FIRST}: {table.hosts[FIRST].reason}")
    show.require("its exit code says so", table.code, 10)
    serving = show.of_all(show.serves, tuple(EXPECTED))
    show.require("every host serves b1", set(serving.values()), {"b1"})
    show.require("the first host is back", show.active(FIRST), f"b1-{EXPECTED[FIRST]}")


def push_through_rings(show: Show) -> None:
    """Show the same release with timers: the first ring stops it, and else each host does."""
    show.company.sign(canary=["b2", "b1"], early=["b1"], all=["b1"])
    _night(show, "b2 in the first ring", CANARIES, CANARIES | {FIRST})
    # The rule of docs/rings.md is broken: it is signed for all, although the first ring went back.
    every = ["b2", "b1"]
    show.company.sign(canary=every, early=every, all=every)
    _night(show, "b2 in all rings", set(EXPECTED) - CANARIES - {FIRST}, set(EXPECTED))
    show.company.build("b3")
    every = ["b3", "b2"]
    show.company.sign(canary=every, early=every, all=every)
    _night(show, "b3 in all rings", set(), set(EXPECTED), "b3")
    rows = show.table("status").hosts.items()
    told = {name: (row.state, row.release) for name, row in rows}
    show.require("so says fleet status", told, dict.fromkeys(EXPECTED, ("active", "b3")))


def _night(
    show: Show, when: str, back: Collection[str], marked: Collection[str], serves: str = "b1"
) -> None:
    """Let all timers elapse; compare exit codes, metrics and servers with what must be."""
    ended = night(show.fleet)
    codes = {name: each.code for name, each in ended.items()}
    wanted = {name: 9 if name in back else 0 for name in EXPECTED}
    ends = f"the timers of {', '.join(sorted(back)) or 'no host'} end with 9, all others with 0"
    show.require(f"{when}: {ends}", codes, wanted)
    named = {name for name, each in ended.items() if "b2" in each.marked}
    show.require(f"the metrics of {len(marked)} hosts name b2", named, set(marked))
    releases = show.of_all(show.serves, tuple(EXPECTED))
    show.require(f"every host serves {serves}", releases, dict.fromkeys(EXPECTED, serves))
    variants = show.of_all(show.active, tuple(EXPECTED))
    right = {name: f"{serves}-{variant}" for name, variant in EXPECTED.items()}
    show.require("with its right variant", variants, right)
