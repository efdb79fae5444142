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
from schemas.wire.compress import decompress
from schemas.wire.envelope import unpack
from schemas.wire.served_difference import reconstructed
from schemas.wire.streams import stream_slots
from tests.scene.tensors import assert_same_bytes
from tests.unit.coordinator.aggregation.summed_round import (
    MEMBERS,
    assert_close,
    federation,
    layout_under,
    plan,
    published_sums,
    rounding,
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
    for published in published_sums(database, federation_id, federation_plan, 3):
        number = published.number
        step = max(float(np.abs(change).max()) for change in published.mean.values()) / LEVELS[recipe]
        within = rounding(federation_plan, layout) + 1.01 * step
        assert_close(published.served, published.expected, within)
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
                rebuilt = dict(reconstructed(difference, layout, by, published.start.__getitem__))
            assert_same_bytes(rebuilt, published.served)
