"""Counts before a sum: exact, once per round, and without groups below k_min."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest
from pydantic import ValidationError

from client_agent.secure_sum.expectation import accept_terms
from schemas.maths.adapter import in_order
from schemas.messages.federations import FederationPlan
from schemas.messages.secure_sum import SumTerms
from schemas.messages.sum_counts import SumCounts
from schemas.secure_sum.counts import count_segments, counts_digest, decoded_counts, encoded_counts, groups_of
from schemas.secure_sum.encoding import largest_encoded
from schemas.secure_sum.errors import SecureSumError, SumOutOfRange, TermsRefused
from schemas.secure_sum.segments import segment_of, segments_of, values_of_segment
from tests.scene.plans import federation_plan
from tests.scene.secure_sums import DIGEST, Session, expectation_of, inputs_of, opened, terms_of

GROUPED = [
    {"name": "x0.A", "values": 10, "clip": 1 << 20, "group": "x0"},
    {"name": "x1.A", "values": 10, "clip": 1 << 20, "group": "x1"},
]
GROUPS = ("x0", "x1", "x2", "reject")
USED: dict[int, Collection[str]] = {
    0: ("x0", "x1"),
    1: ("x0", "x1"),
    2: ("x0", "x2", "reject"),
    3: ("x0",),
    4: ("x0", "x1", "x2"),
}


def plan(**secure_sum: object) -> FederationPlan:
    return federation_plan(
        rounds={"min_clients": 5, "quorum": 5}, privacy={"secure_sum": {"minimum": 5, **secure_sum}}
    )


@pytest.mark.parametrize("bits", [8, 16])
def test_masked_counts_are_exact(bits: int) -> None:
    segments = [segment.model_dump() for segment in count_segments(GROUPS)]
    terms = terms_of(5, kind="counts", segments=segments, bits=bits)
    inputs = {n: encoded_counts(GROUPS, used, bits) for n, used in USED.items()}
    session = Session(terms, inputs, {3: 2}, {"kind": "counts", "bits": bits})
    total = session.run()
    assert decoded_counts(GROUPS, total, 4, bits) == {"x0": 4, "x1": 3, "x2": 2, "reject": 1}


@pytest.mark.parametrize(
    "value", [-1, 1, largest_encoded(16) - 1, -largest_encoded(16), 5 * largest_encoded(16)]
)
def test_spoilt_counts_are_refused(value: int) -> None:
    with pytest.raises(SumOutOfRange, match="spoilt"):
        decoded_counts(("x0", "x1"), np.array([4 * largest_encoded(16), value]), 4, 16)


def test_a_member_belongs_to_counted_groups_only() -> None:
    with pytest.raises(SecureSumError, match="not counted"):
        encoded_counts(("x0", "x1"), {"x7"}, 16)


def bank_layout() -> dict[str, tuple[int, ...]]:
    shapes = {"l0.q.A": (2, 6), "l0.q.B": (5, 2), "l1.q.A": (2, 6), "l1.q.B": (5, 2)}
    experts = {f"x{k}.{name}": shape for k in (1, 2, 10) for name, shape in shapes.items()}
    return in_order(shapes | experts)


def test_a_sum_has_segments_of_its_groups() -> None:
    layout, federation_plan = bank_layout(), plan(weigh_up_to=100)
    plain = segments_of(federation_plan, {name: shape for name, shape in layout.items() if name[0] == "l"})
    assert segments_of(federation_plan, layout) == plain
    segments = segments_of(federation_plan, layout, {"x10", "x2", "reject"})
    assert segments[: len(plain)] == plain
    assert [(segment.name, segment.values, segment.group) for segment in segments[len(plain) :]] == [
        ("x2.A", 24, "x2"),
        ("x2.B", 20, "x2"),
        ("x2.weight", 1, "x2"),
        ("x2.responsibility", 1, "x2"),
        ("x2.differences", 5, "x2"),  # of itself, and of two other experts
        ("x10.A", 24, "x10"),
        ("x10.B", 20, "x10"),
        ("x10.weight", 1, "x10"),
        ("x10.responsibility", 1, "x10"),
        ("x10.differences", 5, "x10"),
        ("new.A", 24, "reject"),
        ("new.B", 20, "reject"),
        ("new.weight", 1, "reject"),
    ]
    assert groups_of(segments) == {"x2", "x10", "reject"}


def test_an_experts_segment_has_its_tensors_in_order() -> None:
    layout = bank_layout()
    state = {name: np.full(shape, place, np.float32) for place, (name, shape) in enumerate(layout.items())}
    places = list(layout)
    values = values_of_segment(state, layout, "x2.A")
    assert values.tolist() == [places.index("x2.l0.q.A")] * 12 + [places.index("x2.l1.q.A")] * 12
    assert [segment_of(name) for name in ("l0.q.A", "x0.l0.q.A", "x3.b0.q.P")] == ["A", "A", "x3.P"]


def test_k_min_is_at_least_three_with_masks() -> None:
    summed = plan().privacy.secure_sum
    assert summed is not None
    assert summed.k_min == 3
    assert plan(masking="none", k_min=1).model_dump()["privacy"]["secure_sum"]["k_min"] == 1
    with pytest.raises(ValidationError, match="at least 3 with pairwise"):
        plan(k_min=2)


def _counts(members: int, second: int) -> SumCounts:
    """Counts of `members` clients: all of them use the first expert, `second` of them the second one."""
    counted = [f"cli_{n:03}" for n in range(members)]
    return SumCounts(session=1, counted=counted, groups={"x0": members, "x1": second})


def _grouped(members: int, lost: int, counts: SumCounts) -> SumTerms:
    return terms_of(members, session=2, segments=GROUPED, counts=counts_digest(counts), lost=lost)


def _expected(counts: SumCounts) -> dict[str, object]:
    shown, commitments = opened(counts)
    return {
        "counts": shown,
        "commitments": commitments,
        "groups": ("x0", "x1"),
        "counted": tuple(counts.counted),
        "least_per_group": 3,
    }


@pytest.mark.parametrize(
    ("masked", "is_refused"), [(5, False), (4, True)], ids=["all in the sum", "one member lost after step 1"]
)
def test_a_group_below_k_min_is_not_unmasked(masked: int, is_refused: bool) -> None:
    """k_min = 3, counts of 5 and 3: an absent member may be of the second group, and 2 could remain."""
    counts = _counts(5, 3)
    stops = {4: 2} if masked == 4 else {}
    session = Session(_grouped(5, 0, counts), inputs_of(5), stops, _expected(counts))
    session.run_steps(3)
    if is_refused:
        with pytest.raises(TermsRefused, match="x1"):
            session.step_confirm()
    else:
        session.step_confirm()


def test_members_lost_since_the_counts_may_be_absent() -> None:
    counts = _counts(6, 3)
    session = Session(_grouped(5, 1, counts), inputs_of(5), {}, _expected(counts))
    session.run_steps(3)
    with pytest.raises(TermsRefused, match="x1"):
        session.step_confirm()


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"lost": 0}, "`lost` is not the number"),
        ({"counts": counts_digest(_counts(6, 6))}, "other counts"),
        ({"counts": None, "lost": 0}, "other counts"),
        ({"kind": "counts"}, "`kind`"),
    ],
    ids=["lost members concealed", "more members of a group", "no counts", "counted twice"],
)
def test_terms_that_contradict_the_counts_are_refused(lie: dict[str, object], reason: str) -> None:
    counts = _counts(6, 3)
    honest = _grouped(5, 1, counts)
    accept_terms(honest, expectation_of(honest, 0, **_expected(counts)))
    terms = terms_of(5, **honest.model_dump(exclude={"signature"}) | lie)
    with pytest.raises(TermsRefused, match=reason):
        accept_terms(terms, expectation_of(honest, 0, **_expected(counts)))


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        (
            SumCounts(session=1, counted=["cli_000", "cli_001", "cli_004"], groups={"x0": 3, "x1": 3}),
            "not counted",
        ),
        (SumCounts(session=1, counted=["cli_000", "cli_001", "cli_002"], groups={"x0": 3}), "other groups"),
        (_counts(3, 4), "more members"),
    ],
    ids=["a stranger in the sum", "a group that was not counted", "more users than members"],
)
def test_impossible_counts_are_refused(counts: SumCounts, reason: str) -> None:
    """A stranger makes `lost` too small: of a group's three members, one alone could be in the sum."""
    terms = _grouped(3, 0, counts)
    with pytest.raises(TermsRefused, match=reason):
        accept_terms(terms, expectation_of(terms, 0, **_expected(counts)))


def test_counts_of_unconfirmed_clients_are_refused() -> None:
    counts, confirmed = _counts(5, 5), _counts(6, 5)
    terms = _grouped(5, 0, counts)
    expected = _expected(counts) | {"counted": tuple(confirmed.counted)}
    with pytest.raises(TermsRefused, match="confirmed"):
        accept_terms(terms, expectation_of(terms, 0, **expected))


def test_sums_with_groups_require_counts() -> None:
    plain, grouped = terms_of(5), terms_of(5, segments=GROUPED)
    with pytest.raises(TermsRefused, match="were not"):
        accept_terms(plain, expectation_of(plain, 0, groups=("x0", "x1")))
    with pytest.raises(TermsRefused, match="only after counts"):
        accept_terms(grouped, expectation_of(grouped, 0))


def test_counts_that_refer_to_counts_are_refused() -> None:
    terms = terms_of(5, kind="counts", counts=DIGEST)
    with pytest.raises(TermsRefused, match="counts come first"):
        accept_terms(terms, expectation_of(terms, 0, kind="counts"))
