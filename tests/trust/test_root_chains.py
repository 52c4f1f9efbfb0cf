"""Chains of roots: each is signed by enough of the previous keys and enough of its own.

A chain is written as its roots, each "keys/threshold/signers" with a digit for every signer.
"""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.repository import FrozenCopy, RepositorySimulator, signer
from tuf.api.exceptions import RepositoryError
from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet
from tuf.ngclient.config import EnvelopeType

from tsuku_llm import trust
from tsuku_llm.ground.errors import MetadataError

WALKED = {
    "one key replaced": "1/1/1 2/1/12 2/1/2",
    "one key replaced, strangers sign too": "1/1/134 2/1/1234 2/1/234",
    "any three of five": "01234/3/024 01234/3/014 01234/3/013 01234/3/123",
    "one of five replaced": "01234/3/024 01345/3/014",
    "one of five replaced, its successor signs": "01234/3/024 01345/3/0245 01345/3/045",
    "all of five replaced": "01234/3/024 56789/3/024567 56789/3/567",
    "one by one": "123/2/12 234/2/23 345/2/34 456/2/45",
    "threshold raised": "123/1/1 123/2/12",
    "threshold lowered": "123/2/12 123/1/12 123/1/1",
    "a second key": "1/1/1 12/2/12",
    "a key taken away": "12/2/12 1/1/12 1/1/1",
    "back to the first keys": "12/2/12 34/2/1234 12/2/1234",
}
STOPPED = {
    "not signed by the old key": "1/1/1 2/1/234",
    "not signed by the new key": "1/1/1 2/1/134",
    "two of three new keys": "01234/3/024 01345/3/024",
    "two of three old keys": "01234/3/024 01345/3/045",
    "the raised threshold is not met": "123/1/1 123/2/2",
    "the threshold that is lowered is not met": "123/2/12 123/1/1",
    "signed by the keys before the last": "1/1/1 2/1/12 3/1/13",
    "nobody signs": "1/1/1 1/1/",
    "more signatures than keys are needed": "1/1/1 12/3/12 12/3/12",
}


@dataclass(frozen=True)
class Version:
    """A root: its signers' keys, how many must sign, and who does."""

    keys: frozenset[str]
    threshold: int
    signers: frozenset[str]


def chain_of(text: str) -> list[Version]:
    parts = [each.split("/") for each in text.split()]
    return [Version(frozenset(k), int(n), frozenset(s)) for k, n, s in parts]


def published(chain: list[Version]) -> FrozenCopy:
    """A repository whose roots are these; the last one's are in force for everything else."""
    simulator = RepositorySimulator()
    for number, version in enumerate(chain, 1):
        simulator.signers["root"] = [signer(digit) for digit in sorted(version.keys)]
        simulator.adopt_signers()
        simulator.root.roles["root"].threshold = version.threshold
        simulator.root.version = number
        simulator.sign_root([signer(digit) for digit in sorted(version.signers)])
    return simulator.freeze()


def walkable(chain: list[Version]) -> bool:
    """The rule in the words of the specification, sections 5.3.4 and 5.3.5."""
    return all(
        len(after.signers & before.keys) >= before.threshold
        and len(after.signers & after.keys) >= after.threshold
        for before, after in zip([chain[0], *chain], chain, strict=False)
    )


def accepted(copy: FrozenCopy, roots: int) -> bool:
    try:
        found = trust.load(copy, copy.files["metadata/1.root.json"])
    except MetadataError:
        return False
    assert found.roles["root"].version == roots
    return True


@pytest.mark.parametrize("chain", WALKED.values(), ids=WALKED)
def test_M10_a_valid_chain_is_accepted(chain: str) -> None:
    assert walkable(chain_of(chain))
    assert accepted(published(chain_of(chain)), len(chain_of(chain)))


@pytest.mark.parametrize("chain", STOPPED.values(), ids=STOPPED)
def test_M07_M08_a_broken_chain_is_refused(chain: str) -> None:
    assert not walkable(chain_of(chain))
    assert not accepted(published(chain_of(chain)), len(chain_of(chain)))


DIGITS = st.frozensets(st.sampled_from("12345"), min_size=1, max_size=4)
VERSIONS = st.builds(Version, DIGITS, st.integers(1, 3), st.frozensets(st.sampled_from("12345")))


@settings(deadline=None, max_examples=200)
@given(st.lists(VERSIONS, min_size=1, max_size=4))
def test_M10_any_chain_is_judged_by_the_rule_and_as_python_tuf_judges_it(
    chain: list[Version],
) -> None:
    copy = published(chain)
    ours = accepted(copy, len(chain))
    assert ours == walkable(chain)
    try:
        theirs = TrustedMetadataSet(copy.files["metadata/1.root.json"], EnvelopeType.METADATA)
        for number in range(2, len(chain) + 1):
            theirs.update_root(copy.files[f"metadata/{number}.root.json"])
    except RepositoryError:
        assert not ours
    else:
        assert ours
