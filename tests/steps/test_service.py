"""What a machine has for a service: the GPU's groups, and what other users cannot read."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tsuku_llm.ground.errors import UsageError
from tsuku_llm.launch.plan.addresses import ServerAddress
from tsuku_llm.steps.servers.service import (
    closed_to_others,
    device_groups,
    listen_stream,
    write_units,
)

GROUPS = """\
root:x:0:
video:x:44:alice
render:x:105:
broken
odd:x:many:
"""


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    (tmp_path / "dev" / "dri").mkdir(parents=True)
    return tmp_path / "dev"


def groups(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "group"
    file.write_text(text)
    return file


def test_the_usual_groups_are_taken_if_the_system_has_them(dev: Path, tmp_path: Path) -> None:
    assert device_groups(dev, groups(tmp_path, GROUPS)) == ("render", "video")
    assert device_groups(dev, groups(tmp_path, "root:x:0:\nvideo:x:44:\n")) == ("video",)
    assert device_groups(dev, tmp_path / "absent") == ()


def test_a_node_of_an_unusual_group_adds_that_group(dev: Path, tmp_path: Path) -> None:
    node = dev / "dri" / "renderD128"
    node.touch()
    node.chmod(0o660)
    if os.geteuid() == 0:
        os.chown(node, 0, 12345)
    own = node.stat().st_gid
    known = groups(tmp_path, f"{GROUPS}gpu-users:x:{own}:\n")
    assert "gpu-users" in device_groups(dev, known)
    # A node that is open to everybody needs no group, as NVIDIA's are.
    node.chmod(0o666)
    assert device_groups(dev, known) == ("render", "video")


@pytest.mark.parametrize(
    ("address", "stream"),
    [
        (ServerAddress(), "127.0.0.1:8080"),
        (ServerAddress("localhost", 9), "127.0.0.1:9"),
        (ServerAddress("0.0.0.0", 9), "0.0.0.0:9"),  # noqa: S104
        (ServerAddress("::1", 9), "[::1]:9"),
        (ServerAddress("/run/llm.sock"), "/run/llm.sock"),
    ],
)
def test_an_address_is_written_as_systemd_reads_it(address: ServerAddress, stream: str) -> None:
    assert listen_stream(address) == stream


@pytest.mark.parametrize(
    "address",
    [ServerAddress(port=0), ServerAddress("gpu.example", 9), ServerAddress("llm.sock")],
)
def test_an_address_at_which_systemd_cannot_listen_is_refused(address: ServerAddress) -> None:
    with pytest.raises(UsageError):
        listen_stream(address)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all users can reach, unlike pytest's."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_what_others_cannot_read_is_named_by_its_first_closed_part(open_folder: Path) -> None:
    home, model = open_folder / "home", open_folder / "home" / "models" / "m.gguf"
    model.parent.mkdir(parents=True)
    model.touch()
    for path, mode in ((home, 0o755), (model.parent, 0o711), (model, 0o644)):
        path.chmod(mode)
    assert list(closed_to_others([model, home])) == []
    model.chmod(0o600)
    assert list(closed_to_others([model, home])) == [model]
    home.chmod(0o700)
    assert list(closed_to_others([model, home, open_folder])) == [home, home]
    assert list(closed_to_others([open_folder / "absent"])) == []
    # As the interpreter of a virtual environment, which lies in its owner's home.
    link = open_folder / "link"
    link.symlink_to(model)
    assert list(closed_to_others([link])) == [home]


@pytest.mark.parametrize("name", ["a.service", "a.socket", "there"])
def test_a_files_name_is_no_folder_for_units(name: str, tmp_path: Path) -> None:
    """It was made a folder, in which systemd finds no unit; a file was to be moved away."""
    (tmp_path / "there").touch()
    with pytest.raises(UsageError, match="--output takes a folder") as refused:
        write_units(tmp_path / name, {"a.service": "x\n", "a.socket": "y\n"})
    assert (str(tmp_path) in refused.value.hint) is (name != "there")
    assert [each.name for each in tmp_path.iterdir()] == ["there"]


def test_units_are_written_into_a_new_folder_for_all_to_read(tmp_path: Path) -> None:
    folder = tmp_path / "systemd" / "user"
    written = write_units(folder, {"a.service": "x\n", "a.socket": "é\n"})
    assert written == (folder / "a.service", folder / "a.socket")
    assert written[1].read_text("utf-8") == "é\n"
    assert oct(written[0].stat().st_mode) == "0o100644"
