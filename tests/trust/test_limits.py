"""Limits of what signed metadata may say, each at its edge, and of what is kept for it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.repository import RepositorySimulator, release_document

from tsuku_llm import trust
from tsuku_llm.catalog import refreshing
from tsuku_llm.catalog.copies import LARGEST_FILE
from tsuku_llm.ground.errors import MetadataError


@pytest.fixture
def simulator() -> RepositorySimulator:
    simulator = RepositorySimulator()
    simulator.publish(release_document("b1"))
    return simulator


def refusal(simulator: RepositorySimulator) -> str:
    with pytest.raises(MetadataError) as caught:
        trust.load(simulator, simulator.pinned_root)
    return ": ".join((caught.value.message, *caught.value.facts))


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**53 - 1])
def test_M26_a_number_of_53_bits_is_accepted(number: int) -> None:
    assert trust.decode_json(b'{"x": %d}' % number) == {"x": number}


@pytest.mark.parametrize(
    "text",
    [str(2**53 + 1), str(-(2**53) - 1), "1" + "0" * 16, "1" + "0" * 17, "1" + "0" * 5000],
    ids=["above", "below", "17 digits", "18 digits", "more than Python converts"],
)
def test_M26_a_number_of_more_than_53_bits_is_refused(text: str) -> None:
    """Readers that keep numbers as doubles would read another one."""
    with pytest.raises(ValueError, match="53 bits"):
        trust.decode_json(b'{"x": ' + text.encode() + b"}")


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
def test_M26_a_signed_version_of_more_than_53_bits_is_refused(
    simulator: RepositorySimulator, role: str
) -> None:
    getattr(simulator, role).version = 2**53 + 2
    simulator.sign()
    assert "a number has more than 53 bits" in refusal(simulator)


def test_the_longest_target_path_is_accepted(simulator: RepositorySimulator) -> None:
    longest = f"releases/{'n' * 141}"
    simulator.add_target(longest, b"", None)
    simulator.bump()
    assert longest in trust.load(simulator, simulator.pinned_root).targets
    simulator.add_target(f"{longest}n", b"", None)
    simulator.bump()
    assert "is not a path within the repository" in refusal(simulator)


def test_M22_a_release_file_is_downloaded_up_to_the_limit_even_if_a_greater_length_is_signed(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    """The publisher's signature does not make this machine keep a gigabyte in memory."""
    limits = []

    def download(name: str, limit: int) -> bytes:
        if name.startswith("targets/"):
            limits.append(limit)
        return simulator.download(name, limit)

    simulator.targets.targets["releases/b1.json"].length = 10**9
    simulator.bump()
    with pytest.raises(Exception, match=r"b1\.json is not the file that was signed"):
        refreshing.refresh(simulator.repository(), tmp_path, download)
    assert limits == [LARGEST_FILE]


# --- release files that are here already --------------------------------------------------------


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"simulator", b"simulatoR"))


def shorten(path: Path) -> None:
    path.write_bytes(b"")


def lose(path: Path) -> None:
    path.unlink()


def link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.skipif(os.name != "posix", reason="links and pipes of a POSIX system")
@pytest.mark.parametrize(
    "fault", [damage, shorten, lose, link, pipe], ids=lambda each: each.__name__
)
def test_T09_a_kept_release_file_that_is_damaged_is_fetched_again(
    simulator: RepositorySimulator, tmp_path: Path, fault: Callable[[Path], None]
) -> None:
    repository = simulator.repository()
    refreshing.refresh(repository, tmp_path, simulator.download)
    (kept,) = tmp_path.glob("metadata/simulator/copies/*/targets/releases/*.b1.json")
    good = kept.read_bytes()
    fault(kept)
    simulator.publish(release_document("b2"))
    simulator.requests.clear()
    found = refreshing.refresh(repository, tmp_path, simulator.download)
    assert found.read(found.entry("b1")).release == "b1"
    assert found.copy.read(found.trusted.targets["releases/b1.json"].name) == good
    assert any(name.endswith(".b1.json") for name in simulator.requests)


def test_T09_a_release_file_of_the_package_that_is_damaged_is_fetched(
    simulator: RepositorySimulator, tmp_path: Path
) -> None:
    embedded = simulator.freeze()
    (name,) = [name for name in embedded.files if name.endswith(".b1.json")]
    embedded.files[name] = embedded.files[name][:-1]
    simulator.publish(release_document("b2"))
    found = refreshing.refresh(
        simulator.repository(embedded=embedded), tmp_path, simulator.download
    )
    assert found.read(found.entry("b1")).release == "b1"
