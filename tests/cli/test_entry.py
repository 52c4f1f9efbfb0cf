"""Arguments in, exit code out: every error in one form, with its code and no traceback."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from support import schemas
from support.program import Result, environment, run_program
from support.waiting import PROMPTLY

from tsuku_llm import __version__
from tsuku_llm._version import REPORTS
from tsuku_llm.cli import entry
from tsuku_llm.cli.command import Command
from tsuku_llm.cli.entry import run
from tsuku_llm.cli.program import program as group
from tsuku_llm.cli.program import wants_json
from tsuku_llm.cli.table import COMMANDS
from tsuku_llm.cli.terminal.answer import CommandResult, ReportedError, document
from tsuku_llm.ground.errors import Declined, StillRunning, TsukuError
from tsuku_llm.machine.hardware import GpuKind, Libc
from tsuku_llm.steps.program.copy_facts import own_updater

Run = Callable[..., Result]
AsJson = Callable[..., Any]


def commands() -> list[tuple[str, ...]]:
    """Every command and subcommand, as words."""
    context = click.Context(group)
    found: list[tuple[str, ...]] = []
    for name in COMMANDS:
        command = group.get_command(context, name)
        found.append((name,))
        if isinstance(command, click.Group):
            found += [(name, sub) for sub in command.commands]
    return found


# --- help and version --------------------------------------------------------------------


def test_without_arguments_the_help_is_shown(program: Run) -> None:
    result = program()
    assert (result.code, result.stderr) == (0, "")
    assert "serve -m MODEL.gguf" in result.stdout
    for name, listed in COMMANDS.items():
        assert name in result.stdout
        assert listed.summary in " ".join(result.stdout.split())


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_has_help(words: tuple[str, ...], program: Run) -> None:
    result = program(*words, "--help")
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: tsuku-llm {' '.join(words)} ")
    assert "--json" in result.stdout
    assert program(*words, "-h").stdout == result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_commands_has_their_help_texts(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    assert (command.help or "").splitlines()[0] == COMMANDS[name].summary


def test_help_as_json_is_one_document(as_json: AsJson) -> None:
    told = as_json("config", "get", "--help")
    assert (told["status"], told["command"]) == ("ok", "config get")
    assert told["data"]["help"].startswith("Usage: tsuku-llm config get ")


def test_the_version(program: Run, as_json: AsJson) -> None:
    assert program("--version").stdout == f"tsuku-llm {__version__}\n"
    assert as_json("--version")["data"] == {"version": __version__, "way": own_updater().way}


def test_the_module_is_the_program(tmp_path: Path) -> None:
    result = run_program("--version", env=environment(tmp_path))
    assert result == Result(0, f"tsuku-llm {__version__}\n", "")


# --- usage -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [(*words, "--no-such-option") for words in commands()]
    + [
        ("frobnicate",),
        ("config",),
        ("config", "frob"),
        ("config", "get"),
        ("config", "get", "llm.backend", "more"),
        ("install", "--backend"),
        ("repository", "add", "name", "https://a.example"),
        ("--frob",),
    ],
    ids=" ".join,
)
def test_bad_usage_is_one_error(words: tuple[str, ...], program: Run, as_json: AsJson) -> None:
    result = program(*words)
    assert (result.code, result.stdout) == (2, "")
    first, *_, last = result.stderr.splitlines()
    assert first.startswith("error[bad-usage]: ")
    assert last.startswith("hint: ")
    if words[-1] != "--backend":  # there --json would be its value
        told = as_json(*words)
        assert (told["status"], told["data"]) == ("error", {})
        assert told["error"]["code"] == "bad-usage"
        assert f"error[bad-usage]: {told['error']['message']}" == first


def test_an_unknown_option_of_serve_hints_at_the_two_dashes(program: Run) -> None:
    result = program("serve", "--gpu-layers", "20")
    assert result.code == 2
    assert "after --: tsuku-llm serve -- --gpu-layers 20" in result.stderr


def test_json_after_two_dashes_goes_to_the_server() -> None:
    assert wants_json(["install", "--json"])
    assert not wants_json(["serve", "--", "--json"])
    assert wants_json(["serve", "--json", "--", "x"])


def test_the_command_is_named_even_if_its_arguments_are_wrong(as_json: AsJson) -> None:
    assert as_json("config", "get", "--frob")["command"] == "config get"
    assert as_json("config", "frob")["command"] == "config"
    assert as_json("frob")["command"] is None


# --- errors of every kind ----------------------------------------------------------------


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make the command ``config`` raise: a command of a test's own in its place."""

    def install(error: BaseException) -> None:
        def body() -> CommandResult:
            raise error

        monkeypatch.setattr(
            group, "get_command", lambda _ctx, _name: Command("config", callback=body)
        )

    return install


