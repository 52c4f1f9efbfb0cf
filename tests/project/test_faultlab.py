"""The fault laboratory itself: it must see what is wrong, and know what it did not see."""

import json
import random
from pathlib import Path

import pytest

from ci.faultlab.journal import Disk, Journal
from ci.faultlab.points import calls_in, can_fail, points_in
from ci.faultlab.recorder import ids_in, shown_by
from ci.faultlab.rows import Row, as_list, chosen, load_rows
from ci.faultlab.verdict import (
    Finished,
    Status,
    Tally,
    as_document,
    as_text,
    failed,
    from_documents,
    judge,
)

ROWS = {"M": 30, "A": 26, "H": 35, "C": 12, "L": 8, "X": 18, "R": 10}


def row(elsewhere: str = "") -> Row:
    return Row("A01", "Archives", "absolute path", elsewhere)


def tally(count: int = 1, *wrong: str, missing: str = "") -> Tally:
    return Tally("kills", count, list(wrong), missing)


# --- the table ---------------------------------------------------------------------------


def test_the_139_rows_are_there_and_each_id_once() -> None:
    ids = [each.id for each in load_rows()]
    goal = {f"{area}{n:02}" for area, last in ROWS.items() for n in range(1, last + 1)}
    assert len(goal) == 139
    assert goal <= set(ids)
    assert len(ids) == len(set(ids))


def test_rows_are_chosen_by_id_and_by_area() -> None:
    rows = load_rows()
    assert [each.id for each in chosen(rows, ["L", "C12"])] == [
        "C12",
        *(f"L{number:02}" for number in range(1, 10)),
    ]
    assert chosen(rows, []) == rows
    with pytest.raises(ValueError, match="there is no row A99"):
        chosen(rows, ["A99"])


def test_the_list_says_what_each_id_stands_for() -> None:
    shown = as_list(chosen(load_rows(), ["A01", "C12"])).splitlines()
    assert shown[:2] == ["Archives:", "  A01  absolute path"]
    assert shown[3].startswith("  C12  a torn or extended part")
    assert len(shown) == 4


def test_a_test_shows_the_rows_in_its_name() -> None:
    assert ids_in("tests/test_C01.py::test_A01_x[H15_range]") == {"A01", "H15"}
    assert ids_in("tests/a.py::test_SHA01_x[b10068]") == set()


def test_a_sample_has_tests_of_every_row_and_no_more_than_asked() -> None:
    nodes = [f"a.py::test_A01_x[{number}]" for number in range(9)]
    nodes += ["a.py::test_A02_x", "a.py::test_A03_A04_x", "a.py::test_A04_y", "a.py::test_z"]
    assert shown_by(nodes, {"A01", "A03"}) == {*nodes[:9], "a.py::test_A03_A04_x"}
    chosen = shown_by(nodes, ["A01", "A02", "A03", "A04"], 2)
    assert {row: sum(row in node for node in chosen) for row in ("A01", "A02", "A03", "A04")} == {
        **dict.fromkeys(("A01", "A04"), 2),
        **dict.fromkeys(("A02", "A03"), 1),
    }
    assert shown_by(nodes, {"A01"}, 2) == {"a.py::test_A01_x[0]", "a.py::test_A01_x[5]"}


# --- verdicts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "tallies", "status", "reason"),
    [
        (row(), [tally(3), tally(1)], Status.PASSED, "3 kills, 1 kills"),
        (row(), [tally(3, "odd"), tally(1)], Status.FAILED, "3 kills, 1 kills: odd"),
        (row(), [tally(3), tally(0, missing="no nginx")], Status.NOT_RUN, "kills: no nginx"),
        (row(), [tally(3, "odd"), tally(0, missing="no nginx")], Status.FAILED, "3 kills: odd"),
        (row(), [], Status.FAILED, "nothing ran that shows it"),
        (row(), [tally(0)], Status.FAILED, "nothing ran that shows it"),
        (row("needs Windows"), [tally(3)], Status.NOT_RUN, "needs Windows"),
    ],
)
def test_a_row_passes_if_all_its_tests_and_trials_ran_and_passed(
    of: Row, tallies: list[Tally], status: Status, reason: str
) -> None:
    verdict = judge(of, tallies)
    assert (verdict.status, verdict.reason) == (status, reason)
    assert failed([verdict]) == (status is Status.FAILED)


def test_the_table_of_several_runs() -> None:
    rows = load_rows()
    first = as_document([judge(each, [tally(1, "odd")]) for each in rows[:2]], {})
    second = as_document([judge(each, [tally(2)]) for each in rows[1:3]], {})
    verdicts = from_documents(rows, json.loads(json.dumps([first, second])))
    assert [each.status for each in verdicts[:3]] == [Status.FAILED, Status.PASSED, Status.PASSED]
    lines = as_text(verdicts).splitlines()
    assert lines[-1] == f"2 pass, 1 fail, {len(rows) - 3} not run"
    assert lines[2:5] == [
        "  A01  fail  1 kills: odd  [absolute path]",
        "        odd",
        "  A02  pass  2 kills  ['..' at the start, in the middle, at the end]",
    ]


