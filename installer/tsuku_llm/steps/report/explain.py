"""The reasons why each variant fits a machine or not, and whether a model of the user's fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tsuku_llm import fetch
from tsuku_llm.choose.selection import Candidate, Rejection, VariantFit, listed_gpus
from tsuku_llm.ground.errors import (
    BadModel,
    BodyError,
    GateFailed,
    HostUnreachable,
    HttpStatusError,
    NotInstalled,
    StoreError,
    TamperedInstall,
    TsukuError,
    UnsafeLocation,
)
from tsuku_llm.ground.ownership import check_path
from tsuku_llm.ground.records import documented
from tsuku_llm.launch.memory.fit import Card, Fit
from tsuku_llm.launch.memory.fit_tool import CacheCorrection
from tsuku_llm.launch.memory.gguf import read_header
from tsuku_llm.launch.memory.main_memory import main_memory
from tsuku_llm.launch.memory.memory_options import MemoryOptions, memory_options
from tsuku_llm.launch.memory.model_header import (
    HeaderBudget,
    ModelHeader,
    joined,
    parts_of,
    read_growing,
)
from tsuku_llm.launch.memory.placement import place
from tsuku_llm.launch.plan.build_arguments import Understood, arguments_in, understood
from tsuku_llm.launch.plan.secret_arguments import masked, shown_variable
from tsuku_llm.launch.plan.upstream_config import preset_in
from tsuku_llm.launch.plan.wishes import (
    MODELS_PRESET,
    USERS_PRESET,
    Wishes,
    last_value,
    names_a_model,
    visible_devices,
    wishes_in,
)
from tsuku_llm.launch.run.gate import list_devices
from tsuku_llm.machine.backends import facts_of
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.model_caches.finding import FoundModels, local_models
from tsuku_llm.model_caches.naming import LocalModel
from tsuku_llm.probe import probe
from tsuku_llm.probe.visible import only_given
from tsuku_llm.steps.choosing.choice import Choice, choose, staying, version_of, what_helps
from tsuku_llm.steps.choosing.which import (
    build_of,
    read_in_files,
    requested_version,
    told_to,
)
from tsuku_llm.steps.drivers.caches import would_give
from tsuku_llm.steps.drivers.device_check import (
    Check,
    wanted_maker,
    with_other_processes,
)
from tsuku_llm.steps.report.models import ways_to_a_model
from tsuku_llm.steps.serve.all_models import RouterPreset
from tsuku_llm.steps.serve.fitting import (
    ModelFiles,
    corrected_by_tool,
    fit_tool_of,
    read_models,
    spaces_of,
)
from tsuku_llm.steps.serve.tools import planned
from tsuku_llm.steps.serve.version_start import Serving
from tsuku_llm.steps.session import Session, working_folder
from tsuku_llm.store.records.installed import Installed


@documented("*choice", "variants", "model", "arguments", "active", "preset")
@dataclass(frozen=True, slots=True)
class Explanation:
    """A choice, every variant of its release, and whether a model fits.

    ``model`` is None if no model was named. ``arguments`` are those of the server, as the build in
    use reads them. ``active`` is the build in use, if it was asked for. ``preset`` is what a start
    without a model would offer, None if a model was named, or if the build has no presets.
    """

    choice: Choice
    variants: tuple[VariantFit, ...]
    model: Fit | None = None
    arguments: tuple[Understood, ...] = ()
    active: Installed | None = None
    preset: RouterPreset | None = None


def explained(
    choice: Choice, versions: Sequence[Installed] = (), active: Installed | None = None
) -> Explanation:
    """Return a choice with every variant: those that fit best first, then the others."""
    # The id contains the digests: another build of the same name has another id.
    states = {each.id: "installed" for each in versions} | ({active.id: "active"} if active else {})
    selection = choice.selection
    judged: tuple[Candidate | Rejection, ...] = (*selection.compatible, *selection.rejected)
    fits = tuple(
        VariantFit.of(each, states.get(version_of(choice.release.release, each.variant)))
        for each in judged
    )
    return Explanation(choice, fits, active=active)


def explain(
    session: Session, *, release: str | None = None, hardware_file: Path | None = None
) -> Choice:
    """Return the choice for this machine, or for the recorded machine in ``hardware_file``.

    If no variant fits, it has what helps there.

    Raises ``SnapshotError`` for a file that is not a recording.
    """
    hardware = probe(ReplayHost.load(hardware_file)) if hardware_file else None
    if release is None:
        session = staying(session)
    choice = choose(session, release=release, hardware=hardware)
    if choice.selection.compatible:
        return choice
    return replace(choice, hint=what_helps(session, choice))


def backends(
    session: Session, *, release: str | None = None, hardware_file: Path | None = None
) -> Explanation:
    """Compare every variant of all backends with the machine, and say which are installed.

    For a machine in ``hardware_file`` the installed versions are left out: they belong to this
    machine. Raises the errors of ``explain``, and ``StoreError`` if the store cannot be read.
    """
    anything = session.with_settings(backend="auto")
    choice = explain(anything, release=release, hardware_file=hardware_file)
    if hardware_file:
        return explained(choice)
    reader = session.reader
    return explained(choice, reader.installed(), reader.active())


def explain_arguments(session: Session, arguments: Sequence[str]) -> tuple[Understood, ...]:
    """Return the server's arguments as the active build reads them; none if it does not tell.

    What it reads in files is among them: upstream's ``config.ini``, and a preset of the user's.
    """
    found: tuple[Understood, ...] = ()
    with suppress(NotInstalled, StoreError):
        receipt = requested_version(session).receipt
        found = tuple(understood(masked(arguments), receipt.takes))
        env = session.machine.environ
        read = read_in_files(receipt, env)
        found += tuple(
            Understood(
                word=each.key,
                values=(shown_variable(each.variable, each.value),),
                names=(),
                variable=each.variable,
                source=str(each.source),
            )
            for each in read
        )
        told = {**{each.variable: each.value for each in read}, **env}
        if preset := last_value(("llama-server", *arguments), told, USERS_PRESET):
            folder = working_folder()
            found += tuple(preset_in(folder / preset[1], receipt.takes, arguments, folder))
    if arguments and not found:
        session.user.note("no installed build tells how it reads arguments")
    return found


def explain_router(session: Session, arguments: Sequence[str]) -> RouterPreset | None:
    """Return what ``serve`` with these arguments would offer; None if they name a model.

    None as well without a model or a build, and if that has no presets. What keeps a start from
    running is told by the start.
    """
    environ = session.machine.environ
    with suppress(TsukuError):
        takes = requested_version(session).receipt.takes
        known = any(MODELS_PRESET in each.names for each in arguments_in(takes))
        if not known or names_a_model(arguments, told_to(session)):
            return None
        models = local_models(environ, session.settings.model_path).models
        quiet = session._replace(user=session.user._replace(note=lambda _: None))
        return planned(quiet, arguments, Serving(models=models)).preset
    return None


def explain_model(
    session: Session, choice: Choice, model: str, arguments: Sequence[str], *, simulated: bool
) -> Fit:
    """Judge a model for the build that ``serve`` would start, else for the best variant.

    ``model`` is a path or a URL, ``arguments`` are the server's. Of a ``simulated`` machine only
    the size of its memory is known, not what is free.
    Raises ``BadModel``, and the errors of ``fetch`` for a URL.
    """
    argv = ("llama-server", *arguments, "-m", model)
    env = told_to(session)
    if simulated:
        # The server's own variables are arguments; the others are about this machine.
        env = {name: value for name, value in env.items() if name.startswith("LLAMA_")}
    options, wishes = memory_options(argv, env), wishes_in(argv, env)
    with fetch.Network(session.machine.environ, on_wait=session.user.note) as network:
        models = read_models(options, partial(_header_of, network))
    if simulated:
        memory = Card("main memory", total=choice.hardware.memory)
        return models.judged(options, wishes, _probed(choice), memory, backend=_backend(choice))
    cards, correction = tuple[Card, ...](), None
    # Without an intact build for these devices, the drivers' word is all there is.
    with (
        suppress(NotInstalled, GateFailed, TamperedInstall, UnsafeLocation),
        _checked_build(session, choice) as (installed, environ),
    ):
        cards = _cards_of(installed, environ, session.settings.backend)
        # The tool reads one local model, and knows nothing of companions.
        if options.model is not None and "://" not in options.model:
            asked = options._replace(model=str(working_folder() / options.model))
            tool, need = fit_tool_of(installed), models.need(options)
            correction = corrected_by_tool(tool, need, asked, wishes, environ)
    return _judged(session, choice, models, cards, options, wishes, correction)


def _backend(choice: Choice) -> str:
    return choice.best.variant.backend if choice.best else "cpu"


def _probed(choice: Choice) -> tuple[Card, ...]:
    """Return the devices that the best variant would use, as the drivers describe them."""
    best = choice.best
    if best is None or best.gpu is None:
        return ()
    return tuple(
        Card(gpu.name, total=gpu.memory)
        for gpu in listed_gpus(best.variant, choice.hardware)
        if gpu.kind is best.gpu.kind
    )


def memory_judge(session: Session, choice: Choice) -> Callable[[str, str | None], Fit]:
    """Return the function that judges a model by its file and its projector's.

    The installed build is asked once, and upstream's own tool for no model: it takes seconds.
    """
    env, cards = session.machine.environ, tuple[Card, ...]()
    with (
        suppress(NotInstalled, GateFailed, TamperedInstall, UnsafeLocation),
        _checked_build(session, choice) as (installed, environ),
    ):
        cards = _cards_of(installed, environ, session.settings.backend)

    def judge(path: str, projector: str | None) -> Fit:
        argv = ("llama-server", "-m", path, *(("--mmproj", projector) if projector else ()))
        options, wishes = memory_options(argv, env), wishes_in(argv, env)
        models = read_models(options, read_header)
        return _judged(session, choice, models, cards, options, wishes)

    return judge


def _judged(
    session: Session,
    choice: Choice,
    models: ModelFiles,
    cards: tuple[Card, ...],
    options: MemoryOptions,
    wishes: Wishes,
    correction: CacheCorrection | None = None,
) -> Fit:
    """Judge models on those of the build's ``cards`` on which a start would place them.

    These are all where the server chooses, and what the drivers say without a build.
    """
    backend = _backend(choice)
    chosen = visible_devices(session.machine.environ, facts_of(backend).hiding_variables)
    if cards and not (wishes.placed or chosen):
        need = models.need(options)
        placed = place(
            cards,
            correction.applied(need) if correction else need,
            setting=session.settings.placement,
            asked_layers=wishes.device_layers,
            margin=options.margin(0),
        )
        cards = tuple(card for card in cards if card.name in placed.devices) or cards
    devices = spaces_of(cards) or _probed(choice)
    return models.judged(
        options, wishes, devices, main_memory(), backend=backend, correction=correction
    )


@contextmanager
def _checked_build(
    session: Session, choice: Choice
) -> Iterator[tuple[Installed, Mapping[str, str]]]:
    """Check the installed build as before a start, and hold it while it is asked.

    Give it with the environment in which it may be run. Raises ``NotInstalled``, also for a build
    of another backend than the chosen one, and the errors of the checks.
    """
    reader = session.reader
    installed = requested_version(session)
    backend = installed.receipt.backend
    if choice.best is None or backend != choice.best.variant.backend:
        raise NotInstalled("no build of the chosen backend is installed")
    # As before a start: the build is run.
    check_path(session.paths.data)
    with reader.hold(installed):
        reader.check(installed)
        environ = session.machine.environ
        given = {**only_given(backend, choice.hardware, environ), **environ}
        yield installed, would_give(backend, session.paths, given)


def _cards_of(installed: Installed, environ: Mapping[str, str], requested: str) -> tuple[Card, ...]:
    """Ask the build for its devices, and what is free on them. Raises ``GateFailed``."""
    build, receipt = build_of(installed), installed.receipt
    if build.backend == "cpu":
        return ()
    listed = Check(
        build,
        list_devices(build, environ).devices,
        hardware=receipt.hardware,
        maker=wanted_maker(receipt, requested),
    )
    return with_other_processes(listed.cards, environ)


def _header_of(network: fetch.Network, name: str) -> ModelHeader:
    """Read the header of a model's parts, from this machine or from a host.

    Raises ``BadModel`` with the name of this file: a start may have several.
    """
    try:
        if not name.lower().startswith(("http://", "https://")):
            return read_header(name)
        budget = HeaderBudget()
        parts = (partial(fetch.beginning, part, network=network) for part in parts_of(name))
        return joined([read_growing(beginning, budget) for beginning in parts])
    except (HttpStatusError, BodyError, HostUnreachable) as error:
        # The other hints are about our own files: an update, or a mirror.
        error.hint = _OF_A_URL
        raise
    except OSError as error:
        raise BadModel(
            "the model cannot be read",
            facts=(f"{error.filename or name}: {error.strerror or error}",),
            hint="check the path, and that you may read the file",
        ) from error
    except ValueError as error:
        raise BadModel(
            "the model is no GGUF file",
            facts=(f"{name}: {error}",),
            hint="llama.cpp runs models in the GGUF format: choose such a file, or download it "
            "again if it is not complete",
        ) from error


_OF_A_URL = (
    "check that the URL is the file's own and not that of a page about it, and needs no login; or "
    "download the model first, and give its path"
)


@documented("*model", "fit", "problem")
@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model, and whether it fits; ``problem`` is why that is not known."""

    model: LocalModel
    fit: Fit | None = None
    problem: str | None = None


@documented("models", "*found", "problem")
@dataclass(frozen=True, slots=True)
class ModelList:
    """The models of this machine; ``problem`` is why it is not known whether they fit.

    ``ways`` says how to get a model, if there is none.
    """

    found: FoundModels
    models: tuple[ModelRow, ...]
    problem: str | None = None
    ways: tuple[str, ...] = ()


def list_models(session: Session) -> ModelList:
    """List the models, each with the judgement of ``explain -m`` for a start without arguments."""
    found = local_models(session.machine.environ, session.settings.model_path)
    if not found.models:
        return ModelList(found, (), ways=ways_to_a_model(session.reader))
    try:
        judge = memory_judge(session, explain(session))
    except TsukuError as error:
        return ModelList(found, tuple(map(ModelRow, found.models)), error.message)
    return ModelList(found, tuple(_row(model, judge) for model in found.models))


def _row(model: LocalModel, judge: Callable[[str, str | None], Fit]) -> ModelRow:
    try:
        return ModelRow(model, judge(model.path, model.projector))
    except OSError as error:
        return ModelRow(model, problem=f"it cannot be read: {error.strerror or error}")
    except ValueError as error:
        return ModelRow(model, problem=f"it is no complete GGUF file: {error}")
