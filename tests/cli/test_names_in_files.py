"""Names from elsewhere in what other programs read: units, plists, tasks, metrics, terminals.

N07: each of them gets the name as it is, or the program refuses to write it. What is written is
read back by the real reader, where this machine has it.
"""

import os
import plistlib
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed
from support.program import environment, run_on_terminal, run_program
from support.tools import require_tool
from support.user_systemd import verify_all

from tsuku_llm.cli.render.services import metrics
from tsuku_llm.cli.render.services.units import OnDemand, Service, file_text, line_text, unit_texts
from tsuku_llm.cli.services.login import launchd_plist, windows_task
from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.processes.process import Process
from tsuku_llm.ground.safe_text import shell_word
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.record import Record
from tsuku_llm.launch.plan.report import StartReport
from tsuku_llm.steps.servers.service import Handover

linux = pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")

NAMES = (
    "a b", "%h %n %%", "$HOME ${HOME}", '"quoted"', "it's", "back\\slash", "\\n", ";", "#x",
    "[Service]", "*?[a]", "é 模型", "~", "-x", "a=b", "`x`", "$(x)", "a\\ b", "<&>", "]]>", "{{x}}",
    "a\u2028b",
)  # fmt: skip
"""Names that every one of them can hold, whatever they mean there."""

NOT_IN_A_LINE = (
    "a\nExecStartPost=/bin/touch pwned", "a\rExecStartPost=/bin/touch pwned", "trailing\\",
    "a\x00b", "a\x1b[2J", "a\tb", "trailing ", "a\x0bb", "bad \udcff", "a\x7f",
)  # fmt: skip
"""Names that a line of a unit cannot hold."""


def service(folder: Path, word: str = "x", listen: str = "127.0.0.1:80", **more: Path) -> Service:
    given = Handover((word,), {"TSUKU_HOME": word}, {})
    on_demand = OnDemand(listen, "/bin/true", 300)
    return Service("x", "tsuku-llm-x", ["/bin/echo"], given, folder, on_demand=on_demand, **more)


@linux
@pytest.mark.parametrize("name", NAMES)
def test_N07_systemd_reads_a_unit_as_it_was_meant(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    units = unit_texts(service(folder, name, f"{folder}/x.sock"))
    assert verify_all(units, tmp_path / "verify") == ""
    text = units["tsuku-llm-x.service"]
    # No line but ours: the keys are those of a service with a plain name.
    plain = unit_texts(service(tmp_path))["tsuku-llm-x.service"]
    assert keys(text) == keys(plain)
    assert option(text, "WorkingDirectory").replace("%%", "%") == str(folder)
    assert (
        option(units["tsuku-llm-x.socket"], "ListenStream").replace("%%", "%") == f"{folder}/x.sock"
    )


def keys(unit: str) -> list[str]:
    """The options of a unit as systemd reads its lines: each of \\r, \\n and NUL ends one."""
    lines = re.split("[\r\n\0]", unit)
    return [line.partition("=")[0] for line in lines if line and line[0] not in "#;["]


def option(unit: str, name: str) -> str:
    return next(re.finditer(rf"^{name}=(.*)$", unit, re.MULTILINE))[1]


@pytest.mark.parametrize("name", NOT_IN_A_LINE)
def test_N07_a_unit_is_not_written_with_what_systemd_cannot_be_told(name: str) -> None:
    for made in (
        lambda: service(Path("/x", name)),
        lambda: service(Path("/x"), credentials=Path("/x", name)),
        lambda: service(Path("/x"), listen=f"/x/{name}"),
    ):
        with pytest.raises(UsageError, match="systemd cannot be told"):
            unit_texts(made())


@linux
@pytest.mark.parametrize("name", ["a\nExecStartPost=/bin/touch pwned", "a\rb", "trailing\\"])
def test_N07_the_command_refuses_such_a_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir(parents=True)
    done = run_program("service", "systemd", env=environment(tmp_path), cwd=folder)
    assert (done.code, done.stdout) == (2, ""), done.stdout
    assert "error[bad-usage]: systemd cannot be told" in done.stderr
    output = tmp_path / "out"
    for words in (("service", "systemd"), ("service", "launchd")):
        run_program(*words, "--output", str(output), env=environment(tmp_path), cwd=folder)
    assert not list(tmp_path.rglob("*.service"))


def test_N07_the_file_of_secrets_is_one_file_and_no_pattern() -> None:
    assert file_text(Path("/home/a[b]*/x?.env")) == r"/home/a\[b\]\*/x\?.env"
    assert line_text("/home/%h") == "/home/%%h"


@pytest.mark.parametrize("name", [*NAMES, "a\tb", "a\nb"])
def test_N07_a_property_list_gives_the_name_back(name: str) -> None:
    text = launchd_plist(name, ["/bin/x", name], Path("/x", name), {"V": name}, Path("/l", name))
    read = plistlib.loads(text.encode())
    assert (read["Label"], read["ProgramArguments"][1]) == (name, name)
    assert (read["EnvironmentVariables"]["V"], read["WorkingDirectory"]) == (name, f"/x/{name}")


NOT_IN_XML = ("a\rb", "a\x1b]0;x\x07", "a\x00", "a\x0bb", "a\ufffe", "bad \udcff", "a\x08")


@pytest.mark.parametrize("name", NOT_IN_XML)
def test_N07_a_property_list_is_not_written_with_what_it_cannot_hold(name: str) -> None:
    for argv, folder, variables in (
        (["/bin/x", name], "/x", {}), (["/bin/x"], f"/x/{name}", {}),
        (["/bin/x"], "/x", {"V": name}),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="launchd cannot be told"):
            launchd_plist("x", argv, Path(folder), variables, Path("/l"))


@pytest.mark.parametrize("name", [each for each in NAMES if not re.search("%.+%", each)])
def test_N07_a_task_gives_the_name_back(name: str) -> None:
    text = windows_task(["x.exe", name], Path("/x", name))
    task = ET.fromstring(text.partition("\n")[2])  # noqa: S314 - our own
    spaces = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}
    assert task.findtext(".//t:WorkingDirectory", namespaces=spaces) == f"/x/{name}"
    assert task.findtext(".//t:Arguments", namespaces=spaces) == subprocess.list2cmdline([name])


