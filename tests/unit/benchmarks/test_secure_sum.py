"""The benchmark of the secure sum at a small size."""

from __future__ import annotations

import pytest

from benchmarks import count_proofs
from benchmarks.secure_sum import session_cost
from benchmarks.summed_round import round_cost


def test_a_session_is_measured_with_lost_members() -> None:
    for lost in (0, 1):
        cost = session_cost(5, 1000, lost)
        assert cost.member_seconds > 0
        assert cost.coordinator_seconds > 0
        assert cost.bytes_up > 3 * 1000
        assert cost.ratio_to_plain == cost.bytes_up / 2000


def test_proofs_of_counts_are_measured() -> None:
    cost = count_proofs.session_cost(5, 3)
    assert min(cost.building, cost.verified_once, cost.verified_by_member, cost.opened) > 0
    # A challenge; 4 scalars or points for each of 4 groups, and 5 for the choice of 2 experts; a signature.
    assert cost.message == 32 * (1 + 4 * 4 + 5) + 64


@pytest.mark.slow
def test_a_round_is_measured_over_http() -> None:
    cost = round_cost(members=5, layers=1, processes=2)
    assert cost.values == 65_536 + 2
    assert list(cost.phases) == ["keys", "shares", "masked", "confirm", "unmask"]
    assert sum(cost.phases.values()) + cost.opening_seconds == pytest.approx(cost.sum_seconds)
    assert cost.bytes_up > 3 * 65_536
