"""``install --from`` on the command line: the yes, the answers, and what other commands say."""

import sys
from pathlib import Path

import pytest
from support.builds import NO_DEVICE_STEPS, stand_in
from support.program import environment, run_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")


def test_a_build_of_ones_own_needs_a_yes_and_is_marked_everywhere(home: Path) -> None:
    build = home.parent / "own"
    stand_in(build, devices=NO_DEVICE_STEPS)
    env = environment(home)
    refused = run_program("install", "--from", str(build), env=env)
    assert refused.code == 2
    assert refused.stderr.startswith("error[bad-usage]: an unsigned build needs a yes")
    assert refused.stderr.splitlines()[-1].endswith(f"install --from {build} --yes")

    done = run_program("install", "--from", str(build), "--yes", "--json", env=env)
    assert done.code == 0, done.stderr
    data = done.document["data"]
    assert (data["outcome"], data["unsigned"]) == ("installed", str(build))
    assert (data["variant"], data["files"]) == ("own-cpu", 2)

    told = run_program("install", "--from", str(build), "--yes", env=env).stdout
    assert told.startswith("The CPU build of your own is installed already.")
    assert "unsigned" in run_program("list", env=env).stdout
    (listed,) = run_program("list", "--json", env=env).document["data"]["versions"]
    assert (listed["unsigned"], listed["repository"]) == (str(build), "")
    which = run_program("which", "--json", env=env).document["data"]
    assert which == {
        "path": str(Path(data["installed"]["tree"]) / "llama-server"),
        "unsigned": str(build),
    }
    examined = run_program("doctor", env=env)
    assert f"unsigned: installed from {build}" in examined.stdout
    updated = run_program("update", env=env)
    assert updated.code == 0, updated.stderr
    assert "update leaves it alone" in updated.stdout
    removed = run_program("uninstall", "own-cpu", env=env)
    assert removed.code == 0, removed.stderr


def test_it_is_not_combined_with_what_names_a_signed_build(home: Path) -> None:
    for words in (("--channel", "stable"), ("--release", "b1"), ("--repository", "official")):
        result = run_program("install", "--from", "x", *words, env=environment(home))
        assert (result.code, result.stdout) == (2, "")
        assert f"--from and {words[0]} cannot be combined" in result.stderr
    pairs = (("--from-source", "--dry-run"), ("--from-source", "--release"))
    for first, second in (*pairs, ("--from", "--from-source")):
        value = () if second == "--dry-run" else ("b1",)
        result = run_program("install", first, "x", second, *value, env=environment(home))
        assert (result.code, result.stdout) == (2, "")
        assert f"{first} and {second} cannot be combined" in result.stderr
    # The source may be left out: the next option is not its name.
    result = run_program("install", "--from-source", "--release", "b1", env=environment(home))
    assert "--from-source and --release cannot be combined" in result.stderr