@pytest.mark.parametrize("name", [*NOT_IN_XML, "%PATH%", "a%b c%d", "$(Arg0)"])
def test_N07_a_task_is_not_written_with_what_it_cannot_hold(name: str) -> None:
    for argv, folder in ((["x.exe", name], "/x"), (["x.exe"], f"/x/{name}")):
        with pytest.raises(UsageError, match="the Task Scheduler cannot be told"):
            windows_task(argv, Path(folder))


# --- Prometheus and terminals ----------------------------------------------------------------

CONTROL = (
    "a\rb", "a\u2028b", "a\u2029b", "a\x0bb", "a\x0cb", "a\x85b", "a\nb", "a\x1cb", "\x1b]0;x\x07",
    "\u202egnp", "bad \udcff", 'say "x"', "back\\", "a} 1\nup 0", "\ufeffx",
)  # fmt: skip

US = Process.of(os.getpid())
assert US
REPORT = StartReport(
    name="gpu", release="b1", id="b1-x", requested="auto", detected=("cpu",), selected="cpu",
    supervisor=1, pid=1, host="127.0.0.1", port=1,
    started_at="2026-11-21T12:00:00Z", ready=True,
)  # fmt: skip
GOOD = Record(name="good", supervisor=US, host="127.0.0.1", port=1, server=US, report=REPORT)


@pytest.mark.parametrize("text", CONTROL)
def test_N07_a_label_is_one_line_for_every_reader(text: str) -> None:
    odd = replace(GOOD, name="odd", report=REPORT._replace(device=text, driver=text))
    plain = metrics.text([GOOD, replace(odd, report=REPORT._replace(device="x", driver="x"))])
    told = metrics.text([GOOD, odd])
    assert len(told.splitlines()) == len(plain.splitlines())
    assert told.isascii() or told.replace("\n", "").isprintable()
    names = {s.labels["name"] for family in parsed(told) for s in family.samples}
    assert names == {"good", "odd"}


@pytest.mark.parametrize(
    "changes",
    [
        {"started_at": ""}, {"started_at": "yesterday"}, {"started_at": "2026-13-45T99:00:00Z"},
        {"started_at": "9" * 10_000}, {"restarts": 10**400}, {"memory_total": 10**400},
        {"layers_total": "many"}, {"model_bytes": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_N07_one_bad_record_does_not_end_the_metrics_of_all(changes: dict[str, object]) -> None:
    bad = replace(GOOD, name="bad", report=REPORT._replace(**changes))  # type: ignore[arg-type]
    for records in ([GOOD, bad], [bad, GOOD]):
        up = {
            s.labels["name"]: s.value
            for family in parsed(metrics.text(records))
            for s in family.samples
            if s.name == "tsuku_llm_server_up"
        }
        assert up == {"good": 1, "bad": 1}


def test_N07_a_time_is_none_or_a_number() -> None:
    day = datetime(2026, 11, 21, 12, tzinfo=timezone.utc).timestamp()
    assert metrics.seconds("2026-11-21T12:00:00Z") == day
    assert metrics.seconds("never") is None


@pytest.mark.skipif(os.name != "posix", reason="terminals of POSIX")
def test_N07_a_terminal_is_not_commanded_by_a_path_or_a_log(tmp_path: Path) -> None:
    home = tmp_path / "\x1b]0;title\x07\u202e"
    home.mkdir()
    code, said = run_on_terminal(b"", "config", "path", env=environment(home))
    assert code == 0
    assert "\\x1b]0;title\\x07\\u202e" in said
    # A script gets the path.
    assert str(home) in run_program("config", "path", env=environment(home)).stdout
    servers = Instances(tmp_path / "llm" / "state")
    servers.claim(replace(GOOD, report=None))
    servers.log("good").write_bytes(
        b"\x1b[32mgreen\x1b[0m\ttab\n\x1b]0;title\x07\xe2\x80\xae \xc3\xa9\n"
    )
    code, said = run_on_terminal(b"", "logs", "good", env=environment(tmp_path))
    assert code == 0
    assert "\x1b[32mgreen\x1b[0m\ttab" in said
    assert "\\x1b]0;title\\x07\\u202e" in said
    assert "é" in said
    assert "\x1b]" not in said


@pytest.mark.skipif(os.name != "posix", reason="shells of POSIX")
@pytest.mark.parametrize("name", [*NAMES, "a;touch pwned", "a|b", "a&b", "a>b", "!!", "a\nb", ""])
@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish"])
def test_N07_a_command_to_paste_has_the_name_as_it_is(
    shell: str, name: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [require_tool(shell), "-c", f"printf %s {shell_word(name)}"],
        cwd=tmp_path, capture_output=True, check=True,
    )  # fmt: skip
    if shell == "fish" and "\\" in name:
        # fish takes some backslashes within single quotes away, and nothing else.
        assert done.stdout.decode().replace("\\", "") == name.replace("\\", "")
    else:
        assert done.stdout.decode() == name
    assert list(tmp_path.iterdir()) == []
    assert shlex.split(shell_word(name)) == [name]
