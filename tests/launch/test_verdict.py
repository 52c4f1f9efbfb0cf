"""The policy of the four verdicts: what is shown, by what, and that more evidence never helps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsuku_llm.launch.gpu.verdict import AGAINST, ENOUGH, IN_FAVOUR, PROOF, decide
from tsuku_llm.launch.plan.report import Sign, Verdict

ON_GPU, PARTLY, ON_CPU, UNKNOWN = Verdict.ON_GPU, Verdict.PARTLY, Verdict.ON_CPU, Verdict.UNKNOWN

RANK = {verdict: rank for rank, verdict in enumerate((ON_CPU, UNKNOWN, PARTLY, ON_GPU))}
"""The verdicts from worst to best, for a user who wants the GPU."""

NAMES = sorted({*AGAINST, *IN_FAVOUR, "mapped-model", "a-new-sign"})
SIGNS = st.lists(st.builds(Sign, st.sampled_from(NAMES), st.sampled_from(Verdict), st.just("")))
CPU_SIGNS = st.sampled_from(sorted(AGAINST)).map(lambda name: Sign(name, ON_CPU, ""))


@given(SIGNS, CPU_SIGNS)
def test_more_evidence_for_the_cpu_never_makes_the_verdict_better(
    signs: list[Sign], more: Sign
) -> None:
    assert RANK[decide([*signs, more])] <= RANK[decide(signs)]


PROVED = sorted(name for name, weight in AGAINST.items() if weight == PROOF)


@given(SIGNS, st.sampled_from(NAMES), st.sampled_from(PROVED))
def test_a_sign_that_turns_to_the_worse_never_makes_the_verdict_better(
    signs: list[Sign], name: str, proof: str
) -> None:
    def with_last(name: str, says: Verdict) -> int:
        return RANK[decide([*signs, Sign(name, says, "")])]

    assert with_last(name, PARTLY) <= with_last(name, ON_GPU)
    assert with_last(proof, ON_CPU) <= with_last(proof, PARTLY)
    assert with_last(proof, ON_CPU) <= with_last(proof, UNKNOWN) <= with_last(proof, ON_GPU)


@given(SIGNS, st.data())
def test_the_order_of_the_signs_does_not_count(signs: list[Sign], data: st.DataObject) -> None:
    assert decide(data.draw(st.permutations(signs))) is decide(signs)


@given(SIGNS.map(lambda signs: [sign for sign in signs if sign.says is not ON_GPU]))
def test_without_a_sign_for_the_whole_model_the_verdict_is_not_on_gpu(signs: list[Sign]) -> None:
    assert decide(signs) is not ON_GPU


@given(
    st.lists(
        st.sampled_from([name for name in NAMES if name not in IN_FAVOUR]).map(
            lambda name: Sign(name, ON_GPU, "")
        )
    )
)
def test_a_list_or_a_mapped_library_never_counts_for_the_gpu(signs: list[Sign]) -> None:
    """A device exists, its node is open, its plugin is loaded: all this shows no use of it."""
    assert "device-list" not in IN_FAVOUR
    assert decide(signs) is UNKNOWN


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ((), UNKNOWN),
        ((("engines", ON_GPU),), ON_GPU),
        ((("engines", ON_GPU), ("layers", PARTLY)), PARTLY),
        ((("mapped-model", PARTLY),), UNKNOWN),
        ((("process-memory", PARTLY),), PARTLY),
        ((("engines", ON_GPU), ("complaint", ON_CPU), ("device-nodes", ON_CPU)), ON_GPU),
        ((("engines", ON_GPU), ("plugin", ON_CPU)), UNKNOWN),
        ((("device-memory", ON_GPU), ("plugin", ON_CPU)), ON_CPU),
        ((("device-memory", ON_GPU), ("complaint", ON_CPU)), UNKNOWN),
        ((("loaded", ON_CPU),), UNKNOWN),
        ((("loaded", ON_CPU), ("engines", ON_CPU)), ON_CPU),
        ((("complaint", ON_CPU),), ON_CPU),
    ],
)
def test_the_table_of_the_policy(told: tuple[tuple[str, Verdict], ...], expected: Verdict) -> None:
    assert decide(Sign(name, says, "") for name, says in told) is expected


def test_no_indications_together_weigh_as_much_as_a_proof() -> None:
    weak = [weight for weight in AGAINST.values() if weight != PROOF]
    assert ENOUGH <= sum(weak) < PROOF
