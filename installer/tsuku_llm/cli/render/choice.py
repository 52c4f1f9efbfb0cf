"""A choice (``explain``, ``backends``) and the hardware that it was made for (``probe``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tsuku_llm._version import REPORTS
from tsuku_llm.cli.terminal.text import named, origin, sentence, size, table, unattested, unmeasured
from tsuku_llm.ground.own_name import TSUKU
from tsuku_llm.machine.backends import build_name
from tsuku_llm.machine.hardware import ApiState, Gpu, Hardware, Problem

if TYPE_CHECKING:
    from tsuku_llm.choose.selection import Candidate
    from tsuku_llm.launch.memory.fit import Fit
    from tsuku_llm.steps.choosing.choice import Choice
    from tsuku_llm.steps.report.explain import Explanation


def lines(choice: Choice) -> tuple[str, ...]:
    """Return the decision and every variant for people."""
    selection = choice.selection
    # What fits comes first, by rank; then what does not fit.
    rows = [
        ("rank", "variant", "download", ""),
        *(
            (str(c.rank), c.variant.name, size(c.variant.download_size), verdict(c))
            for c in selection.compatible
        ),
        *(
            ("-", r.variant.name, size(r.variant.download_size), r.reason.text)
            for r in selection.rejected
        ),
    ]
    avoided = (f"not taken: {each.release}, {each.told}" for each in choice.passed_over)
    # How GPUs come into use that are not, and which ones nothing helps.
    helped = {way.gpu for way in choice.ways}
    names = ", ".join(name for name in selection.idle if name not in helped)
    idle = f"idle, as no build that fits can use it: {names}; why: {TSUKU} doctor --backend gpu"
    return (
        sentence(_best(choice)),
        *title(choice),
        *_stale(choice),
        *avoided,
        *table(rows),
        *(way.told for way in choice.ways),
        *((idle,) if names else ()),
        *selection.tips,
        *problems(choice.hardware),
        *_helps(choice),
    )


def _stale(choice: Choice) -> tuple[str, ...]:
    return (choice.stale,) if choice.stale else ()


def _helps(choice: Choice) -> tuple[str, ...]:
    return (f"no variant fits; hint: {choice.hint}",) if choice.hint else ()


def fit_lines(fit: Fit) -> tuple[str, ...]:
    """Return whether a model fits for people."""
    word = {True: "fits", False: "does not fit", None: "cannot be judged"}[fit.fits]
    return (f"the model {word}:", *(f"  {line}" for line in fit.told))


def argument_lines(explanation: Explanation) -> tuple[str, ...]:
    """Return how the installed build reads each argument of the server."""
    rows = []
    for each in explanation.arguments:
        variable = f"variable {each.variable}" if each.variable else ""
        also = ", ".join([*each.names, *([variable] if variable else [])])
        about = each.problem or (f"also {also}" if also else "")
        words = " ".join([each.word, *each.values])
        if each.source:
            about = f"from {each.source}{f': {each.problem}' if each.problem else ''}"
        rows.append((words, about))
    return ("the server's arguments:", *table(rows)) if rows else ()


def router_lines(explanation: Explanation) -> tuple[str, ...]:
    """Return what a start without a model would offer."""
    preset = explanation.preset
    if preset is None:
        return ()
    rows = [each.told for each in preset.models]
    memory = f"; {preset.memory}" if preset.memory else ""
    return (f"serve would offer these models, each at its first request{memory}:", *table(rows))


def title(choice: Choice) -> tuple[str, ...]:
    """Return which release is for which machine, and whether it was verified and measured."""
    release = choice.release
    revoked = f", {choice.revocation.summary}" if choice.revocation else ""
    return (
        (
            f"{named(release.release, release.version)} "
            f"{origin(release.publisher, choice.catalog.repository.name)}, "
            f"channel {choice.channel}, for {choice.hardware.platform}{revoked}"
        ),
        *unattested(release.unattested),
        *unmeasured(release.unmeasured),
    )


def machine_name(choice: Choice) -> str:
    """Return the words for the machine that a choice is made for."""
    simulated = choice.hardware.simulated
    return f"the simulated machine {simulated}" if simulated else "this machine"


def _best(choice: Choice) -> str:
    """Say which build is for this machine, or that there is none."""
    release, selection = choice.release.release, choice.selection
    machine = machine_name(choice)
    if not selection.compatible:
        asked = "" if selection.requested == "auto" else f" and the request {selection.requested}"
        return f"no build of {release} fits {machine}{asked}"
    best = selection.compatible[0]
    device = f", on {best.device}" if best.device else ""
    return f"{build_name(best.variant.backend, release)} fits {machine} best{device}"


def verdict(candidate: Candidate) -> str:
    """Return why a variant fits, and what to know of its first start."""
    fits = f"fits: {candidate.device or 'the processor'}"
    return f"{fits}; {candidate.note}" if candidate.note else fits


# --- every variant, and which of them are installed ---------------------------------------


def matrix_lines(matrix: Explanation) -> tuple[str, ...]:
    """Return the matrix for people."""
    selection = matrix.choice.selection
    verdicts = [
        *(verdict(each) for each in selection.compatible),
        *(each.reason.text for each in selection.rejected),
    ]
    rows = [
        (each.variant, each.backend, size(each.download_size), each.state or "", verdict)
        for each, verdict in zip(matrix.variants, verdicts, strict=True)
    ]
    head = ("variant", "backend", "download", "state", "")
    best = selection.compatible[:1]
    state = f"; it is {matrix.variants[0].state or 'not installed'}" if best else ""
    return (
        sentence(f"{_best(matrix.choice)}{state}"),
        *title(matrix.choice),
        *_stale(matrix.choice),
        *table([head, *rows]),
        *selection.tips,
        *_helps(matrix.choice),
        *_other_active(matrix),
    )


def _other_active(matrix: Explanation) -> tuple[str, ...]:
    """Return a line for the active version, if it is not one of the rows."""
    active = matrix.active
    if active is None or any(each.state == "active" for each in matrix.variants):
        return ()
    receipt = active.receipt
    return (f"active: {receipt.variant} of {named(receipt.release, receipt.version)}",)


# --- the hardware -------------------------------------------------------------------------


def hardware_lines(hardware: Hardware, record: Path | None) -> tuple[str, ...]:
    """Return the machine for people."""
    # Leave out APIs that do not exist on this operating system.
    asked = [api for api in hardware.apis if api.state is not ApiState.NOT_ASKED]
    apis = [
        (api.name, api.state.value, api.version or "", api.driver or "", api.library or "")
        for api in asked
    ]
    gpus = [gpu for api in asked for gpu in api.gpus]
    return (
        *table(list(_system(hardware).items()), indent=0),
        *(("driver APIs:", *table(apis)) if asked else ()),
        *(("devices:", *table([_gpu(gpu) for gpu in gpus])) if gpus else ("devices: none",)),
        *problems(hardware),
        *((f"recorded in {record}; to report a problem, attach it: {REPORTS}",) if record else ()),
    )


def problems(hardware: Hardware) -> tuple[str, ...]:
    """Return every known problem of the machine and its fix."""
    return tuple(
        line
        for problem in hardware.all_problems
        for line in (named_problem(problem), f"  fix: {problem.fix}")
    )


def named_problem(problem: Problem) -> str:
    """Return a problem with its name, marked as temporary if it will pass."""
    return f"{problem.slug}{' (temporary)' if problem.transient else ''}: {problem.text}"


def _system(hardware: Hardware) -> dict[str, str]:
    libc, cpu = hardware.libc, hardware.cpu
    facts = {
        "simulated": hardware.simulated,
        "platform": hardware.platform,
        "system": hardware.os_version,
        "libc": f"{libc.name} {libc.version or ''}" if libc else None,
        "libstdc++": f"GLIBCXX {hardware.libstdcxx}" if hardware.libstdcxx else None,
        "processor": cpu.name if cpu else None,
        "level": f"x86-64-v{cpu.level}" if cpu and cpu.level else None,
        "memory": size(hardware.memory) if hardware.memory else None,
    }
    return {name: value for name, value in facts.items() if value}


def _gpu(gpu: Gpu) -> tuple[str, ...]:
    memory = size(gpu.memory) if gpu.memory is not None else ""
    # What builds are made for: CUDA's compute capability, AMD's gfx name, else the API version.
    target = gpu.compute_capability or gpu.gfx or gpu.api_version or ""
    return (f"{gpu.api} {gpu.index}", gpu.kind.value, gpu.name, memory, target)
