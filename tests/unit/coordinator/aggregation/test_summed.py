"""Publication of summed rounds: all clients get the mean of the updates, and no update is read."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from coordinator.aggregation import job
from coordinator.aggregation.joint_model import JointModel, newcomer_weights
from coordinator.aggregation.summed_round import revised_values
from coordinator.db.engine import Database
from coordinator.db.tables.federations import RelevanceRow, WeightsRow
from coordinator.rounds.store import LostRace, get_round
from coordinator.secure_sum.joint_digest import joint_digest
from coordinator.strategies.opening import NotSummed, open_plan, require_summed
from coordinator.totals import SegmentChange
from schemas.maths.adapter import size
from schemas.messages.updates import WeightsManifest
from schemas.secure_sum.encoding import clamp_weight, largest_encoded
from tests.scene.tensors import assert_same_bytes, split_tensors
from tests.unit.coordinator.aggregation.closed_round import Sent, close_round
from tests.unit.coordinator.aggregation.closed_round import served_values as served_plain
from tests.unit.coordinator.aggregation.summed_round import (
    LORA_PROFILE,
    MEMBERS,
    MemberUpdate,
    assert_close,
    enrol,
    federation,
    layout_under,
    model,
    plan,
    publish,
    published_sums,
    random_members,
    rounding,
    served_state,
    sum_round,
)

SUMMED = [("fedavg", "pq"), ("fedavg", "lora"), ("ffa_lora", "lora"), ("fedsa_lora", "lora")]
every_summed = pytest.mark.parametrize(("strategy", "adapter"), SUMMED)


@every_summed
def test_clients_are_served_the_mean_of_summed_updates(
    database: Database, strategy: str, adapter: str
) -> None:
    federation_plan = plan(strategy, adapter)
    layout = layout_under(federation_plan)
    federation_id = federation(database, federation_plan, MEMBERS + 1)
    for published in published_sums(database, federation_id, federation_plan, 2):
        assert_close(published.served, published.expected, rounding(federation_plan, layout))
        for place in range(1, MEMBERS + 1):
            state = served_state(database, federation_id, place, layout, published.number + 1)
            assert_same_bytes(state, published.served)
        stored = model(database, federation_id, published.number)
        with database.read() as session:
            assert joint_digest(session, federation_id, published.number + 1) == stored.digest
            assert session.scalars(select(RelevanceRow)).first() is None
        losses = np.mean([member.losses for member in published.members], axis=0)
        assert stored.losses == pytest.approx(
            {"served": losses[0], "trained": losses[1]}, abs=16 / largest_encoded(16)
        )


def test_members_weigh_by_examples_up_to_a_maximum(database: Database) -> None:
    federation_plan = plan(weigh_up_to=20)
    layout = layout_under(federation_plan)
    members = random_members(layout, MEMBERS, seed=7)
    federation_id = federation(database, federation_plan, MEMBERS)
    sum_round(database, federation_id, federation_plan, layout, members)
    publish(database)
    weights = [clamp_weight(member.examples, 20) for member in members]
    assert len(set(weights)) > 2
    expected = {
        name: np.average([member.change[name] for member in members], axis=0, weights=weights)
        for name in layout
    }
    within = rounding(federation_plan, layout) * MEMBERS / sum(weights) * 1.1
    assert_close(served_state(database, federation_id, 0, layout), expected, within)


def test_summed_and_plain_rounds_give_equal_weights(database: Database) -> None:
    """Up to rounding, for uniform weights and no absent clients."""
    federation_plan = plan()
    layout = layout_under(federation_plan)
    members = [MemberUpdate(member.change) for member in random_members(layout, MEMBERS)]
    federation_id = federation(database, federation_plan, MEMBERS)
    sum_round(database, federation_id, federation_plan, layout, members)
    publish(database)
    privacy = federation_plan.privacy.model_copy(update={"secure_sum": None})
    plain = federation_plan.model_copy(update={"privacy": privacy})
    closed = close_round(database, plain, [Sent.of(member.change) for member in members])
    claim = job.claim_due(database, 60.0)
    assert claim is not None
    job.aggregate(database, claim, block_bytes=4096, between=lambda: None)
    for place in range(MEMBERS):
        mean = split_tensors(served_plain(database, closed.clients[place], layout), layout)
        assert_close(
            served_state(database, federation_id, place, layout), mean, rounding(federation_plan, layout)
        )


def test_a_newcomer_gets_the_last_published_model(database: Database) -> None:
    federation_plan = plan("fedavg", "lora")
    layout = layout_under(federation_plan)
    federation_id = federation(database, federation_plan, MEMBERS)
    manifest = WeightsManifest(federation=federation_id, recipe={}, round=2, client="new", pack=None)
    assert newcomer_weights(database, 1, layout, manifest) is None
    sum_round(database, federation_id, federation_plan, layout, random_members(layout, MEMBERS))
    publish(database)
    stored = newcomer_weights(database, 1, layout, manifest)
    assert stored is not None
    assert stored.payload_id == model(database, federation_id).payload_id
    manifest = manifest.model_copy(update={"client": f"{federation_id}-0"})
    same = newcomer_weights(database, 1, layout, manifest)
    assert same is not None
    with database.read() as session:
        row = session.scalars(select(WeightsRow).where(WeightsRow.client_id == f"{federation_id}-0")).one()
    assert (same.digest, same.size, same.head, same.begin) == (row.digest, row.bytes, row.head, row.begin)
    with pytest.raises(LookupError, match="layout"):
        newcomer_weights(database, 1, {"b0.q.P": (2, 2)}, manifest)


def test_clients_of_other_layouts_get_no_summed_weights(database: Database) -> None:
    federation_plan = plan("fedavg", "lora")
    layout = layout_under(federation_plan)
    federation_id = federation(database, federation_plan, MEMBERS)
    wider = enrol(database, federation_id, 7, LORA_PROFILE | {"shapes": {"q": [6, 7]}})
    stranger = enrol(database, federation_id, 8, LORA_PROFILE | {"base_model": "other-s-3f0c9a1b2c3d"})
    sum_round(database, federation_id, federation_plan, layout, random_members(layout, MEMBERS))
    publish(database)
    with database.read() as session:
        receivers = set(session.scalars(select(WeightsRow.client_id)))
    assert len(receivers) == MEMBERS
    assert not receivers & {wider, stranger}


def test_a_worker_without_the_lease_publishes_nothing(database: Database) -> None:
    federation_plan = plan()
    layout = layout_under(federation_plan)
    federation_id = federation(database, federation_plan, MEMBERS)
    sum_round(database, federation_id, federation_plan, layout, random_members(layout, MEMBERS))
    late = job.claim_due(database, 0.0)
    holder = job.claim_due(database, 60.0)
    assert late is not None
    assert holder is not None
    with pytest.raises(LostRace):
        job.aggregate(database, late, block_bytes=4096, between=lambda: None)
    with database.read() as session:
        assert session.scalars(select(WeightsRow)).first() is None
    job.aggregate(database, holder, block_bytes=4096, between=lambda: None)
    with database.read() as session:
        assert get_round(session, federation_id, 1).state == "published"


def test_memory_does_not_grow_with_the_model(fresh_database: Callable[[str], str]) -> None:
    budget, peaks = 2**18, []
    for rank in (50, 200):
        database = Database(fresh_database("sqlite"))
        federation_plan = plan()
        adapter = federation_plan.adapter.model_copy(update={"rank": rank})
        federation_plan = federation_plan.model_copy(update={"adapter": adapter})
        layout = layout_under(federation_plan)
        federation_id = federation(database, federation_plan, 3)
        sum_round(database, federation_id, federation_plan, layout, random_members(layout, 3))
        claim = job.claim_due(database, 600.0)
        assert claim is not None
        tracemalloc.start()
        try:
            job.aggregate(database, claim, block_bytes=budget, between=lambda: None)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert model(database, federation_id).payload_id is not None
        database.close()
    assert size(layout) * 4 > 2 * budget
    assert max(peaks) < budget + 2**18, peaks


class Restricted:
    """A total and a model of which a strategy may use what the protocols define, and nothing else."""

    def __init__(self, **members: Any) -> None:
        self._members = members

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._members:
            raise AssertionError(f"a summed strategy asked for {name}")
        return self._members[name]


@every_summed
def test_summed_strategies_read_only_sum_and_model(strategy: str, adapter: str) -> None:
    layout = layout_under(plan(strategy, adapter))
    names = sorted({name.rpartition(".")[2] for name in layout})
    total = Restricted(
        count=4, number=lambda name: {"weight": 2.0}[name], values=lambda *part: np.full(part[2], 3.0)
    )
    joint = Restricted(segments=tuple(names), read=lambda *part: np.full(part[2], 1.0))
    steps = list(require_summed(open_plan(plan(strategy, adapter))).step(joint, total))
    assert [change.segment for change in steps] == names
    for change in steps:
        np.testing.assert_array_equal(change.values(1, 2), [2.5, 2.5])


def test_a_zero_sum_of_weights_is_an_error() -> None:
    total = Restricted(count=4, number=lambda name: 0.0)
    joint = Restricted(segments=("P",))
    with pytest.raises(ValueError, match="spoilt"):
        list(require_summed(open_plan(plan())).step(joint, total))


def test_unsummed_strategies_are_refused_with_alternatives() -> None:
    federation_plan = plan().model_copy(
        update={"strategy": plan().strategy.model_copy(update={"name": "fedmosaic"})}
    )
    choices = "ditto, fed_vemoe, fedavg, fedprox, fedsa_lora, ffa_lora"
    with pytest.raises(NotSummed, match=f"fedmosaic .* choose {choices}"):
        require_summed(open_plan(federation_plan))


def test_segments_that_a_strategy_skips_stay_unchanged(database: Database) -> None:
    layout = {"b0.q.P": (2, 2), "b0.q.Q": (2,), "b0.v.P": (2, 2), "b0.v.Q": (2,)}
    joint = JointModel(database, layout, None, 0)
    revised = {
        "Q": SegmentChange("Q", lambda begin, count: np.arange(begin, begin + count, dtype=np.float64))
    }
    for block in (1, 3, 100):
        blocks = list(revised_values(layout, joint, revised, block))
        assert max(len(values) for values in blocks) <= block
        assert np.concatenate(blocks).tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 2, 3]
    for wrong in (lambda begin, count: np.full(count, np.nan), lambda begin, count: np.zeros(count + 1)):
        with pytest.raises(ValueError, match="finite"):
            list(revised_values(layout, joint, {"P": SegmentChange("P", wrong)}, 100))
