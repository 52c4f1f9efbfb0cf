"""``use``, ``rollback``, ``uninstall``, ``prune``, ``verify`` and ``list`` on what is installed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.processes import gone
from support.program import COMMAND, Result, environment, run_on_terminal, run_program
from support.stored import FILES, install, snapshot

from tsuku_llm.cli.terminal.text import size as shown
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.integrity import stamp_of
from tsuku_llm.store.store import Store

posix = pytest.mark.skipif(os.name != "posix", reason="the server is a shell script")
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells who uses a file")

Program = Callable[..., Result]
AsJson = Callable[..., Any]

SERVER = b"#!/bin/sh\necho ready\nexec sleep 1000\n"


@pytest.fixture
def store(tsuku_home: Path) -> Store:
    tsuku_home.mkdir(mode=0o755)
    return Store(tsuku_home / "llm")


def put(store: Store, release: str, variant: str = "cpu") -> Installed:
    return install(store, release, variant, files={**FILES, "llama-server": SERVER})


@contextmanager
def running(*flags: str) -> Iterator["subprocess.Popen[str]"]:
    """``serve``, whose server runs until the end of the block."""
    with subprocess.Popen(
        [*COMMAND, "serve", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        try:
            assert child.stdout
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.terminate()


def active(store: Store) -> str | None:
    found = store.active()
    return found.id if found else None


# --- use and rollback --------------------------------------------------------------------


@pytest.mark.parametrize("word", ["b100", "vulkan", None], ids=["release", "variant", "id"])
def test_a_version_can_be_named_by_anything_unique(
    word: str | None, store: Store, program: Program
) -> None:
    old, _ = put(store, "b100", "vulkan"), put(store, "b200")
    result = program("use", word or old.id)
    assert (result.code, result.stderr) == (0, "")
    origin = "built by ggml-org, from repository official"
    assert result.stdout == (
        f"The CPU build b100 is active now.\n  vulkan of b100 (0.1.0), {origin}\n  in {old.tree}\n"
    )
    assert active(store) == old.id
    assert program("which").stdout == f"{old.tree / 'llama-server'}\n"


def test_an_ambiguous_name_is_refused_with_all_matches(store: Store, program: Program) -> None:
    old, new, _ = put(store, "b100"), put(store, "b200"), put(store, "b300", "vulkan")
    for word in ("cpu", "0.1.0", "v0.1.0"):
        result = program("use", word)
        assert result.code == 2
        assert f"  installed: {old.id}\n  installed: {new.id}\n" in result.stderr
    assert active(store) != old.id


def test_an_unknown_name_is_refused_with_the_installed_versions(
    store: Store, program: Program, as_json: AsJson
) -> None:
    hint = as_json("use", "b100")["error"]["hint"]
    assert hint == "to install it: tsuku-llm install --release b100"
    assert as_json("use", "that")["error"]["hint"] == "run: tsuku-llm install"
    installed = put(store, "b100")
    for words in (("use", "b9"), ("uninstall", "b9"), ("verify", "b9", "b100")):
        result = program(*words)
        assert (result.code, result.stdout) == (7, "")
        assert result.stderr.startswith("error[not-installed]: b9 is not installed\n")
        assert f"  installed: {installed.id}\n" in result.stderr
    assert active(store) == installed.id
    hint = as_json("use", "b10")["error"]["hint"]
    assert hint == "did you mean b100? Or to install it: tsuku-llm install --release b10"
    assert as_json("use", "b100-")["error"]["hint"] == "did you mean b100?"
    assert as_json("use", "b7x")["error"]["hint"] == "see: tsuku-llm list"
    hint = as_json("use", "HIP")["error"]["hint"]
    assert hint == "to install it: tsuku-llm install --backend rocm"


def test_a_backend_names_its_only_build(store: Store, program: Program) -> None:
    cpu, cuda = (
        install(store, "b100", variant, files={**FILES, "llama-server": SERVER}, backend=backend)
        for variant, backend in (("cpu", "cpu"), ("cuda-13.4", "cuda"))
    )
    for word, version in (("cpu", cpu), ("cuda", cuda), ("CUDA", cuda)):
        assert program("use", word).code == 0
        assert active(store) == version.id


def test_a_damaged_version_cannot_be_activated(store: Store, program: Program) -> None:
    changed, unreadable, new = put(store, "b100"), put(store, "b200"), put(store, "b300")
    (changed.tree / "llama-server").write_bytes(b"evil")
    (unreadable.path / "receipt.json").write_bytes(b"{")
    assert program("use", changed.id).code == 5
    assert program("use", unreadable.id).code == 6
    assert active(store) == new.id


@pytest.mark.parametrize("content", [b"{", b"[]", b"\0" * 60], ids=["cut off", "list", "zeros"])
def test_a_damaged_receipt_names_the_build_that_is_to_be_installed_again(
    store: Store, program: Program, content: bytes
) -> None:
    damaged = put(store, "b200", "cuda-13.4")
    (damaged.path / "receipt.json").write_bytes(content)
    done = program("use", damaged.id)
    assert done.code == 6
    assert f"the receipt of {damaged.id} is not readable" in done.stderr
    assert "tsuku-llm install --force --release b200 --backend cuda-13.4 installs" in done.stderr


def test_rollback_goes_back_and_forth(store: Store, as_json: AsJson) -> None:
    old, new = put(store, "b100"), put(store, "b200")
    assert as_json("rollback")["data"]["id"] == active(store) == old.id
    assert as_json("rollback")["data"]["id"] == active(store) == new.id


def test_rollback_says_where_it_went_and_how_to_return(store: Store, program: Program) -> None:
    old, _ = put(store, "b100", "vulkan"), put(store, "b200")
    said = program("rollback").stdout.splitlines()
    assert said[0] == "Went back to the CPU build b100."
    assert said[2:] == [f"  in {old.tree}", "to return to the version before: tsuku-llm rollback"]
    assert program("-q", "rollback").stdout.splitlines()[0] == "Went back to the CPU build b200."


def test_without_an_earlier_version_rollback_changes_nothing(
    store: Store, program: Program
) -> None:
    assert program("rollback").code == 7
    installed = put(store, "b100")
    result = program("rollback")
    assert (result.code, result.stdout) == (7, "")
    assert "there is no earlier version to go back to" in result.stderr
    assert active(store) == installed.id


def test_activating_a_version_of_another_backend_than_the_setting_warns(
    store: Store, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "b100", "vulkan")
    put(store, "b200")
    monkeypatch.setenv("TSUKU_LLM_BACKEND", "vulkan")
    assert program("use", "b100").stderr == ""
    for words in (("use", "b200"), ("rollback",), ("rollback",)):
        result = program(*words)
        assert ("llm.backend is vulkan" in result.stderr) == ("of b200" in result.stdout)


# --- uninstall ---------------------------------------------------------------------------


def test_uninstall_removes_the_named_version_and_updates_the_pointer(
    store: Store, as_json: AsJson
) -> None:
    oldest, old, new = put(store, "b100"), put(store, "b200"), put(store, "b300")
    told = as_json("uninstall", "b200", oldest.id, "b100")
    data = told["data"]
    assert (data["removed"], data["foreign"]) == ([old.id, oldest.id], [])
    assert data["active"]["id"] == new.id
    assert store.installed() == (new,)
    assert store.previous() is None
    assert as_json("uninstall", "b300")["data"]["removed"] == [new.id]
    assert as_json("rollback")["exit_code"] == as_json("which")["exit_code"] == 7


def test_rollback_finds_the_previous_version_without_an_active_one(
    store: Store, program: Program
) -> None:
    old, _ = put(store, "b100"), put(store, "b200")
    result = program("uninstall", "b200")
    assert result.stdout.splitlines()[-1].startswith("nothing is active; ")
    assert program("rollback").code == 0
    assert active(store) == old.id


@pytest.mark.parametrize("words", [(), ("b100", "--all")], ids=["nothing", "both"])
def test_uninstall_takes_names_or_all_but_not_both(
    words: tuple[str, ...], store: Store, program: Program
) -> None:
    put(store, "b100")
    assert program("uninstall", *words).code == 2
    assert len(store.installed()) == 1


def test_uninstall_all_removes_damaged_versions_too(store: Store, program: Program) -> None:
    put(store, "b100")
    damaged = put(store, "b200")
    (damaged.path / "receipt.json").unlink()
    result = program("uninstall", "--all")
    lines = result.stdout.splitlines()
    assert (result.code, lines[0], len(lines)) == (0, "Removed 2 items:", 4)
    assert list((store.data / "versions").iterdir()) == []
    assert program("uninstall", "--all").stdout.startswith("There was nothing to remove.\n")


def test_a_damaged_version_is_removed_by_its_id(store: Store, program: Program) -> None:
    damaged, new = put(store, "b100"), put(store, "b200")
    (damaged.path / "receipt.json").write_bytes(b"")
    assert program("uninstall", damaged.id).code == 0
    assert store.damaged() == {}
    assert active(store) == new.id


def test_a_dry_run_of_uninstall_says_the_same_and_removes_nothing(
    store: Store, program: Program, as_json: AsJson
) -> None:
    kept, new = put(store, "b100"), put(store, "b200")
    result = program("uninstall", "b200", "--dry-run")
    assert result.stdout == f"Would remove {new.id}.\nthen nothing is active\n"
    told = as_json("uninstall", "b100", "--dry-run")["data"]
    assert (told["removed"], told["active"]["id"]) == ([kept.id], new.id)
    assert [each.id for each in store.installed()] == [kept.id, new.id]
    assert active(store) == new.id
    assert as_json("uninstall", "b100")["data"] == told


@linux
@pytest.mark.parametrize("flags", [(), ("--exec",)], ids=["watched", "exec"])
def test_L07_a_version_in_use_is_not_uninstalled(
    flags: tuple[str, ...], store: Store, program: Program
) -> None:
    other, used = put(store, "b100"), put(store, "b200")
    with running(*flags) as server:
        result = program("uninstall", "--all")
        assert result.code == 6
        lines = result.stderr.splitlines()
        assert lines[0] == f"error[in-use]: a running server uses {used.id}"
        assert any(f"process {server.pid} (" in line for line in lines)
        assert f"  removed: {other.id}" in lines
        assert server.poll() is None
        assert active(store) == used.id
        store.check(used, full=True)
    assert program("uninstall", "--all").code == 0
    assert store.installed() == ()


@linux
def test_L07_a_server_without_its_supervisor_still_holds_its_version(
    store: Store, program: Program
) -> None:
    """Who has the descriptor holds the version: here a grandchild, after both others ended."""
    script = b"#!/bin/sh\nsetsid sleep 1000 >/dev/null 2>&1 &\necho $!\n"
    installed = install(store, files={**FILES, "llama-server": script})
    pid = int(run_program("serve", "--exec", env=dict(os.environ)).stdout)
    try:
        assert f"process {pid} (" in program("uninstall", "--all").stderr
        assert store.installed() == (installed,)
    finally:
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)
    assert program("uninstall", "--all").code == 0


# --- prune -------------------------------------------------------------------------------


def test_prune_keeps_the_active_the_previous_and_the_youngest(
    store: Store, as_json: AsJson
) -> None:
    versions = [put(store, f"b{number}") for number in (100, 200, 300, 400, 500)]
    told = as_json("prune", "--keep", "1")["data"]
    assert told["removed"] == [version.id for version in versions[:2]]
    assert store.installed() == tuple(versions[2:])
    assert as_json("prune", "--keep", "7")["data"]["removed"] == []
    assert as_json("prune")["data"]["removed"] == [versions[2].id]
    assert active(store) == versions[4].id
    assert store.previous() == versions[3]


def test_prune_of_nothing_makes_nothing(tsuku_home: Path, program: Program) -> None:
    assert program("prune") == Result(0, "There was nothing to remove.\n", "")
    assert not tsuku_home.exists()
    assert program("prune", "--keep", "-1").code == 2


def test_without_an_active_version_prune_removes_no_version(store: Store, program: Program) -> None:
    versions = tuple(put(store, f"b{number}") for number in (100, 200, 300))
    (store.data / "active.json").write_bytes(bytes(60))
    assert program("prune").code == 0
    assert store.installed() == versions


def test_prune_removes_leftovers_and_damaged_versions(store: Store, program: Program) -> None:
    damaged, _, _ = put(store, "b100"), put(store, "b200"), put(store, "b300")
    (damaged.path / "receipt.json").unlink()
    (store.partials / f"{'a' * 64}.part").write_bytes(b"half")
    (store.data / "staging" / ("01" * 8)).mkdir()
    assert program("prune").stdout == f"Removed {damaged.id}.\n"
    assert list(store.partials.iterdir()) == []
    assert list((store.data / "staging").iterdir()) == []


def test_a_dry_run_of_prune_removes_nothing_and_says_the_same(
    store: Store, program: Program, as_json: AsJson
) -> None:
    old, _, _ = put(store, "b100"), put(store, "b200"), put(store, "b300")
    left = store.partials / f"{'a' * 64}.part"
    left.write_bytes(b"half")
    would = as_json("prune", "--dry-run")["data"]
    assert program("prune", "--dry-run").stdout == f"Would remove {old.id}.\n"
    assert left.exists()
    assert len(store.installed()) == 3
    assert as_json("prune")["data"] == would
    assert program("prune", "--dry-run").stdout == "There was nothing to remove.\n"


def test_list_has_the_size_of_each_version(store: Store, program: Program, as_json: AsJson) -> None:
    version = put(store, "b100")
    size = sum(path.stat().st_size for path in version.tree.rglob("*") if not path.is_symlink())
    size -= sum(path.stat().st_size for path in version.tree.rglob("*") if path.is_dir())
    (told,) = as_json("list")["data"]["versions"]
    assert told["size"] == size > 0
    assert f" {shown(size)} " in program("list").stdout


@linux
@pytest.mark.parametrize("flags", [(), ("--exec",)], ids=["watched", "exec"])
def test_L07_prune_keeps_versions_in_use(
    flags: tuple[str, ...], store: Store, program: Program
) -> None:
    used = put(store, "b100")
    with running(*flags) as server:
        put(store, "b200")
        put(store, "b300")
        kept = f"kept {used.id}: it is in use\n"
        assert program("prune").stdout == f"There was nothing to remove.\n{kept}"
        assert server.poll() is None
    assert program("prune").stdout == f"Removed {used.id}.\n"


# --- verify and list ---------------------------------------------------------------------


def unsigned(release: str) -> str:
    """What is said of a release that the embedded metadata does not know."""
    return (
        "compared with its receipt only, which is not signed: "
        f"{release} of repository official is no longer in its signed metadata"
    )


def test_verify_reports_intact_versions(store: Store, program: Program, as_json: AsJson) -> None:
    assert (
        program("verify").stdout == "Nothing is installed.\nto install a build: tsuku-llm install\n"
    )
    old, new = put(store, "b100"), put(store, "b200")
    lines = [f"{each.id}: intact, {unsigned(each.receipt.release)}" for each in (old, new)]
    lines.insert(0, "2 versions were checked: every file is as it was installed.")
    assert program("verify") == Result(0, "\n".join([*lines, ""]), "")
    assert [each["id"] for each in as_json("verify", "b200")["data"]["versions"]] == [new.id]


@posix
def test_verify_shows_which_version_it_checks(store: Store) -> None:
    """On a terminal at once, and elsewhere only if it lasts."""
    installed = put(store, "b100")
    code, said = run_on_terminal(b"", "verify", env=os.environ)
    assert code == 0
    assert f"checking the files of {installed.id}" in said


def test_verify_names_changed_missing_and_foreign_files_at_once(
    store: Store, program: Program, as_json: AsJson
) -> None:
    old, new = put(store, "b100"), put(store, "b200")
    server = old.tree / "llama-server"
    server.unlink()  # it is another version's, too
    server.write_bytes(SERVER[::-1])
    server.chmod(0o755)
    (old.tree / "share" / "licenses" / "LICENSE").unlink()
    (old.tree / "libggml-evil.so").write_bytes(b"x")
    result = program("verify")
    assert result.code == 5
    repair = "tsuku-llm install --force --release b100 --backend cpu --repository official"
    assert result.stdout == (
        "2 versions were checked: 1 is not as it was installed.\n"
        f"{old.id}: not as it was installed\n"
        "  missing: share/licenses/LICENSE\n"
        "  not part of the build: libggml-evil.so\n"
        "  content changed: llama-server\n"
        f"  {unsigned('b100')}\n"
        f"  to repair it: {repair}\n"
        f"{new.id}: intact, {unsigned('b200')}\n"
    )
    assert result.stderr == (
        "error[tampered-install]: 1 of 2 installed versions are not as they were installed\n"
        f"  {old.id}\n"
        f"hint: run: {repair}\n"
    )
    told = as_json("verify", old.id)
    assert told["error"]["code"] == "tampered-install"
    assert [each["intact"] for each in told["data"]["versions"]] == [False]
    assert program("verify", new.id).code == 0


def test_verify_shows_every_changed_file(store: Store, as_json: AsJson) -> None:
    installed = install(store)
    for number in range(50):
        (installed.tree / f"extra-{number}").write_bytes(b"")
    assert len(as_json("verify")["data"]["versions"][0]["differences"]) == 50


def test_verify_hashes_files_that_look_unchanged(store: Store, program: Program) -> None:
    installed = install(store)
    library = installed.tree / "libggml-base.so.0.9.5"
    library.write_bytes(b"evil" * 500)
    stamps = json.loads((installed.path / "fingerprint.json").read_bytes())
    stamps["files"][library.name] = stamp_of(library.stat())
    (installed.path / "fingerprint.json").write_text(json.dumps(stamps))
    store.check(installed)  # a forged fingerprint passes the quick check
    result = program("verify")
    assert result.code == 5
    assert f"content changed: {library.name}" in result.stdout


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"{}")])
def test_a_version_without_a_receipt_is_named_by_list_and_verify(
    spoil: Callable[[Path], object], store: Store, program: Program, as_json: AsJson
) -> None:
    damaged, _ = put(store, "b100"), put(store, "b200")
    spoil(damaged.path / "receipt.json")
    assert f"damaged: {damaged.id}: " in program("list").stdout
    assert [*as_json("list")["data"]["damaged"]] == [damaged.id]
    result = program("verify")
    assert result.code == 5
    assert f"to repair it: tsuku-llm uninstall {damaged.id}" in result.stdout


@pytest.mark.parametrize("spoil", ["pointer", "version"])
def test_list_works_if_nothing_can_be_active(spoil: str, store: Store, program: Program) -> None:
    old, new = put(store, "b100"), put(store, "b200")
    if spoil == "pointer":
        (store.data / "active.json").write_bytes(b"{")
    else:
        shutil.rmtree(new.path)
    result = program("list")
    assert (result.code, result.stderr) == (0, "")
    assert old.id in result.stdout
    assert "not readable" in result.stdout or "does not exist" in result.stdout
    assert program("use", "b100").code == 0
    assert active(store) == old.id


def test_the_version_to_roll_back_to_is_marked(store: Store, program: Program) -> None:
    put(store, "b100")
    put(store, "b200")
    rows = [line.split() for line in program("list").stdout.splitlines()]
    assert (rows[0][0], rows[0][-1]) == ("b100", "previous")
    assert rows[1][:2] == ["*", "b200"]


# --- locks and other users ---------------------------------------------------------------


@posix
def test_L04_a_waiting_command_names_the_holder_of_the_lock(store: Store) -> None:
    old, _ = put(store, "b100"), put(store, "b200")
    driver = Path(__file__).parents[1] / "support" / "store_process.py"
    command = [sys.executable, driver, "hold", store.data, old.id]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        try:
            env = {**os.environ, "TSUKU_LLM_LOCK_TIMEOUT": "1"}
            result = run_program("use", "b100", env=env)
        finally:
            holder.send_signal(signal.SIGCONT)
        assert holder.stdin
        holder.stdin.close()
    assert result.code == 6
    lines = result.stderr.splitlines()
    assert lines[0].startswith(f"waiting for another tsuku-llm (process {holder.pid})")
    assert lines[1].startswith("error[lock-timeout]: ")
    assert f"  lock: {store.data / 'locks' / old.id}.lock" in lines
    assert any(f"kill -CONT {holder.pid}" in line for line in lines)
    assert run_program("use", "b100", env=dict(os.environ)).code == 0


NOBODY = {"user": 65534, "group": 65534, "extra_groups": ()}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root installs")
def test_X13_a_system_install_serves_every_user_and_is_not_changed(
    store: Store, tsuku_home: Path
) -> None:
    installed = put(store, "b100")
    script = b"#!/bin/sh\necho served $*\n"
    installed = install(store, "b200", files={**FILES, "llama-server": script})
    (installed.tree / "llama-server").touch()  # a check now has to hash, and cannot note it
    for folder in (tsuku_home, *tsuku_home.parents):
        folder.chmod(folder.stat().st_mode | 0o055)
    before = snapshot(tsuku_home)

    unmeasured = {  # the user "nobody" cannot write the coverage data either
        name: value
        for name, value in environment(tsuku_home, HOME="/nonexistent").items()
        if not name.startswith("COV")
    }

    def as_nobody(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-B", "-m", "tsuku_llm", *words],
            env=unmeasured,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            **NOBODY,  # type: ignore[call-overload]
        )

    try:
        works = as_nobody("--version").returncode == 0
    except OSError:
        works = False
    if not works:
        pytest.skip("another user cannot run this Python")
    assert installed.id in as_nobody("list").stdout
    assert as_nobody("which").stdout == f"{installed.tree / 'llama-server'}\n"
    assert as_nobody("verify").returncode == 0
    for flags in ((), ("--exec",)):
        # An answer, not a start: this server ends with 0.
        done = as_nobody("serve", *flags, "--", "--version")
        assert (done.returncode, done.stdout) == (0, "served --version\n"), done.stderr
    for words in (
        ("install", "--backend", "cpu"),
        ("use", "b100"),
        ("rollback",),
        ("uninstall", "--all"),
    ):
        done = as_nobody(*words)
        assert done.returncode == 6, done.stderr
        assert "error[not-writable]: " in done.stderr
        assert "TSUKU_HOME" in done.stderr.splitlines()[-1]
    assert snapshot(tsuku_home) == before
