"""The folders of the drivers' caches: every start gives them, and only the user's own count."""

import os
import stat
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.servers import NOW, install_stand_in
from support.sessions import make_session

from tsuku_llm.config.paths import Paths
from tsuku_llm.launch.plan.driver_caches import LIMIT
from tsuku_llm.machine.host import LocalHost
from tsuku_llm.steps.choosing.which import build_of
from tsuku_llm.steps.drivers.caches import (
    BuildCaches,
    build_caches,
    drop_caches,
    look_at_caches,
    would_give,
)
from tsuku_llm.steps.drivers.device_check import check_devices
from tsuku_llm.steps.drivers.state_notes import StateNotes
from tsuku_llm.steps.serve.tools import planned
from tsuku_llm.steps.serve.version_start import Serving
from tsuku_llm.steps.session import Machine, Session

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it has no such modes and locks")

KNOWN = {"vulkan": {"nvidia-gl", "mesa"}, "cuda": {"nvidia-compute"}, "openvino": {"intel-neo"}}


@dataclass
class User:
    """A user whose caches are in a folder of the test; ``notes`` are what the user was told."""

    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    cache: bool = True
    notes: list[str] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.folder / "cache" / "drivers"

    @property
    def session(self) -> Session:
        machine = Machine(LocalHost(None, self.environ), NOW, self.environ)
        paths = {"cache": self.folder / "cache" if self.cache else None}
        return make_session(self.folder / "llm", machine, note=self.notes.append, **paths)

    @property
    def paths(self) -> Paths:
        return self.session.paths

    def caches(self, backend: str) -> AbstractContextManager[BuildCaches]:
        return build_caches(backend, self.paths, self.environ, self.notes.append)


@pytest.fixture
def user(tmp_path: Path) -> User:
    (tmp_path / "llm").mkdir(mode=0o755)
    return User(tmp_path)


@pytest.mark.parametrize("backend", KNOWN)
def test_a_start_makes_a_private_folder_for_each_driver(backend: str, user: User) -> None:
    old = os.umask(0)
    try:
        with user.caches(backend) as caches:
            given = {value for value in caches.environ.values() if value.startswith(str(user.root))}
    finally:
        os.umask(old)
    assert given == {str(user.root / name) for name in KNOWN[backend]}
    for folder in (user.root, *(user.root / name for name in KNOWN[backend])):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert user.notes == []


def test_a_start_on_the_processor_makes_nothing(user: User) -> None:
    with user.caches("cpu") as caches:
        assert caches.environ == user.environ
        assert caches.held is None
    assert not user.root.exists()
    assert user.notes == []


def test_what_the_user_names_is_neither_made_nor_changed(user: User) -> None:
    user.environ = {"CUDA_CACHE_PATH": str(user.folder / "own")}
    with user.caches("cuda") as caches:
        assert caches.environ == user.environ
    assert not user.root.exists()
    assert not (user.folder / "own").exists()


def test_without_a_place_for_caches_a_start_goes_on_and_says_so(user: User) -> None:
    user.cache = False
    with user.caches("vulkan") as caches:
        assert caches.environ == user.environ
    (note,) = user.notes
    assert note.startswith("the drivers keep no compiled code: the system names no folder")
    assert note.endswith("set HOME, or XDG_CACHE_HOME")
    states = look_at_caches("vulkan", user.paths, user.environ)
    assert {state.state for state in states} == {"unusable"}


def _a_file(user: User) -> None:
    user.root.parent.mkdir()
    user.root.write_bytes(b"")


def _a_link(user: User) -> None:
    user.root.parent.mkdir()
    (user.folder / "elsewhere").mkdir()
    user.root.symlink_to(user.folder / "elsewhere")


def _open_to_all(user: User) -> None:
    user.root.parent.mkdir()
    user.root.parent.chmod(0o777)


def _anothers(user: User) -> None:
    user.root.mkdir(parents=True)
    os.chown(user.root, 65534, 65534)


@pytest.mark.parametrize("spoil", [_a_file, _a_link, _open_to_all, _anothers])
def test_a_folder_that_another_user_could_change_is_not_used(user: User, spoil: object) -> None:
    """The GPU would run what another user puts there."""
    if spoil is _anothers and os.geteuid():
        pytest.skip("only root gives away")
    assert callable(spoil)
    spoil(user)
    before = sorted(user.folder.rglob("*"))
    with user.caches("vulkan") as caches:
        assert caches.environ == user.environ
    (note,) = user.notes
    assert note.startswith("the drivers keep no compiled code: ")
    assert would_give("vulkan", user.paths, user.environ) == user.environ
    assert sorted(user.folder.rglob("*")) == before
    assert "unusable" in {
        state.state for state in look_at_caches("vulkan", user.paths, user.environ)
    }


