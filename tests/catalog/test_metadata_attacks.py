"""Every attack on signed metadata, on both ways in: the copy on the disk, and the host.

What a refusal says is in test_trust.py and test_catalog.py. Here counts that there is one,
that what was trusted stays, and that the same command without the attack then succeeds.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.downloads import QUICK, Clock
from support.http_faults import Exchange, FaultServer, head
from support.metadata_attacks import ATTACKS, NEEDS_MEMORY
from support.repository import FrozenCopy, RepositorySimulator, release_document

from tsuku_llm import trust
from tsuku_llm.catalog import loading, refreshing, repositories
from tsuku_llm.catalog.copies import LARGEST_FILE
from tsuku_llm.fetch import Limits, Network, get
from tsuku_llm.ground.errors import BodyError, DownloadError, HostUnreachable, MetadataError


@pytest.fixture
def simulator() -> RepositorySimulator:
    simulator = RepositorySimulator()
    simulator.publish(release_document("b1"))
    return simulator


def newer(simulator: RepositorySimulator) -> RepositorySimulator:
    """The repository a day later, when the attack comes."""
    later = simulator.fork()
    later.publish(release_document("b2"))
    return later


@pytest.mark.parametrize("attack", [name for name in ATTACKS if not name.startswith(NEEDS_MEMORY)])
def test_a_copy_under_attack_is_refused(simulator: RepositorySimulator, attack: str) -> None:
    attacked = newer(simulator)
    ATTACKS[attack](attacked)
    with pytest.raises(MetadataError) as caught:
        trust.load(attacked, simulator.pinned_root)
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("embedded", [True, False], ids=["embedded", "added"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_host_under_attack_is_refused(
    simulator: RepositorySimulator, tmp_path: Path, attack: str, embedded: bool
) -> None:
    repository = simulator.repository(embedded=simulator.freeze() if embedded else None)
    refreshing.refresh(repository, tmp_path, simulator.download)
    attacked = newer(simulator)
    ATTACKS[attack](attacked)
    for _ in range(2):
        with pytest.raises((MetadataError, BodyError)):  # a longer one is not even taken whole
            refreshing.refresh(repository, tmp_path, attacked.download)
        found = loading.load(repository, tmp_path)
        assert ([entry.release for entry in found.entries], found.notes) == (["b1"], ())
    if attack.startswith("M11"):
        return  # keys that signed all that are not trusted any more
    cured = newer(newer(simulator))
    if attack.startswith("M03"):  # that root was signed as it must be: the cure is the next one
        cured = attacked
        cured.rotate()
    assert refreshing.refresh(repository, tmp_path, cured.download).entries[0].release == "b2"


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name.startswith(NEEDS_MEMORY)])
def test_a_copy_rolled_back_on_the_disk_is_replaced_by_the_embedded_one(
    simulator: RepositorySimulator, tmp_path: Path, attack: str
) -> None:
    later = newer(simulator)
    repository = simulator.repository(embedded=later.freeze())
    attacked = later.fork()
    ATTACKS[attack](attacked)
    refreshing.refresh(simulator.repository(), tmp_path, attacked.download)
    assert loading.load(simulator.repository(), tmp_path).entries[0].release == "b2"
    assert loading.load(repository, tmp_path).source == "embedded"


def test_M10_the_longest_chain_of_rotations_is_followed(simulator: RepositorySimulator) -> None:
    for _ in range(trust.MAX_ROTATIONS - 1):
        simulator.root.version += 1
        simulator.sign_root()
    trusted = trust.load(simulator, simulator.pinned_root)
    assert trusted.roles["root"].version == trust.MAX_ROTATIONS


PATTERNS = {
    "root_keys": ("root",),
    "online_keys": ("timestamp", "snapshot"),
    "targets_keys": ("targets",),
    "all_keys": ("root", "timestamp", "snapshot", "targets"),
    "no_keys": (),
}


@pytest.mark.parametrize("first", PATTERNS)
@pytest.mark.parametrize("second", PATTERNS)
def test_M10_clients_of_every_age_follow_the_rotations(
    simulator: RepositorySimulator, tmp_path: Path, first: str, second: str
) -> None:
    repository = simulator.repository()
    clients = [tmp_path / f"since-{number}" for number in range(3)]
    for number, roles in enumerate((PATTERNS[first], PATTERNS[second])):
        refreshing.refresh(repository, clients[number], simulator.download)
        simulator.rotate(*roles, generation=f"generation {number}")
    for client in clients:
        found = refreshing.refresh(repository, client, simulator.download)
        assert found.trusted.roles["root"].version == 3
        assert found.notes == ()


# --- hosts that never end, or hardly begin ---------------------------------------------------

FILES = ("2.root.json", "timestamp.json", "3.snapshot.json", "3.targets.json", ".b2.json")


def served(
    simulator: RepositorySimulator, name: str, fault: Callable[[Exchange], None]
) -> Callable[[Exchange], None]:
    """A host of the repository that answers one file in its own way."""

    def behave(exchange: Exchange) -> None:
        path = exchange.request.path.removeprefix("/")
        data = simulator.files.get(path)
        if path.endswith(name):
            fault(exchange)
        elif data is None:
            exchange.send(head("404 Not Found", Content_Length=0))
        else:
            exchange.send(head("200 OK", Content_Length=len(data)) + data)

    return behave


def refused_by(
    simulator: RepositorySimulator,
    data: Path,
    name: str,
    fault: Callable[[Exchange], None],
    network: Network,
) -> DownloadError:
    """A refresh that fails for the download of one file, and changes nothing."""
    with network, FaultServer([served(simulator, name, fault)]) as server:
        pinned = simulator.pinned_root
        there = repositories.Repository("simulator", f"{server.url}/", pinned)
        with pytest.raises(DownloadError) as caught:
            refreshing.refresh(
                there, data, lambda file, limit: get(there.url + file, limit, network)
            )
    found = loading.load(there, data)
    assert ([entry.release for entry in found.entries], found.notes) == (["b1"], ())
    return caught.value


@pytest.fixture
def client(simulator: RepositorySimulator, tmp_path: Path) -> Path:
    """The data folder of a client that knows b1."""
    refreshing.refresh(simulator.repository(), tmp_path, simulator.download)
    return tmp_path


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("length", ["none", "true", "more than it sends"])
def test_M22_an_endless_file_is_cut_at_its_limit(
    simulator: RepositorySimulator, client: Path, name: str, length: str
) -> None:
    """Counted is what the client took: it hangs up, and sending fails."""
    sent = 0

    def endless(exchange: Exchange) -> None:
        nonlocal sent
        known = {} if length == "none" else {"Content_Length": 10**12}
        if length == "more than it sends":
            known = {"Content_Length": LARGEST_FILE}
        exchange.send(head("200 OK", **known))
        chunk = b" " * 65536
        for _ in range(LARGEST_FILE * 4 // len(chunk)):
            exchange.send(chunk)
            sent += len(chunk)

    later = newer(simulator)
    error = refused_by(later, client, name, endless, Clock().network())
    assert isinstance(error, BodyError)
    assert sent <= LARGEST_FILE * 2, "no more than the limit and what lay in buffers"
    if length != "none" and not name.startswith("."):
        assert sent < LARGEST_FILE, "the length alone is enough to refuse it"


@pytest.mark.parametrize("name", FILES)
def test_M23_a_byte_per_second_ends_at_the_total_deadline(
    simulator: RepositorySimulator, client: Path, name: str
) -> None:
    """Every byte that is sent moves the clock on a second, so the test does not wait."""
    clock = Clock()

    def drip(exchange: Exchange) -> None:
        exchange.send(head("200 OK", Content_Length=400))
        for _ in range(60):
            exchange.send(b" ")
            clock.sleep(1.0)
        exchange.hang()

    patient = Limits(connect=1e6, silence=1e6, answer=1e6)
    assert patient.metadata == 30.0
    error = refused_by(newer(simulator), client, name, drip, clock.network(limits=patient))
    assert isinstance(error, HostUnreachable)
    assert clock.ahead < 2 * 60, "another try would have dripped as long again"


def test_M23_silence_after_the_headers_ends_at_the_deadline(
    simulator: RepositorySimulator, client: Path
) -> None:
    def silent(exchange: Exchange) -> None:
        exchange.send(head("200 OK", Content_Length=400))
        exchange.hang()

    later = newer(simulator)
    error = refused_by(later, client, "timestamp.json", silent, Clock().network(limits=QUICK))
    assert isinstance(error, HostUnreachable)


def test_an_attack_does_not_change_a_frozen_copy(simulator: RepositorySimulator) -> None:
    frozen: FrozenCopy = simulator.freeze()
    ATTACKS["M01_unsigned_timestamp"](simulator)
    assert trust.load(frozen, simulator.pinned_root).roles["timestamp"].version == 2
