"""What is made of measured speeds: medians, the order, the hints, and what would be saved."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.stored import install, make_receipt

from tsuku_llm.cli.render.bench import lines
from tsuku_llm.launch.ask.speed import Speed
from tsuku_llm.launch.compute.canary_answer import AnswerStep
from tsuku_llm.steps.report.bench import Report, Skipped, VariantRun, VariantSpeed, _report
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.store import Store


def measured(variant: str, generation: float, prompt: float = 100.0) -> VariantSpeed:
    backend = variant.removeprefix("own-").partition("-")[0]
    unsigned = "/a/build" if variant.startswith("own-") else None
    told = {"id": f"b1-{variant}", "backend": backend, "unsigned": unsigned}
    receipt = make_receipt("b1", variant, publisher="simulator", **told)
    build = Installed(receipt.id, Path("store"), receipt)
    return VariantSpeed(build, None, prompt, generation, ())


def report(*results: VariantSpeed, skipped: tuple[Skipped, ...] = ()) -> Report:
    return Report(Path("m.gguf"), 3, results, (), skipped)


def test_the_median_of_the_rounds_counts_and_the_faster_generation_wins(tmp_path: Path) -> None:
    store = Store(tmp_path)
    slow, fast = VariantRun(install(store, "b100")), VariantRun(install(store, "b101"))
    slow.speeds += [Speed(prompt, 10, 1, 1) for prompt in (1000, 9000, 2000)]
    fast.speeds += [Speed(5, generation, 1, 1) for generation in (11, 12, 500)]
    found = _report(tmp_path, 3, [slow, fast], ())
    assert [(each.receipt.release, each.prompt, each.generation) for each in found.results] == [
        ("b101", 5, 12),
        ("b100", 2000, 10),
    ]


def test_a_variant_that_diverges_is_not_the_fastest(tmp_path: Path) -> None:
    """The CPU's answers count as the right ones, also if another variant came first."""
    told = [AnswerStep(1, (1, 2), (0.1, 3.0)), AnswerStep(1, (1, 2), (2.0, 0.2))]
    runs = []
    for variant, speed, which in (("vulkan", 90, 0), ("cuda-13.4", 99, 1), ("cpu", 10, 0)):
        build = measured(variant, speed).build
        runs.append(VariantRun(build, None, [Speed(1, speed, 1, 1)], (told[which],)))
    found = _report(tmp_path, 1, runs, ())
    assert [each.receipt.variant for each in found.results] == ["vulkan", "cpu", "cuda-13.4"]
    assert [each.diverges for each in found.results] == [False, False, True]
    assert found.backend == "vulkan"
    assert found.hints[0].startswith("cuda-13.4 computes something else with this model: ")
    text = "\n".join(lines(found))
    assert "the fastest is vulkan" in text
    assert " 0.000" in text


@pytest.mark.parametrize(
    ("others", "word"),
    [
        ((), "cuda"),
        (("vulkan", "cpu"), "cuda"),
        (("cuda-12.8", "cpu"), "cuda-13.4"),
        (("own-cuda",), "cuda"),
    ],
)
def test_a_variant_is_named_only_if_its_backend_is_not_enough(
    others: tuple[str, ...], word: str
) -> None:
    found = report(measured("cuda-13.4", 50), *(measured(name, 10) for name in others))
    assert found.backend == word


def test_no_setting_selects_a_build_of_ones_own() -> None:
    found = report(measured("own-cpu", 50), measured("cpu", 10))
    assert found.backend is None
    told = lines(found)
    assert told[-1] == "the fastest is own-cpu; to use it: tsuku-llm use b1-own-cpu"
    origins = [line for line in told if line.startswith(("own-cpu: ", "b1: "))]
    assert origins[0] == "own-cpu: unsigned, from /a/build"
    assert origins[1].startswith("b1: built by simulator")


def test_without_the_cpu_nothing_is_compared() -> None:
    assert report(measured("vulkan", 50), measured("cuda", 10)).hints == ()
    assert len(report(measured("vulkan", 12), measured("cpu", 10)).hints) == 1
    assert len(report(measured("cpu", 10), measured("vulkan", 2), measured("cuda", 3)).hints) == 2


def test_a_bar_is_never_empty() -> None:
    found = report(measured("<&>", 1000), measured("cpu", 0.001))
    assert [line.split()[1:] for line in lines(found) if line.startswith("  cpu")] == [
        ["#", "0.0"],
        ["#" * 40, "100"],
    ]


def test_variants_that_were_not_measured_are_listed_with_their_size() -> None:
    skipped = (Skipped("cuda-13.4", "not installed", 593_000_000), Skipped("rocm", "no", None))
    told = lines(replace(report(measured("cpu", 1), skipped=skipped), saved="cpu"))
    assert told[-3:] == (
        "not measured: cuda-13.4 (593 MB): not installed",
        "not measured: rocm: no",
        "saved: llm.backend = cpu",
    )
