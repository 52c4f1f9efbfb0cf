"""A machine that updates itself: a shop with releases of stand-ins, a user, and servers."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.builds import NO_DEVICE_STEPS, VULKAN_STEPS
from support.folder_shop import FolderShop
from support.release_server import User
from support.waiting import PROMPTLY, Standstill

from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.record import Record
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.steps.servers.unattended import UnattendedReport, unattended_update
from tsuku_llm.steps.session import FAKE_HARDWARE, Session

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
H200 = SNAPSHOTS / "h200-working-vulkan.json"
FAST = ("speed 1000 100", "listen")
LOGS = Path(__file__).parents[1] / "server_logs"


def recorded(name: str) -> tuple[str, ...]:
    """The steps that print a recorded log of a verbose server, which then listens."""
    text = (LOGS / f"{name}.txt").read_text(encoding="utf-8").replace("llvmpipe", "card")
    lines = text.splitlines()
    end = next(at for at, line in enumerate(lines) if "listening on" in line)
    return (*(f"err {line}" for line in lines[:end]), "speed 1000 100", "listen")


ON_GPU, ON_CPU = recorded("b10434-gpu"), recorded("b10434-cpu")


class SelfUpdating:
    """A machine whose user takes releases from a shop; its hardware is recorded."""

    def __init__(self, folder: Path) -> None:
        self.shop = FolderShop(folder / "shop")
        self.home = folder / "home"
        self.home.mkdir(mode=0o755)
        self.model = folder / "model.gguf"
        user = self.shop.user(self.home)
        fake = {FAKE_HARDWARE: str(H200), "TSUKU_LLM_REFRESH": "always"}
        self.user = User(user.home, {**user.env, **fake})
        self.instances = Instances(self.home / "llm" / "state")

    def publish(
        self,
        tag: str,
        serve: Sequence[str] = FAST,
        *,
        backend: str = "cpu",
        channels: Sequence[str] = ("stable",),
        **others: Sequence[str],
    ) -> None:
        """Publish a release whose one build serves as told; ``others`` are its other steps."""
        devices = NO_DEVICE_STEPS if backend == "cpu" else VULKAN_STEPS
        steps: dict[str, Any] = {"devices": devices, "serve": serve, **others}
        packed = self.shop.stand_in(f"{tag}-{backend}", backend=backend, **steps)
        variant = self.shop.variant(packed, backend=backend)
        self.shop.publish(tag, {backend: variant}, channels=channels)

    def run(self, *words: str, **extra: str) -> Any:
        """Run a command that ends well; return its data."""
        done = self.user.run(*words[:1], "--json", *words[1:], **extra)
        assert done.code == 0, done.stderr
        return done.document["data"]

    def serve(self, name: str = "default", *arguments: str, **extra: str) -> Any:
        """Start a server in the background; return what ``status`` says of it.

        ``extra`` are variables that the server inherits.
        """
        if not self.model.exists():
            self.model.write_bytes(b"GGUF" + bytes(60))
        words = ("--", "-m", str(self.model), "--port", "0", *arguments)
        return self.run("serve", "--detach", "--name", name, *words, **extra)

    def servers(self) -> Mapping[str, Any]:
        """Every server in the background, by its name."""
        return {each["name"]: each for each in self.run("status")["servers"]}

    def runs(self, name: str = "default") -> str:
        """The release that a server runs; it answers."""
        (found,) = self.run("status", name)["servers"]
        assert found["state"] == "running", found
        with urllib.request.urlopen(f"http://127.0.0.1:{found['port']}/health") as answer:
            assert answer.status == 200
        return str(found["report"]["release"])

    def wait_for_server(self) -> None:
        """Wait until the server serves, which may be on its way."""
        deadline = time.monotonic() + PROMPTLY
        while self.servers()["default"]["state"] != "running":
            if time.monotonic() > deadline:
                raise Standstill(f"the server does not serve: {self.servers()}")
            time.sleep(0.1)

    def active(self) -> str:
        """The release that the pointer names."""
        pointer = json.loads((self.home / "llm" / "active.json").read_text())
        return str(pointer["active"].partition("-")[0])

    def session(self, **changes: Any) -> Session:
        """A session of this user with newer metadata at each look."""
        machine = {"host": ReplayHost.load(H200), "refresh": "always", "agreed": True}
        return self.shop.session(self.home, **{**machine, **changes})

    def update(
        self, on_note: Callable[[str], object] = lambda _: None, **changes: Any
    ) -> tuple[UnattendedReport, list[str]]:
        """Update unattended, in this process; return the report and what was told."""
        notes: list[str] = []

        def note(text: str) -> None:
            notes.append(text)
            on_note(text)

        return unattended_update(self.session(note=note, **changes)), notes

    def killed_at(self, step: int) -> bool:
        """Update in a child that is killed before its change of this number.

        A change is a file of the store that is renamed or removed; the metadata have tests of their
        own. False if the update ended before.
        """

        def attack() -> None:
            made = 0

            def count(event: str, about: tuple[object, ...]) -> None:
                nonlocal made
                if event in ("os.rename", "os.remove") and "/metadata/" not in str(about[0]):
                    if made == step:
                        os.kill(os.getpid(), signal.SIGKILL)
                    made += 1

            sys.addaudithook(count)

        return self._killed(attack)

    def killed_when(self, seen: Callable[[Record], bool]) -> bool:
        """Update in a child that is killed once the record of the server is as told.

        False if the update ended before.
        """

        def attack() -> None:
            def look() -> None:
                while (found := self.instances.find("default")) is None or not seen(found):
                    time.sleep(0.005)
                os.kill(os.getpid(), signal.SIGKILL)

            threading.Thread(target=look, daemon=True).start()

        return self._killed(attack)

    def _killed(self, attack: Callable[[], None]) -> bool:
        child = os.fork()
        if child == 0:
            try:
                session = self.session()
                attack()
                unattended_update(session)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        return os.WIFSIGNALED(status)


@contextmanager
def self_updating(folder: Path) -> Iterator[SelfUpdating]:
    """A machine, and none of its servers afterwards."""
    machine = SelfUpdating(folder)
    try:
        yield machine
    finally:
        for record in machine.instances.all():
            for process in (record.server, record.supervisor):
                if process:
                    process.send(signal.SIGKILL)
