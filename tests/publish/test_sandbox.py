"""New builds are started in a sandbox: without a network, a home, or other people's files."""

from pathlib import Path

import pytest
from support.builds import NO_DEVICE_STEPS, REAL_SERVER, real_build, stand_in
from support.tiny_model import write_tiny_model
from support.tools import require_library, require_tool

from tsuku_publish.feed.sandbox import start


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_tool("bwrap")
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def test_a_build_that_answers_works(tmp_path: Path, model: Path) -> None:
    build = stand_in(tmp_path / "build", serve=("listen",))
    done = start("cpu", build.tree, model)
    assert (done.works, done.text) == (True, "it started and answered")


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (("err cannot load the model", "exit 1"), "it ended with 1: cannot load the model"),
        (("err about to crash", "kill 11"), "about to crash"),
        (("refuse 500 200", "listen"), "it answered 500"),
        (("die out of memory", "listen"), "it did not answer"),
    ],
)
def test_one_that_does_not_is_said_with_its_last_words(
    tmp_path: Path, model: Path, steps: tuple[str, ...], said: str
) -> None:
    build = stand_in(tmp_path / "build", serve=steps)
    done = start("cpu", build.tree, model)
    assert done.works is False
    assert said in done.text


def test_a_vulkan_build_has_to_list_a_device(tmp_path: Path, model: Path) -> None:
    require_library("vulkan_lvp")  # Mesa's software driver
    works = stand_in(tmp_path / "works")
    assert start("vulkan", works.tree, model).works
    lost = stand_in(tmp_path / "lost", devices=NO_DEVICE_STEPS)
    done = start("vulkan", lost.tree, model)
    assert (done.works, done.text) == (False, "it lists no Vulkan device: (none)")


def test_it_sees_no_home_no_environment_and_no_network(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "very-secret")
    (tmp_path / "build").mkdir()
    server = tmp_path / "build" / "llama-server"
    looked = f"ls {Path.home()} {tmp_path} >&2; env >&2; cat /proc/net/dev >&2; touch /build/x"
    server.write_text(
        f"#!/bin/sh\n{looked}\necho $(env | grep -c SECRET)"
        " $(grep -c : /proc/net/dev) $(ls /home /root 2>/dev/null | wc -l)\nexit 3\n"
    )
    server.chmod(0o755)
    done = start("cpu", server.parent, model)
    assert done.works is False
    # No secret, one network device (its own loopback), and nothing in a home.
    numbers = done.text.rpartition(": ")[2].split()
    assert numbers[:2] == ["0", "1"]
    assert not (server.parent / "x").exists()


def test_without_a_model_or_the_sandbox_nothing_is_started(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = stand_in(tmp_path / "build")
    done = start("cpu", build.tree, None)
    assert (done.works, done.text) == (None, "not started: no --model is given")
    monkeypatch.setenv("PATH", str(tmp_path))
    done = start("cpu", build.tree, model)
    assert (done.works, done.text) == (None, "not started: bwrap is not installed")


@pytest.mark.index
@pytest.mark.parametrize("variant", ["cpu", "vulkan"])
def test_the_real_build_answers_on_the_processor_and_on_lavapipe(
    tmp_path: Path, model: Path, variant: str
) -> None:
    if variant == "vulkan":
        require_library("vulkan_lvp")  # Mesa's software driver
    binaries = (real_build(tmp_path / "build") / REAL_SERVER).parent
    done = start(variant, binaries, model)
    assert (done.works, done.text) == (True, "it started and answered")