# --- system calls ------------------------------------------------------------------------

LOG = """\
7 openat(AT_FDCWD, "/usr/lib/x", O_RDONLY) = 3
7 openat(AT_FDCWD, "/home/u/a", O_WRONLY|O_CREAT, 0644) = 3</home/u/a>
7 clone3({flags=CLONE_VM|CLONE_THREAD}) = 8
8 openat(AT_FDCWD, "/home/u/b", O_RDONLY) = 4</home/u/b>
8 openat(AT_FDCWD, "/home/u/c", O_RDONLY) = 4</home/u/c>
7 clone(child_stack=NULL, flags=SIGCHLD) = 9
9 unlink("/home/u/a") = 0
7 write(3</home/u/a>, "x", 1) = 1
"""


def test_every_call_of_the_program_on_its_folder_is_a_point() -> None:
    calls = calls_in(LOG, 7)
    points = points_in(calls, Path("/home/u"))
    assert [(each.call.name, each.ordinal, each.path) for each in points] == [
        ("openat", 2, ""),
        ("openat", 1, "b"),  # of another thread: the first openat is that of the library
        ("openat", 1, "c"),  # and the second is taken
        ("write", 1, ""),
    ]


def test_a_fault_is_injected_only_where_it_can_happen() -> None:
    made, *read, written = (call for call in calls_in(LOG, 7) if "/home" in call.text)
    assert all(can_fail(call, "ENOSPC") for call in (made, written))
    assert not any(can_fail(call, "ENOSPC") for call in read)
    assert all(can_fail(call, "EIO") for call in (made, *read, written))


# --- crash states ------------------------------------------------------------------------

WRITTEN = """\
1 openat(AT_FDCWD, "/d/.new", O_WRONLY|O_CREAT|O_EXCL, 0644) = 3</d/.new>
1 write(3</d/.new>, "new\\n", 4) = 4
"""
FLUSHED = "1 fsync(3</d/.new>) = 0\n"
RENAMED = '1 rename("/d/.new", "/d/file") = 0\n'
FOLDER_FLUSHED = "1 fsync(4</d>) = 0\n"


def states(log: str, *, at_the_end: bool = False) -> set[bytes | None]:
    """What a crash may leave of a file that is replaced."""
    before = Disk({(0, "file"): 1}, {0: None, 1: b"old\n"})
    journal = Journal(before, log, Path("/d"))
    chance = random.Random(0)  # noqa: S311  # no secret
    found = (
        journal.states_after(len(journal.changes), chance) if at_the_end else journal.states(chance)
    )
    return {disk.view().get("file") for _, disk in found}


def test_a_replacement_that_flushes_is_the_old_or_the_new() -> None:
    assert states(WRITTEN + FLUSHED + RENAMED + FOLDER_FLUSHED) == {b"old\n", b"new\n"}


def test_a_replacement_that_does_not_flush_may_be_empty_or_torn() -> None:
    assert states(WRITTEN + RENAMED) == {b"old\n", b"new\n", b"", b"ne", bytes(4)}


def test_only_flushed_names_survive() -> None:
    assert states(WRITTEN + FLUSHED + RENAMED, at_the_end=True) == {b"old\n", b"new\n"}
    log = WRITTEN + FLUSHED + RENAMED + FOLDER_FLUSHED
    assert states(log, at_the_end=True) == {b"new\n"}


def test_bytes_are_at_their_written_offsets() -> None:
    log = """\
1 openat(AT_FDCWD, "/d/part", O_RDWR|O_CREAT, 0644) = 3</d/part>
1 pwrite64(3</d/part>, "cd", 2, 2) = 2
2 pwrite64(3</d/part>, "a", 1, 0) = 1
1 ftruncate(3</d/part>, 3) = 0
"""
    assert Journal(Disk(), log, Path("/d")).after.view() == {"part": b"a\0c"}


def test_a_part_of_a_sweep_that_has_ended_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "parts"
    Finished(file).keep(tally(3, "it is damaged"), "C02", "install, TERM")
    Finished(file).keep(tally(4), "C02", "update, TERM")
    again, whole = Finished(file), tally(0)
    assert again.into(whole, "C02", "install, TERM")
    assert again.into(whole, "C02", "update, TERM")
    assert (whole.count, whole.wrong) == (7, ["it is damaged"])
    for row_id, part in ("C02", "install, INT"), ("C01", "install, TERM"):
        assert not again.into(whole, row_id, part)
    assert whole.count == 7


def test_parts_are_kept_for_one_run_without_a_file() -> None:
    finished, whole = Finished(), tally(0)
    finished.keep(tally(2), "C04", "prune, EIO")
    assert finished.into(whole, "C04", "prune, EIO")
    assert not Finished().into(whole, "C04", "prune, EIO")
