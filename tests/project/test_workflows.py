"""The workflows of the hosted CI: pinned, with few permissions, from the repository's own scripts.

No run of them was seen yet. actionlint is no dependency: one of its packages downloads the program
when it is installed, past our locks, and the other one is somebody's fork with a single release.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tomli
import yaml
from support.tools import require_tool

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TESTS = ROOT / ".github/workflows/tests.yml"
BUILD = ROOT / ".github/workflows/build.yml"
PUBLISH = ROOT / ".github/workflows/publish.yml"

MAY = {
    "publish": {"contents": "write", "pages": "write", "id-token": "write"},
    "report": {"contents": "read", "issues": "write"},
}
"""What a job may do beyond reading: only the one that publishes, and the one that tells people."""

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def load(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in load(path)["jobs"].values() for step in job["steps"]]


@each_workflow
def test_actions_are_pinned_by_commit_and_named_by_version(path: Path) -> None:
    used = re.findall(r"uses: (.*)$", path.read_text("utf-8"), re.MULTILINE)
    assert len(used) == sum("uses" in step for step in steps(path)) > 0
    for each in used:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each


@each_workflow
def test_a_job_may_only_read_and_ends(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "cancel-in-progress" in workflow["concurrency"]
    for name, job in workflow["jobs"].items():
        assert job.get("permissions", {}) == MAY.get(name, {})
        assert job["timeout-minutes"] <= 180
    for step in steps(path):
        if "actions/checkout@" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False
        # What others choose, such as a branch's name, must not become a command.
        assert "github.event" not in step.get("run", "")


def test_the_matrix_has_every_python_and_system_that_the_package_names() -> None:
    project = tomli.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    matrix = load(TESTS)["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == named
    kinds = {(name.split("-")[0], "arm" in name or name == "macos-15") for name in matrix["os"]}
    assert kinds == {(system, arm) for system in ("ubuntu", "macos", "windows") for arm in (0, 1)}


def test_the_jobs_run_the_repositorys_own_scripts() -> None:
    for job, script in (("test", "ci/test"), ("everything", ".ci/run")):
        runs = [step.get("run", "") for step in load(TESTS)["jobs"][job]["steps"]]
        assert any(f"{script} 2>&1 | tee test.log" in run for run in runs)
        assert (ROOT / script).is_file()
    # Windows' own shell cannot run them; and bash is started with pipefail by its name only.
    assert load(TESTS)["defaults"]["run"]["shell"] == "bash"


def test_the_publishers_job_runs_the_commands_of_its_script() -> None:
    runs = [step.get("run", "") for step in steps(PUBLISH)]
    script = (ROOT / "ci" / "publishing").read_text("utf-8")
    for command in ("feed", "sign", "resign", "check", "report"):
        assert f"ci/publishing {command}" in runs
        assert f"\n{command})\n" in script
    # The feed every six hours; resign and check once a day.
    times = [each["cron"].split() for each in load(PUBLISH)[True]["schedule"]]
    assert [each[1] for each in times] == ["*/6", "3"]
    # No secret is in a command's words, and the signers' file goes away whatever happens.
    assert not any("secrets." in run for run in runs)
    assert "secrets." not in json.dumps(load(PUBLISH)["jobs"]["measure"])
    forgotten = next(each for each in steps(PUBLISH) if each.get("name") == "Forget the signers")
    assert forgotten["if"] == "always()"


def test_a_build_on_demand_runs_its_script_with_what_was_asked() -> None:
    workflow = load(BUILD)
    (step,) = (each for each in steps(BUILD) if each.get("name") == "ci/build")
    assert step["run"] == "ci/build 2>&1 | tee build.log"
    assert {*step["env"]} == {
        name.upper() for name in workflow[True]["workflow_dispatch"]["inputs"]
    }
    script = (ROOT / "ci/build").read_text("utf-8")
    assert all(f"${{{name}:-" in script for name in step["env"])
    cached = {each["with"]["path"] for each in steps(BUILD) if "cache/" in each.get("uses", "")}
    assert cached == {".build-cache"}
    assert "BUILD_CACHE:-.build-cache" in script


def test_the_system_of_a_build_on_demand_can_make_and_use_a_base() -> None:
    (step,) = (each for each in steps(BUILD) if each.get("name") == "Install the tools")
    bases = (ROOT / "installer/tsuku_publish/building/bases.py").read_text("utf-8")
    needed = re.findall(r'_require\("\w+", "([\w-]+)"', bases)
    assert {"bubblewrap", "debootstrap", "util-linux"} == {*needed}
    # Each Debian has util-linux.
    assert {*needed} - {"util-linux"} <= {*step["run"].split()}


@each_workflow
def test_shellcheck_has_nothing_to_say_about_the_scripts_of_the_steps(path: Path) -> None:
    program = require_tool("shellcheck")
    workflow, scripts = load(path), [step["run"] for step in steps(path) if "run" in step]
    assert workflow["defaults"]["run"]["shell"] == "bash"
    assert scripts
    for script in scripts:
        # The service puts values in place of these before a shell sees them.
        text = re.sub(r"\$\{\{.*?\}\}", "value", script)
        command = [program, "--shell=bash", "--severity=style", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