def leaves(kind: type[TsukuError]) -> list[type[TsukuError]]:
    return [kind, *(leaf for sub in kind.__subclasses__() for leaf in leaves(sub))]


def make(kind: type[TsukuError]) -> TsukuError:
    extra = {"status": 503} if kind.slug == "http-status" else {}
    return kind("a \x1b[31m thing", facts=("one\ntwo",), hint="do it", **extra)


# Declined is the user's own answer, and no failure. The publisher's errors are another program's:
# they are here only if another test file has imported it.
ERRORS = [
    kind
    for kind in leaves(TsukuError)[1:]
    if kind is not Declined and kind.__module__.startswith("tsuku_llm.")
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.slug)
def test_every_error_has_its_code_and_form(
    kind: type[TsukuError],
    program: Run,
    as_json: AsJson,
    raising: Callable[[BaseException], None],
) -> None:
    raising(make(kind))
    expected = f"error[{kind.slug}]: a \\x1b[31m thing\n  one\\ntwo\nhint: do it\n"
    assert program("config") == Result(kind.exit_code, "", expected)
    told = as_json("config")
    assert told == {
        "format": 1,
        "command": "config",
        "status": "error",
        "exit_code": kind.exit_code,
        "data": {},
        "error": {
            "code": kind.slug,
            "message": "a \x1b[31m thing",
            "facts": ["one\ntwo"],
            "hint": "do it",
        },
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (entry.Terminated(15), 143), (entry.Terminated(1), 129)],
)
def test_an_interrupt_is_an_error_like_others(
    error: BaseException,
    code: int,
    program: Run,
    as_json: AsJson,
    raising: Callable[[BaseException], None],
) -> None:
    raising(error)
    assert program("config") == Result(code, "", "error[interrupted]: stopped on request\n")
    assert as_json("config")["error"]["code"] == "interrupted"


class Interrupting(str):
    """A text that is interrupted while it is made ready to be shown."""

    __slots__ = ()

    def isprintable(self) -> bool:
        raise entry.Terminated(15)


