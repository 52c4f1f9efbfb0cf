"""What a start says about memory before it loads a model, and ``--require-fit``."""

import os
import sys
from functools import partial
from pathlib import Path

import pytest
from support import model_headers
from support.model_headers import Q4_0, write_shape
from support.servers import Starter, install_stand_in

from tsuku_llm.ground.errors import DoesNotFit
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.probe import probe
from tsuku_llm.steps.choosing.choice import choose
from tsuku_llm.steps.report.explain import explain_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
CARD = ("out Available devices:", "out   Vulkan0: a card (4096 MiB, 3000 MiB free)")
FITS = ("-c", "8192", "-ngl", "99")
TOO_LONG = ("-c", "524288")


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model of 0.6 GB; 1024 tokens of its cache take 8 MiB."""
    shape = model_headers.llama(layers=4, width=1024, inner=2048, heads=16)
    return str(write_shape(tmp_path / "model.gguf", shape, vocabulary=9))


@pytest.fixture
def starter(tmp_path: Path) -> Starter:
    data = tmp_path / "llm"
    data.mkdir(mode=0o755)
    return Starter(data, {"PATH": os.environ["PATH"]}, canary=False)


def needs(starter: Starter) -> list[str]:
    return [note for note in starter.notes if note.startswith("needs ")]


def test_the_need_is_told_before_the_start(model: str, starter: Starter) -> None:
    install_stand_in(starter.data, devices=CARD)
    assert starter.start("-m", model, *FITS) == 0
    (line,) = needs(starter)
    assert line.startswith("needs 750 MB (weights 601 MB, cache 67 MB, buffers 82 MB) for ")
    assert line.endswith("; Vulkan0 has 3.1 GB of 4.3 GB free")
    assert not [note for note in starter.notes if "to fit" in note]


def test_what_does_not_fit_starts_all_the_same(model: str, starter: Starter) -> None:
    install_stand_in(starter.data, devices=CARD)
    assert starter.start("-m", model, *TOO_LONG) == 0
    assert starter.report.ready
    (layers,) = [note for note in starter.notes if "layers go to the GPU" in note]
    assert "of 5 layers" in layers
    assert [note for note in starter.notes if note.startswith("to fit: ") and "-c " in note]


def test_require_fit_refuses_what_does_not_fit(model: str, starter: Starter) -> None:
    install_stand_in(starter.data, devices=CARD)
    with pytest.raises(DoesNotFit) as refused:
        starter.start("-m", model, *TOO_LONG, require_fit=True)
    assert refused.value.exit_code == 7
    assert refused.value.facts[0].startswith("needs 6.0 GB (weights 601 MB, cache 4.3 GB, ")
    assert needs(starter) == []
    assert "--require-fit" in refused.value.hint
    assert starter.reports == []


def test_the_name_of_a_device_counts_in_any_case(model: str, starter: Starter) -> None:
    small = "out   Vulkan1: a card (1024 MiB, 900 MiB free)"
    install_stand_in(starter.data, devices=(*CARD, small))
    with pytest.raises(DoesNotFit) as refused:
        starter.start("-m", model, *FITS, "--device", "vulkan1", require_fit=True)
    assert "Vulkan1 has" in refused.value.facts[0]
    assert "Vulkan0" not in refused.value.facts[0]


def test_a_model_that_is_not_split_has_one_device(model: str, starter: Starter) -> None:
    other = "out   Vulkan1: a card (1024 MiB, 900 MiB free)"
    install_stand_in(starter.data, devices=(*CARD, other))
    words = ("-m", model, *FITS, "-sm", "none", "-mg")
    assert starter.start(*words, "0", require_fit=True) == 0
    with pytest.raises(DoesNotFit) as refused:
        starter.start(*words, "1", require_fit=True)
    assert refused.value.facts[0].endswith("; Vulkan1 has 944 MB of 1.1 GB free")


def test_require_fit_starts_what_fits(model: str, starter: Starter) -> None:
    install_stand_in(starter.data, devices=CARD)
    assert starter.start("-m", model, *FITS, require_fit=True) == 0


@pytest.mark.parametrize("arguments", [("-m", "none.gguf"), ("--models-dir", "."), ()])
def test_require_fit_refuses_what_cannot_be_known(
    arguments: tuple[str, ...], starter: Starter
) -> None:
    install_stand_in(starter.data, devices=CARD)
    with pytest.raises(DoesNotFit, match="cannot be read before the start"):
        starter.start(*arguments, require_fit=True)
    assert starter.start(*arguments) == 0
    assert needs(starter) == []


def test_on_the_processor_main_memory_is_compared(model: str, starter: Starter) -> None:
    install_stand_in(starter.data, backend="cpu")
    assert starter.start("-m", model, *FITS) == 0
    assert "; main memory has " in needs(starter)[0]


def test_a_user_who_wants_no_gpu_is_told_of_main_memory(model: str, starter: Starter) -> None:
    install_stand_in(starter.data, devices=CARD)
    assert starter.start("-m", model, "-c", "8192", "-ngl", "0") == 0
    assert "; main memory has " in needs(starter)[0]


def test_a_remembered_list_does_not_tell_what_is_free(model: str, starter: Starter) -> None:
    install_stand_in(starter.data, devices=CARD)
    starter.start("-m", model, *FITS)
    starter.notes.clear()
    # A small model: the size of the card is enough to know, and nothing is asked.
    assert starter.start("-m", model, *FITS) == 0
    assert needs(starter)[0].endswith("; Vulkan0 has 4.3 GB")
    starter.notes.clear()
    # A large one: what is free decides, so the build is asked again.
    assert starter.start("-m", model, *TOO_LONG) == 0
    assert needs(starter)[0].endswith("; Vulkan0 has 3.1 GB of 4.3 GB free")
    starter.notes.clear()
    assert starter.start("-m", model, *FITS, require_fit=True) == 0
    assert needs(starter)[0].endswith("; Vulkan0 has 3.1 GB of 4.3 GB free")


def test_the_devices_that_the_user_names_count(model: str, starter: Starter) -> None:
    two = (*CARD, "out   Vulkan1: another card (8192 MiB, 8000 MiB free)")
    install_stand_in(starter.data, devices=two)
    starter.start("-m", model, *FITS, "--device", "Vulkan1")
    (line,) = needs(starter)
    assert "Vulkan1 has" in line
    assert "Vulkan0" not in line


@pytest.mark.parametrize(
    ("table", "cache"),
    [
        # Near our own estimate: nothing changes.
        ("Host 572 70 21 ", 64),
        # An architecture that keeps more than we know: the tool does.
        ("Host 572 512 21 ", 512),
        ("", 64),
    ],
)
def test_explain_asks_the_tool_of_the_build(
    table: str, cache: int, model: str, starter: Starter
) -> None:
    script = f"#!/bin/sh\necho '{table}'\n".encode()
    install_stand_in(starter.data, backend="cpu", files={"llama-fit-params": script})
    session = starter.session()
    hardware = probe(ReplayHost.load(SNAPSHOTS / "debian-12-vm-no-gpu.json"))
    choice = choose(session, hardware=hardware)
    fit = explain_model(session, choice, model, ["-c", "8192"], simulated=False)
    assert fit.need.weights == 600_870_912
    assert sum(fit.need.cache) == cache << 20


def test_explain_says_what_is_free_on_the_builds_devices(model: str, starter: Starter) -> None:
    # As at a start: a driver may list no device without a folder for its cache.
    starter.cache = starter.data.parent / "cache"
    install_stand_in(starter.data, devices=("need MESA_SHADER_CACHE_DIR", *CARD))
    session = starter.session()
    hardware = probe(ReplayHost.load(SNAPSHOTS / "rtx-3090-ubuntu-22.04.json"))
    choice = choose(session, hardware=hardware)
    fit = explain_model(session, choice, model, FITS, simulated=False)
    assert fit.told[0].endswith("; Vulkan0 has 3.1 GB of 4.3 GB free")
    # A tree that was changed is not run: what the drivers said has to do.
    (starter.data / "versions").chmod(0o755)
    (server,) = (starter.data / "versions").glob("*/tree/llama-server")
    server.chmod(0o755)
    server.write_bytes(b"#!/bin/sh\necho changed\n")
    fit = explain_model(session, choice, model, FITS, simulated=False)
    assert "NVIDIA GeForce RTX 3090 has 25." in fit.told[0]


def test_explain_judges_a_model_where_a_start_would_place_it(model: str, starter: Starter) -> None:
    two = (*CARD, "out   Vulkan1: a card (4096 MiB, 3900 MiB free)")
    install_stand_in(starter.data, devices=two)
    session = starter.session()
    hardware = probe(ReplayHost.load(SNAPSHOTS / "rtx-3090-ubuntu-22.04.json"))
    choice = choose(session, hardware=hardware)
    explained = partial(explain_model, session, choice, model, simulated=False)
    assert [each.name for each in explained(FITS).devices] == ["Vulkan1"]
    needs_both = ("-c", "327680")
    assert len(explained(needs_both).devices) == 2
    assert [each.name for each in explained((*FITS, "-dev", "Vulkan0")).devices] == ["Vulkan0"]
    assert len(explained((*FITS, "-sm", "layer")).devices) == 2


def test_require_fit_asks_the_tool_of_the_build(model: str, starter: Starter) -> None:
    """An architecture that takes more than our estimate says."""
    script = b"#!/bin/sh\n: ${MESA_SHADER_CACHE_DIR:?}\n"
    script += b"echo 'Vulkan0 572 9000 21 '; echo 'Host 0 0 9 '\n"
    # The tool gets the drivers' folders, as the server does.
    starter.cache = starter.data.parent / "cache"
    install_stand_in(starter.data, devices=CARD, files={"llama-fit-params": script})
    assert starter.start("-m", model, *FITS) == 0
    with pytest.raises(DoesNotFit) as refused:
        starter.start("-m", model, *FITS, require_fit=True)
    assert "cache 9.4 GB" in refused.value.facts[0]


@pytest.fixture
def windowed(tmp_path: Path) -> str:
    """A model that has a window, and does not say in which of its 8 layers; 4 GB of weights."""
    shape = model_headers.gpt_oss(layers=8)
    return str(write_shape(tmp_path / "windowed.gguf", shape, weights=Q4_0, vocabulary=9))


LONG = ("-c", "524288", "-ngl", "99")
LARGE = ("out Available devices:", "out   Vulkan0: a card (12288 MiB, 12000 MiB free)")


def test_a_need_that_the_file_does_not_tell_is_said_to_be_unknown(
    windowed: str, starter: Starter
) -> None:
    install_stand_in(starter.data, devices=LARGE)
    assert starter.start("-m", windowed, *LONG) == 0
    (line,) = needs(starter)
    assert line.startswith("needs at most ")
    assert [note for note in starter.notes if "does not tell all that a server takes" in note]
    assert not [note for note in starter.notes if "to fit" in note or "layers go" in note]
    with pytest.raises(DoesNotFit) as refused:
        starter.start("-m", windowed, *LONG, require_fit=True)
    assert "it is not known what the model needs" in str(refused.value)
    # Even the most has room.
    starter.start("-m", windowed, "-c", "65536", "-ngl", "99", require_fit=True)


def test_the_tool_of_the_build_ends_the_doubt(windowed: str, starter: Starter) -> None:
    half = (8 * 524288 * 2048 + 8 * 1024 * 2048) // 2 >> 20
    script = f"#!/bin/sh\necho 'Vulkan0 4000 {half} 21 '; echo 'Host 0 0 9 '\n".encode()
    install_stand_in(starter.data, devices=LARGE, files={"llama-fit-params": script})
    starter.start("-m", windowed, *LONG, require_fit=True)
    (line,) = needs(starter)
    assert "cache 4.3 GB" in line
    assert "at most" not in line