@pytest.mark.skipif(sys.platform != "linux", reason="the locks of an open file")
def test_caches_in_use_stay_and_go_afterwards(user: User) -> None:
    with user.caches("vulkan"):
        (user.root / "mesa" / "index").write_bytes(bytes(1000))
        with user.caches("vulkan"):  # a second server shares them
            assert drop_caches(user.paths)._asdict() == {"size": 1000, "in_use": True}
    assert (user.root / "mesa" / "index").exists()
    assert drop_caches(user.paths)._asdict() == {"size": 1000, "in_use": False}
    assert not (user.root / "mesa").exists()
    assert drop_caches(user.paths).size == 0
    with user.caches("vulkan"):
        assert (user.root / "mesa").is_dir()


def test_only_the_folders_of_drivers_are_removed(user: User) -> None:
    with user.caches("vulkan"):
        (user.root / "mine.txt").write_bytes(b"mine")
        (user.folder / "outside").mkdir()
        (user.folder / "outside" / "kept").write_bytes(b"kept")
        (user.root / "mesa" / "link").symlink_to(user.folder / "outside")
    drop_caches(user.paths)
    assert (user.root / "mine.txt").read_bytes() == b"mine"
    assert (user.folder / "outside" / "kept").exists()


@pytest.mark.parametrize("value", ["", "0", "off", "relative"])
def test_a_value_that_is_no_folder_is_shown_as_the_users_word(value: str, user: User) -> None:
    user.environ = {"GGML_OPENCL_KERNEL_CACHE_DIR": value}
    states = {state.name: state for state in look_at_caches("opencl", user.paths, user.environ)}
    found = states["ggml-opencl"]
    assert (found.state, found.text) == (
        "off",
        f"as you say: GGML_OPENCL_KERNEL_CACHE_DIR={value}",
    )


def test_a_folder_that_this_user_may_not_open_is_named_with_what_helps(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = user.folder / "closed"
    closed.mkdir()
    stat_of, allowed = os.stat, os.access

    def refusing(path: object, *words: object, **named: object) -> os.stat_result:
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat_of(path, *words, **named)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(os, "stat", refusing)
    monkeypatch.setattr(
        os, "access", lambda path, mode: str(path) != str(closed) and allowed(path, mode)
    )
    user.environ = {"CUDA_CACHE_PATH": str(closed / "cuda")}
    (state,) = look_at_caches("cuda", user.paths, user.environ)
    assert (state.state, state.fix) == (
        "unusable",
        "let CUDA_CACHE_PATH name a folder of your own, or unset it",
    )
    assert state.text.endswith(f"this user may not write to {closed}")
    user.environ = {"CUDA_CACHE_PATH": str(user.folder / "none")}
    (state,) = look_at_caches("cuda", user.paths, user.environ)
    assert (state.state, state.fix) == ("unusable", "make it")


@pytest.mark.skipif(sys.platform != "linux", reason="the locks of an open file")
def test_a_cache_without_a_limit_of_its_own_is_emptied_beyond_ours(user: User) -> None:
    def fill(name: str, size: int) -> Path:
        file = user.root / name / "tree" / "x.so"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as writing:
            writing.truncate(size)  # sparse
        return file

    with user.caches("opencl"):
        large, small = fill("pocl", LIMIT + 1), fill("ggml-opencl", LIMIT)
        trimmed = fill("mesa", LIMIT + 1)
        # A server that runs now may be reading it.
        with user.caches("opencl"):
            assert large.exists()
    with user.caches("opencl"):
        assert not large.exists()
        assert (user.root / "pocl").is_dir()
        # This one is not too large, and Mesa removes old code itself.
        assert small.exists()
        assert trimmed.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")
def test_a_dry_run_shows_the_variables_and_makes_no_folder(user: User) -> None:
    install_stand_in(user.folder / "llm")
    shown = planned(user.session, ("-m", "x.gguf"), Serving()).environment
    assert shown["MESA_SHADER_CACHE_DIR"] == str(user.root / "mesa")
    assert not user.root.exists()
    assert dict(would_give("cpu", user.paths, user.environ)) == dict(user.environ)


@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")
def test_the_build_is_asked_for_its_devices_with_the_same_folders(user: User) -> None:
    """PoCL lists no device where it finds no folder, as in a service without a home."""
    steps = ("out Available devices:", "need POCL_CACHE_DIR", "out   GPUOpenCL: card (1 MiB)")
    installed = install_stand_in(user.folder / "llm", backend="opencl", devices=steps)
    assert planned(user.session, ("-m", "x.gguf"), Serving()).placement is not None
    with user.caches("opencl") as caches:
        notes = StateNotes(user.folder / "state", None)
        check = check_devices(build_of(installed), installed.id, notes, caches.environ)
    assert check.problem is None
    assert [device.name for device in check.devices or ()] == ["GPUOpenCL"]