def test_C02_a_signal_while_the_answer_is_made_is_one_error(
    program: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = CommandResult(lines=(Interrupting("start it: tsuku-llm serve"),))
    command = Command("config", callback=lambda: answer)
    monkeypatch.setattr(group, "get_command", lambda _ctx, _name: command)
    assert program("config") == Result(143, "", "error[interrupted]: stopped on request\n")


def test_a_bug_shows_a_traceback_and_what_to_do(
    program: Run, as_json: AsJson, raising: Callable[[BaseException], None]
) -> None:
    raising(ZeroDivisionError("of ours"))
    result = program("config")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.startswith("Traceback")
    assert "error[bug]: ZeroDivisionError: of ours" in result.stderr
    assert REPORTS in result.stderr.splitlines()[-1]
    assert "please report it" in result.stderr.splitlines()[-1]
    assert as_json("config")["error"]["code"] == "bug"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("can't start new thread"), "processes or threads"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "processes or threads"),
        (OSError(errno.EMFILE, "Too many open files"), "this process has too many open files"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_a_limit_of_the_system_is_no_bug(
    error: Exception,
    words: str,
    program: Run,
    as_json: AsJson,
    raising: Callable[[BaseException], None],
) -> None:
    raising(error)
    result = program("config")
    assert result.code == 7
    first, hint = result.stderr.splitlines()
    assert first.startswith("error[system-limit]: ")
    assert words in first
    assert hint.startswith("hint: ")
    assert as_json("config")["error"]["code"] == "system-limit"


def test_the_envelope_accepts_every_type_of_a_report() -> None:
    answer = CommandResult(
        {
            "path": Path("/a"),
            "kind": GpuKind.DISCRETE,
            "failures": [ReportedError("c", "m")],
            "libc": Libc("glibc", None),
            "t": (1, None),
        }
    )
    data = json.loads(document("x", answer))["data"]
    assert data == {
        "path": str(Path("/a")),
        "kind": "discrete",
        "failures": [{"code": "c", "message": "m", "facts": [], "hint": ""}],
        "libc": {"name": "glibc", "version": None, "refuses": None},
        "t": [1, None],
    }
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        document("x", CommandResult({"x": object()}))


# --- bad surroundings, in a real process -------------------------------------------------

LIGHT = [("list",), ("which",), ("serve", "--", "-m", "x"), ("config", "list")]
CONFIGURED = [("serve", "--", "-m", "x"), ("install", "--dry-run"), ("explain",)]
CONFIGURED += [("update", "--check"), ("run", "llama-cli"), ("uninstall", "--all"), ("probe",)]


@pytest.mark.parametrize("words", CONFIGURED, ids=" ".join)
def test_a_malformed_config_is_one_error(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[llm]\nbackend = \n")
    result = run_program(*words, env=environment(tmp_path))
    assert (result.code, result.stdout) == (2, "")
    first, fact, _hint = result.stderr.splitlines()
    assert first.startswith(f"error[bad-config]: the config file {tmp_path / 'config.toml'} ")
    assert "line 2" in fact


def test_config_path_works_with_a_malformed_config(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xff[")
    result = run_program("config", "path", env=environment(tmp_path))
    assert result == Result(0, f"{tmp_path / 'config.toml'}\n", "")


@pytest.mark.parametrize("home", ["", "relative/home"])
def test_a_relative_home_is_one_error(home: str, tmp_path: Path) -> None:
    result = run_program("list", env={**environment(tmp_path), "TSUKU_HOME": home})
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith("error[bad-config]: TSUKU_HOME is ")


def test_settings_cannot_be_written_under_a_file(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("in the way")
    result = run_program("config", "set", "llm.channel", "index", env=environment(home))
    assert result.code in (2, 6)
    assert result.stderr.startswith("error[")
    assert "Traceback" not in result.stderr
    assert home.read_text() == "in the way"


SLEEPER = """
import sys, time
from tsuku_llm.cli import program, entry
from tsuku_llm.cli.command import Command

def body():
    try:
        print("ready", file=sys.stderr, flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", file=sys.stderr, flush=True)

program.program.get_command = lambda _ctx, _name: Command("list", callback=body)
sys.exit(entry.run(["list", *sys.argv[1:]]))
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("extra", [(), ("--json",)], ids=["text", "json"])
def test_a_signal_unwinds_the_program_and_is_reported(
    number: signal.Signals, code: int, extra: tuple[str, ...], tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER, *extra],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stderr is not None
        assert child.stderr.readline() == "ready\n"
        child.send_signal(number)
        out, err = child.communicate(timeout=600)
    assert child.returncode == code
    assert err == "cleaned up\nerror[interrupted]: stopped on request\n"
    assert (schemas.read(out)["exit_code"] == code) if extra else (out == "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_answer_that_can_neither_be_written_nor_undone_is_one_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def undo() -> str:
        raise StillRunning("process 7 does not end", facts=("it was killed",), hint="restart")

    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code = run(["serve"], lambda *_: CommandResult(lines=("ready",), undo=undo))
    assert code == 6
    _, *facts = capsys.readouterr().err.splitlines()
    assert facts[-3:] == ["  process 7 does not end", "  it was killed", "  restart"]


# --- import cost -------------------------------------------------------------------------

BUDGET = ("httpx", "tuf", "msgspec", "cryptography", "pip", "tomlkit", "securesystemslib")
LOADED = """
import sys
from tsuku_llm.cli.entry import run
run(sys.argv[1:])
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.mark.parametrize("words", [*LIGHT, ("config", "path"), ("--help",)], ids=" ".join)
def test_light_commands_load_no_heavy_library(words: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert "Traceback" not in done.stderr
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "tsuku_llm" in loaded
    assert not loaded & set(BUDGET)


def test_the_version_is_shown_without_loading_click(tmp_path: Path) -> None:
    program = (
        "import sys; sys.argv = ['tsuku-llm', '--version']\n"
        "from tsuku_llm.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as stop:\n"
        "    print(stop.code, 'click' in sys.modules, 'tsuku_llm.ground.errors' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert done.stdout == f"tsuku-llm {__version__}\n0 False False\n"


def test_run_never_raises(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["\udcff", "--", "\x00"]) == 2
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_within_a_callback_of_the_interpreter_is_not_lost(number: str) -> None:
    # Python's import system has such callbacks: an exception in one is printed, and forgotten.
    program = f"""
import os, signal, weakref
from tsuku_llm.cli.entry import termination_unwinds

class Thing: pass

with termination_unwinds():
    thing = Thing()
    watched = weakref.ref(thing, lambda _gone: os.kill(os.getpid(), signal.{number}))
    try:
        del thing
        signal.pause()
    except KeyboardInterrupt as stopped:
        print("stopped")
"""
    line = [sys.executable, "-c", program]
    told = subprocess.run(line, capture_output=True, text=True, timeout=PROMPTLY, check=False)
    assert (told.stdout, told.stderr) == ("stopped\n", "")
