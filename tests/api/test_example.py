"""The example application: the real server, a tiny model, and OpenAI's package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.program import environment, run_program
from support.tiny_model import write_tiny_model

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/ask.py"


@pytest.mark.index
@pytest.mark.skipif(sys.platform != "linux", reason="the channel index has builds for Linux")
def test_the_example_installs_serves_and_asks(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    # The processor: the answer of a model of noise says nothing, but it must be there.
    env = environment(tmp_path / "home", TSUKU_LLM_CHANNEL="index", TSUKU_LLM_BACKEND="cpu")
    done = subprocess.run(
        [sys.executable, EXAMPLE, model, "Why is the sky blue?"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "http://127.0.0.1:" in done.stderr
    # Nothing runs after it.
    status = run_program("status", "--json", env=env)
    assert status.document["data"]["servers"] == []
    assert len(run_program("list", "--json", env=env).document["data"]["versions"]) == 1


def test_the_example_tells_an_error_without_a_traceback(tmp_path: Path) -> None:
    env = environment(tmp_path / "home", HTTPS_PROXY="http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, EXAMPLE, tmp_path / "none.gguf", "?"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "error: " in done.stderr


def test_the_example_is_typed_as_the_library_says() -> None:
    config = os.devnull  # not ours, which has exceptions
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--config-file",
            config,
            "--cache-dir",
            config,
            EXAMPLE,
        ],
        cwd=ROOT.parent,
        env={**os.environ, "MYPYPATH": str(ROOT / "installer")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
