"""Summed models published as differences: clients rebuild the model that the next sum changes."""

from __future__ import annotations

import io

import numpy as np
import pytest
from sqlalchemy import select

from coordinator.db.engine import Database
from coordinator.db.tables.federations import CodedWeightsRow, PayloadRow
from coordinator.storage import payloads
from schemas.messages.federations import FederationPlan
from schemas.messages.recipes import SERVED_DIFFERENCES, WeightsRecipeName
from schemas.messages.updates import WeightsManifest
from schemas.secure_sum.segments import values_digest
from schemas.wire.compress import decompress
from schemas.wire.envelope import unpack
from schemas.wire.served_difference import reconstructed
from schemas.wire.streams import stream_slots
from tests.scene.tensors import zero_tensors
from tests.unit.coordinator.aggregation.summed_round import (
    MEMBERS,
    State,
    assert_close,
    federation,
    layout_under,
    model,
    plan,
    publish,
    random_members,
    rounding,
    served_state,
    start_values,
    sum_round,
)

LEVELS: dict[WeightsRecipeName, int] = {"int8": 127, "int4": 7}


def difference_plan(adapter: str, recipe: str) -> FederationPlan:
    wire = {"recipe": "dense", "weights_recipe": recipe}
    return FederationPlan.model_validate(plan("fedavg", adapter).model_dump(mode="json") | {"wire": wire})


def stored_differences(database: Database, federation_id: str, number: int) -> dict[str, bytes]:
    """Read the differences for the start of a round, by client."""
    with database.read() as session:
        rows = session.execute(
            select(CodedWeightsRow.client_id, PayloadRow.id, PayloadRow.bytes)
            .join(PayloadRow, PayloadRow.id == CodedWeightsRow.payload_id)
            .where(CodedWeightsRow.federation_id == federation_id, CodedWeightsRow.round_number == number)
        ).all()
        return {client: payloads.read(session, payload, 0, size) for client, payload, size in rows}


@pytest.mark.parametrize("adapter", ["pq", "lora"])
@pytest.mark.parametrize("recipe", ["int8", "int4"])
def test_a_difference_rebuilds_the_next_summed_model(
    database: Database, adapter: str, recipe: WeightsRecipeName
) -> None:
    federation_plan = difference_plan(adapter, recipe)
    layout = layout_under(federation_plan)
    federation_id = federation(database, federation_plan, MEMBERS)
    before: State = zero_tensors(layout)
    for number in (1, 2, 3):
        members = random_members(layout, MEMBERS, seed=number)
        sum_round(database, federation_id, federation_plan, layout, members, number)
        publish(database, block_bytes=1024)
        start = start_values(federation_plan, layout, before)
        mean = {name: np.mean([member.change[name] for member in members], axis=0) for name in layout}
        body = served_state(database, federation_id, 0, layout, number + 1)
        step = max(float(np.abs(change).max()) for change in mean.values()) / LEVELS[recipe]
        within = rounding(federation_plan, layout) + 1.01 * step
        assert_close(body, {name: start[name] + mean[name] for name in layout}, within)
        assert model(database, federation_id, number).digest == values_digest(body, layout)
        coded = stored_differences(database, federation_id, number + 1)
        assert len(coded) == (MEMBERS if number > 1 else 0)  # nobody here was served zeros
        for frame in {*coded.values()}:
            plain = io.BytesIO()
            decompress(io.BytesIO(frame), plain, max_bytes=2**20)
            with unpack(
                plain.getvalue(), encoding=None, expected={}, max_bytes=2**20, coded=stream_slots()
            ) as difference:
                assert difference.manifest(WeightsManifest).round == number + 1
                by = SERVED_DIFFERENCES[recipe]
                rebuilt = dict(reconstructed(difference, layout, by, start.__getitem__))
            assert all(rebuilt[name].tobytes() == body[name].tobytes() for name in layout)
        before = body
