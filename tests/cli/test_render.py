"""What answers look like, from values that need no machine and no network."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import machines
from support.stored import make_receipt

from tsuku_llm._version import REPORTS
from tsuku_llm.catalog import loading, repositories
from tsuku_llm.choose.selection import Request, select
from tsuku_llm.cli.render import choice as choice_render
from tsuku_llm.cli.render import install as install_render
from tsuku_llm.cli.render import installed as installed_render
from tsuku_llm.cli.render.services import servers as servers_render
from tsuku_llm.cli.terminal import text
from tsuku_llm.cli.terminal.answer import CommandResult, document
from tsuku_llm.ground.processes.process import Process
from tsuku_llm.instances.loading import LoadSample
from tsuku_llm.instances.record import Record
from tsuku_llm.launch.plan.report import StartReport, Trouble
from tsuku_llm.machine.hardware import Api, ApiState, GpuKind, Hardware, Problem
from tsuku_llm.steps.choosing.choice import Choice
from tsuku_llm.steps.choosing.passing_over import PassedOver
from tsuku_llm.steps.install.install import InstallReport
from tsuku_llm.steps.install.update import UpdateReport
from tsuku_llm.steps.install.versions import Inventory
from tsuku_llm.steps.report.explain import explained
from tsuku_llm.steps.servers.background import Servers
from tsuku_llm.store.records.installed import Installed

CATALOG = loading.load(repositories.repository(Path("/nowhere")), Path("/nowhere"))
GPU = machines.machine(machines.cuda(), machines.vulkan(GpuKind.DISCRETE))
PROBLEM = Problem("no-icd", "the Vulkan loader finds no driver", "install mesa-vulkan-drivers")
NO_GPU = machines.machine(Api("vulkan", ApiState.FAILED, problem=PROBLEM))


def chosen(hardware: Hardware, backend: str = "auto") -> Choice:
    release = machines.release()
    selection = select(release, hardware, Request(backend))
    return Choice(CATALOG, "stable", 1, release, hardware, selection)


def as_document(data: Any) -> Any:
    return json.loads(document("x", CommandResult(data)))["data"]


def installed() -> Installed:
    receipt = make_receipt()
    return Installed(receipt.id, Path("/data/versions") / receipt.id, receipt)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "?"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (31_636_673, "31.6 MB"),
        (99_960_000, "100 MB"),
        (999_600_000, "1.0 GB"),
        (765_000_000, "765 MB"),
        (10**16, "10000 TB"),
    ],
)
def test_sizes_have_three_digits(count: int | None, shown: str) -> None:
    assert text.size(count) == shown


@given(st.lists(st.tuples(st.text(), st.text(), st.text())))
def test_a_table_has_one_line_for_each_row(rows: list[tuple[str, str, str]]) -> None:
    assert len(text.table(rows)) == len(rows)


def test_a_release_is_shown_with_both_names() -> None:
    assert text.named("b11429", "0.6.0") == "b11429 (0.6.0)"
    assert text.named("b11429", None) == text.named("b11429", "b11429") == "b11429"


def test_explain_has_every_variant_with_its_reason() -> None:
    data = as_document(explained(chosen(GPU)))
    assert data["requested"] == "auto"
    assert set(data["detected"]) == {"vulkan", "cuda", "cpu"}
    assert data["selected"] == "vulkan"
    variants = {each["variant"]: each for each in data["variants"]}
    assert set(variants) == set(machines.linux_variants())
    for each in variants.values():
        assert {"variant", "backend", "compatible", "reason", "rank"} <= set(each)
        assert (each["reason"] is None) == each["compatible"] == (each["rank"] is not None)
    assert variants["vulkan"]["rank"] == 1
    assert variants["vulkan"]["device"]
    assert variants["rocm-10.0"]["code"]


def test_explain_says_the_same_as_text_and_as_json() -> None:
    choice = chosen(GPU)
    lines = choice_render.lines(choice)
    best = choice.selection.compatible[0]
    assert best.gpu
    assert lines[0] == f"The Vulkan build b1 fits this machine best, on {best.gpu.name}."
    assert lines[1] == (
        "b1 (0.1.0) built by tests, from repository official, channel stable, for linux-amd64"
    )
    assert "selected=" not in "".join(lines)
    shown = "\n".join(lines)
    for each in as_document(explained(choice))["variants"]:
        assert each["variant"] in shown
        assert (each["reason"] or "fits: ") in shown


def test_explain_has_an_answer_when_nothing_fits() -> None:
    choice = chosen(NO_GPU, "vulkan")
    assert as_document(choice)["selected"] is None
    lines = choice_render.lines(choice)
    assert lines[0] == "No build of b1 fits this machine and the request vulkan."
    assert lines[-2:] == (f"{PROBLEM.slug}: {PROBLEM.text}", f"  fix: {PROBLEM.fix}")


OTHER = PassedOver("b1", "cuda-12.8", "also-fits", "fits too")


def report(outcome: str, where: Installed | None) -> InstallReport:
    choice = chosen(GPU)
    candidate = choice.selection.selected
    return InstallReport(outcome, choice, candidate, (OTHER,), where)


def test_a_plan_lists_addresses_sizes_and_digests() -> None:
    data = as_document(report("planned", None))
    assert (data["outcome"], data["variant"], data["installed"]) == ("planned", "vulkan", None)
    assert data["artifacts"] == [
        {
            "url": "https://example.invalid/vulkan.tar.gz",
            "sha256": "0" * 64,
            "size": 1000,
            "format": "tar.gz",
        }
    ]
    assert data["passed_over"] == [OTHER._asdict()]
    assert data["line"].endswith("selected=vulkan")
    lines = install_render.lines(report("planned", None))
    assert lines[0] == "Would install the Vulkan build b1 for discrete 0."
    assert "selected=" not in "\n".join(lines)
    assert "  https://example.invalid/vulkan.tar.gz (1.0 kB)" in lines
    assert f"    sha256 {'0' * 64}" in lines
    assert lines[-1].split() == ["cuda-12.8", "fits", "too"]


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("installed", "Installed the Vulkan build b1 for discrete 0."),
        ("unchanged", "The Vulkan build b1 is installed already."),
    ],
)
def test_an_install_says_what_where_and_what_to_do_next(outcome: str, said: str) -> None:
    where = installed()
    lines = install_render.lines(report(outcome, where))
    assert lines[0] == said
    assert lines[1] == "  vulkan of b1 (0.1.0), built by tests, from repository official"
    assert f"  in {where.tree}" in lines
    assert (
        install_render.next_step(report(outcome, where))
        == "start it: tsuku-llm serve -m MODEL.gguf"
    )
    assert as_document(report(outcome, where))["installed"]["tree"] == str(where.tree)


def test_a_machine_is_shown_with_its_devices_and_problems() -> None:
    lines = choice_render.hardware_lines(GPU, None)
    shown = "\n".join(lines)
    for api in GPU.apis:
        assert all(gpu.name in shown for gpu in api.gpus)
    lines = choice_render.hardware_lines(NO_GPU, Path("bug.json"))
    assert "devices: none" in lines
    assert lines[-1] == f"recorded in bug.json; to report a problem, attach it: {REPORTS}"
    assert f"{PROBLEM.slug}: {PROBLEM.text}" in lines


def test_a_machine_as_json_is_the_hardware_field_by_field() -> None:
    apis = {api["name"]: api for api in as_document(GPU)["apis"]}
    assert apis["vulkan"]["state"] == "ok"
    assert apis["vulkan"]["gpus"][0]["kind"] == "discrete"


def test_a_simulated_machine_says_so() -> None:
    simulated = replace(GPU, simulated="h200.json")
    assert choice_render.hardware_lines(simulated, None)[0].split() == ["simulated", "h200.json"]
    assert as_document(chosen(simulated))["simulated"] == "h200.json"


@pytest.mark.parametrize(
    ("newer", "said"),
    [
        (True, "An update would install the Vulkan build b1."),
        (False, "The CPU build b100 is up to date."),
    ],
)
def test_a_check_says_what_would_change(newer: bool, said: str) -> None:
    checked = UpdateReport(
        installed(), chosen(GPU), newer, revocation=None, download=200, changes=()
    )
    lines = install_render.update_lines(checked)
    origins = ("built by ggml-org", "built by tests")
    before, after = (f", {origin}, from repository official" for origin in origins)
    assert lines[0] == said
    assert lines[1] == f"installed: cpu of b100 (0.1.0){before}"
    assert lines[2] == f"newest in channel stable: b1 (0.1.0){after}"
    cost = "vulkan, 200 B to download of 1.0 kB; run: tsuku-llm update"
    assert (cost in lines) == newer
    assert ("  instead of cpu: " in "\n".join(lines)) == newer
    data = as_document(checked)
    found = data["candidate"] and data["candidate"]["variant"]
    assert (data["newer"], found) == (newer, "vulkan" if newer else None)


def test_an_update_without_a_fitting_variant_is_shown() -> None:
    checked = UpdateReport(
        installed(),
        chosen(NO_GPU, "vulkan"),
        newer=True,
        revocation=None,
        download=None,
        changes=(),
    )
    said = "b1 is newer, and no variant of it fits this machine and the request."
    assert install_render.update_lines(checked)[0] == said
    data = as_document(checked)
    assert data["candidate"] is None
    assert set(data["not_compatible"]) == set(machines.linux_variants())


def test_nothing_installed_says_what_to_do() -> None:
    nothing = Inventory((), {}, None, (), ())
    assert installed_render.lines(nothing) == ("nothing is installed; run: tsuku-llm install",)
    assert not any(as_document(nothing).values())


REPORT = StartReport(
    name="default",
    release="b1",
    id="b1-vulkan-0123456789ab",
    requested="auto",
    detected=("vulkan", "cpu"),
    selected="vulkan",
    supervisor=1,
    pid=2,
    host="127.0.0.1",
    port=8080,
    started_at="2026-11-21T12:00:00Z",
)


@pytest.mark.parametrize(
    ("offloaded", "total", "shown"),
    [(33, 33, [["layers", "33 of 33"]]), (0, None, [["layers", "0"]]), (None, None, [])],
)
def test_layers_are_shown_as_far_as_they_are_known(
    offloaded: int | None, total: int | None, shown: list[list[str]]
) -> None:
    """The log tells of none of them, and a server on the CPU has none on the GPU all the same."""
    report = REPORT._replace(layers_offloaded=offloaded, layers_total=total)
    ended = Process(1, "another-boot:1")
    record = Record(name="default", supervisor=ended, host="127.0.0.1", port=8080, report=report)
    lines = servers_render.lines(Servers((record,), {}, {}))
    # The share may count layers too.
    facts = [line.split(None, 1) for line in lines]
    assert [fact for fact in facts if fact[0] == "layers"] == shown


@pytest.mark.parametrize("reason", ["the GPU is lost", "no request for 5 seconds", ""])
def test_why_a_server_ended_is_said_once(reason: str) -> None:
    trouble = Trouble("ended", "the GPU is lost", "2026-11-21T13:00:00Z")
    record = Record(
        name="default",
        supervisor=Process(1, "another-boot:1"),
        host="127.0.0.1",
        port=8080,
        report=REPORT._replace(trouble=trouble),
        exit_code=134,
        reason=reason,
        arguments=("-m", "/models/my model.gguf"),
    )
    lines = "\n".join(servers_render.lines(Servers((record,), {}, {})))
    assert lines.count("the GPU is lost") == 1
    assert reason in lines
    assert "processes" not in lines
    assert re.search(r"arguments +-m '/models/my model.gguf'\n", lines)


def test_in_the_pause_before_a_restart_there_is_no_server() -> None:
    record = Record(
        name="default", supervisor=Process(7, "a:1"), host="127.0.0.1", port=8080, report=REPORT
    )
    lines = servers_render.lines(Servers((record,), {}, {}))
    (processes,) = [line for line in lines if "processes" in line]
    assert processes.split(None, 1)[1] == "watched by 7"


def test_what_a_loading_server_writes_is_told() -> None:
    """A model of 5 GB was downloaded for minutes as "11.3 MB of memory", without a change."""
    sample = LoadSample(0, memory=11_300_000, written=9_000_000)
    assert servers_render.loading_line(9.4, sample) == "loading for 9 s: 11.3 MB of memory"
    sample = sample._replace(gpu_memory=2_000_000, written=1_300_000_000)
    told = "loading for 9 s: 11.3 MB of memory, 2.0 MB of the GPU's, 1.3 GB written to disk"
    assert servers_render.loading_line(9.4, sample) == told
