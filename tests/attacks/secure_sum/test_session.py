"""Sessions with absent members: the exact sum of the counted members, or none."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from coordinator.secure_sum.phases import PHASES
from coordinator.secure_sum.unmasking import opened_keys, plain_sum, unmasked_sum
from schemas.secure_sum.encoding import Modulus, modulus_for
from schemas.secure_sum.errors import SessionAborted
from schemas.secure_sum.terms import threshold_for
from tests.scene.secure_sums import Session, inputs_of, terms_of


def _survives(members: int, stops: dict[int, int]) -> bool:
    """Whether enough members answer every step, by counting alone."""
    threshold, minimum = threshold_for(members), min(3, members)
    for step, phase in enumerate(PHASES):
        answering = sum(stops.get(n, 5) > step for n in range(members))
        if answering < (threshold if phase in ("confirm", "unmask") else max(threshold, minimum)):
            return False
    return True


def _require_exact_or_aborted(members: int, stops: dict[int, int]) -> None:
    session = Session(terms_of(members), inputs_of(members), stops)
    if _survives(members, stops):
        assert np.array_equal(session.run(), session.expected())
        assert set(session.masked) == {n for n in range(members) if stops.get(n, 5) > 2}
    else:
        with pytest.raises(SessionAborted, match="too few answers"):
            session.run()


@pytest.mark.parametrize("step", range(5))
@pytest.mark.parametrize("members", [3, 4])
def test_members_may_stop_at_a_step(members: int, step: int) -> None:
    for count in range(members + 1):
        for stopping in combinations(range(members), count):
            _require_exact_or_aborted(members, dict.fromkeys(stopping, step))


@pytest.mark.slow
@pytest.mark.parametrize("step", range(5))
@pytest.mark.parametrize("members", [5, 6, 7, *(pytest.param(n, marks=pytest.mark.long) for n in (8, 9, 10))])
def test_tolerated_members_may_stop_at_a_step(members: int, step: int) -> None:
    tolerated = members - threshold_for(members)
    for count in range(1, tolerated + 2):
        for stopping in combinations(range(members), count):
            _require_exact_or_aborted(members, dict.fromkeys(stopping, step))


@pytest.mark.slow
@pytest.mark.parametrize("members", [3, pytest.param(4, marks=pytest.mark.long)])
def test_members_may_stop_at_different_steps(members: int) -> None:
    for steps in product(range(6), repeat=members):
        _require_exact_or_aborted(members, {n: step for n, step in enumerate(steps) if step < 5})


def test_a_plain_sum_equals_the_masked_sum() -> None:
    session = Session(terms_of(5), inputs_of(5), {4: 2})
    total = session.run()
    modulus = Modulus(session.terms.modulus)
    packed = [modulus.pack(session.inputs[n].astype(np.int64).astype(modulus.word)) for n in range(4)]
    (plain,) = plain_sum(session.terms, 4, [packed])
    assert plain.tobytes() == total.tobytes()


def test_a_sum_is_opened_in_blocks() -> None:
    """Blocks of any size give the same sum as the whole vector."""
    values = 3 * 65_536 + 17
    terms = terms_of(4, segments=[{"name": "lora", "values": values, "clip": 1 << 20}])
    session = Session(terms, inputs_of(4, values)).run_steps()
    opened = opened_keys(
        terms, session.keys, session.commitments(), frozenset(session.masked), session.unmasked
    )
    size = 3 * 50_000
    blocks = (
        [octets[at : at + size] for octets in session.masked.values()] for at in range(0, 3 * values, size)
    )
    total = np.concatenate(list(unmasked_sum(terms, opened, 4, blocks)))
    assert np.array_equal(total, session.expected())


def test_extreme_inputs_of_all_members_do_not_wrap() -> None:
    for members in (3, 8):
        assert modulus_for(members, 16).bits == 24
        session = Session(terms_of(members), {n: np.full(20, 32_767, np.int32) for n in range(members)})
        assert session.run().tolist() == [32_767 * members] * 20
        session = Session(terms_of(members), {n: np.full(20, -32_767, np.int32) for n in range(members)})
        assert session.run().tolist() == [-32_767 * members] * 20
