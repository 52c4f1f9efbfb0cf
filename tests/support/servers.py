"""Stand-ins for the server in a store, and starts of them that end as soon as they are judged."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from support.builds import stand_in
from support.sessions import make_session
from support.stored import install

from tsuku_llm.launch.plan.report import StartReport
from tsuku_llm.launch.run.supervise import StopHandle
from tsuku_llm.machine.host import LocalHost
from tsuku_llm.steps.serve.serve import serve
from tsuku_llm.steps.serve.version_start import Serving
from tsuku_llm.steps.session import Machine, Session
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.store import Store

ROOT = Path(__file__).parents[2]
_SIGNED = json.loads((ROOT / "manifests/metadata/timestamp.json").read_bytes())["signed"]
NOW = datetime.fromisoformat(_SIGNED["issued"].replace("Z", "+00:00")) + timedelta(hours=12)
"""Half a day after the embedded metadata was signed: no later signature makes it the past."""


def install_stand_in(
    data: Path,
    *,
    release: str = "b100",
    backend: str = "vulkan",
    device: str | None = None,
    files: Mapping[str, bytes] | None = None,
    hardware: Mapping[str, object] | None = None,
    activate: bool = True,
    **steps: Sequence[str],
) -> Installed:
    """Install a stand-in that takes these steps, with more ``files`` next to it."""
    build = stand_in(data.parent / f"{release}-{backend}", backend=backend, **steps)
    found = {path.name: path.read_bytes() for path in build.tree.iterdir()}
    return install(
        Store(data),
        release,
        backend,
        {**found, **(files or {})},
        {},
        activate=activate,
        backend=backend,
        device=device,
        hardware=hardware or {},
    )


@dataclass
class Starter:
    """Starts what is installed in ``data`` as ``serve`` does, and ends it when it was judged.

    ``notes`` are what people were told, ``reports`` every state of the start; ``on_note`` is
    called at each note, the first of which comes between the check and the start. ``answer`` is
    what the user says to each of the ``questions``.
    """

    data: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    fallback: str = "off"
    backend: str = "auto"
    canary: bool = True
    warm_up: bool = True
    cache: Path | None = None
    notes: list[str] = field(default_factory=list)
    reports: list[StartReport] = field(default_factory=list)
    on_note: Callable[[], None] = lambda: None
    answer: bool = False
    questions: list[str] = field(default_factory=list)
    on_loading: Callable[[int, int], None] | None = None

    def start(
        self,
        *arguments: str,
        require_gpu: bool = False,
        min_gpu_share: float | None = None,
        require_fit: bool = False,
        become: bool = False,
    ) -> int:
        """Start it; with ``become`` as ``--exec`` does. Raises what ``serve`` raises."""
        stop_handle = StopHandle()

        def on_report(report: StartReport) -> None:
            self.reports.append(report)
            if report.ready and report.is_judged:
                stop_handle.end("it was judged")

        how = Serving(
            replace=become,
            require_gpu=require_gpu,
            min_gpu_share=min_gpu_share,
            require_fit=require_fit,
            sink=on_report,
            stop_handle=stop_handle,
            on_loading=self.on_loading,
        )
        return serve(self.session(), ("--port", "0", *arguments), how)

    @property
    def report(self) -> StartReport:
        """The last state."""
        return self.reports[-1]

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.on_note()

    def _ask(self, question: str) -> bool:
        self.questions.append(question)
        return self.answer

    def session(self) -> Session:
        """The session of a start."""
        machine = Machine(LocalHost(None, self.environ), NOW, self.environ)
        wanted = {"fallback": self.fallback, "backend": self.backend, "canary": self.canary}
        wanted |= {"warm_up": self.warm_up}
        told = {"note": self._note, "ask": self._ask, "cache": self.cache}
        return make_session(self.data, machine, **told, **wanted)
