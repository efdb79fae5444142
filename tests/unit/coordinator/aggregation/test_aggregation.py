"""Weighted means of updates with different modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, select, update

from coordinator.aggregation.blocks import blocks
from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import ClientRow, PayloadRow, RelevanceRow, WeightsRow
from coordinator.storage import payloads
from schemas.maths.adapter import Layout, in_order, size
from schemas.wire.digests import digest_of
from tests.scene.database import row_count
from tests.scene.tensors import split_tensors
from tests.unit.coordinator.aggregation.closed_round import (
    Sent,
    close_round,
    plan,
    publish,
    round_row,
    served_values,
    simple,
)

names = st.sampled_from(["b0.k", "b0.q", "b1.q", "b1.v", "b2.q", "l0.q", "l1.q"])
layouts = st.dictionaries(names, st.sampled_from([1, 2, 5]), min_size=1).map(
    lambda ranks: in_order(
        {f"{m}.P": (r, r) for m, r in ranks.items()} | {f"{m}.Q": (r,) for m, r in ranks.items()}
    )
)


@given(
    layouts=st.lists(layouts, min_size=1, max_size=5),
    receivers=st.sets(st.integers(0, 4)),
    block_bytes=st.integers(4, 200),
)
def test_blocks_cover_all_values_once_in_order(
    layouts: list[Layout], receivers: set[int], block_bytes: int
) -> None:
    reached = [0] * len(layouts)
    for block in blocks(layouts, receivers, block_bytes):
        rows = len(block.begins) + 2 * len(receivers & block.begins.keys())
        assert block.size == 1 or block.size * rows * 4 <= block_bytes
        for place, begin in block.begins.items():
            assert begin == reached[place]
            inside = _kinds(layouts[place])[begin : begin + block.size]
            assert set(inside) == {block.module[0]}  # weights of P, Q and of LoRA differ
            reached[place] += block.size
    assert reached == [size(layout) for layout in layouts]


def _kinds(layout: Layout) -> str:
    """Mark each value as a block's or a layer's."""
    return "".join(name[0] * int(np.prod(shape)) for name, shape in layout.items())


def test_clients_are_served_the_mean_of_shared_modules(database: Database) -> None:
    draw = np.random.default_rng(0)

    def sent(modules: dict[str, int], **facts: Any) -> Sent:
        tensors: dict[str, Any] = {}
        for module, rank in modules.items():
            tensors[f"{module}.P"] = draw.normal(size=(rank, rank))
            tensors[f"{module}.Q"] = draw.normal(size=rank)
        return Sent.of(tensors, **facts)

    everyone = [
        sent({"b0.q": 9, "b0.v": 40, "b1.q": 9}, examples=3, shift=17),
        sent({"b0.q": 9, "b1.q": 9}, examples=1),
        sent({"b0.q": 9, "b0.v": 40, "b2.q": 3}, examples=2, shift=8),
        sent({"b0.q": 9, "b0.v": 40}, base_model="l"),
        sent({"b0.q": 5, "b0.v": 40}, examples=5),  # the same name in another shape is not the same
    ]
    closed = close_round(database, plan(), everyone)
    publish(database)
    stored = [split_tensors(client.values.astype(np.float64), client.layout) for client in everyone]
    for i, client in enumerate(everyone):
        served = split_tensors(served_values(database, closed.clients[i], client.layout), client.layout)
        for name, values in served.items():
            module = name.rpartition(".")[0]
            peers = [
                j
                for j, peer in enumerate(everyone)
                if peer.base_model == client.base_model
                and all(
                    peer.layout.get(f"{module}.{part}") == client.layout[f"{module}.{part}"] for part in "PQ"
                )
            ]
            weights = np.array([everyone[j].examples for j in peers], float)
            expected = sum(w * stored[j][name] for w, j in zip(weights / weights.sum(), peers, strict=True))
            np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-7)


def test_publishing_stores_relevance_and_opens_the_next_round(database: Database) -> None:
    closed = simple(database)
    publish(database)
    assert round_row(database, closed).state == "published"
    assert round_row(database, closed, 2).state == "open"
    assert row_count(database, RelevanceRow) == 3
    assert row_count(database, WeightsRow) == 3


@pytest.mark.parametrize("strategy", ["fedavg", "fedmosaic"])
def test_bodies_of_many_blocks_match_their_digests(
    fresh_database: Callable[[str], str], strategy: str
) -> None:
    layout = {"b0.q.Q": (20_000,)}
    values = np.random.default_rng(2).normal(size=(3, 20_000)).astype(np.float32)
    signatures = [(1.0, 0.0), (0.8, 0.6), (0.0, 1.0)]
    sent = [Sent(layout, row, signature=signature) for row, signature in zip(values, signatures, strict=True)]
    bodies = []
    for block_bytes in (2**13, 2**19, 2**24):  # many short blocks, some of long rows, and one
        database = Database(fresh_database("sqlite"))
        closed = close_round(database, plan(strategy), sent)
        blocks_done: list[None] = []
        commits: list[object] = []
        event.listen(database.engine, "commit", commits.append)
        publish(database, lambda done=blocks_done: done.append(None), block_bytes)
        if strategy == "fedavg" and block_bytes == 2**13:
            assert len(commits) < len(blocks_done)
        with database.read() as session:
            rows = session.scalars(select(WeightsRow)).all()
        assert len({row.payload_id for row in rows}) == (1 if strategy == "fedavg" else 3)
        for row in rows:
            head = row.head or b""
            end = row.begin + row.bytes - len(head)
            tail = payloads.read_alone(database, row.payload_id, row.begin, end)
            assert row.digest == digest_of(head + tail)
        bodies.append(np.stack([served_values(database, client, layout) for client in closed.clients]))
        database.close()
    np.testing.assert_allclose(bodies[0], bodies[2], atol=1e-6)
    np.testing.assert_allclose(bodies[1], bodies[2], atol=1e-6)
    if strategy == "fedavg":
        np.testing.assert_allclose(bodies[0], np.tile(values.mean(axis=0), (3, 1)), atol=1e-6)


def test_a_revoked_clients_update_counts_without_serving_it(database: Database) -> None:
    closed = simple(database)
    with database.write() as session:
        session.execute(
            update(ClientRow)
            .where(ClientRow.id == closed.clients[2])
            .values(state="revoked", revoked_at=database_time(session))
        )
    publish(database)
    np.testing.assert_allclose(served_values(database, closed.clients[0], {"x": (930,)}), 1.0)
    assert row_count(database, WeightsRow) == 2


def test_clients_with_equal_updates_share_stored_bytes(database: Database) -> None:
    layout = {"b0.q.Q": (30,)}
    same = np.arange(30, dtype=np.float32)
    closed = close_round(database, plan(), [Sent(layout, same), Sent(layout, same)])
    assert row_count(database, PayloadRow) == 1
    publish(database)
    np.testing.assert_allclose(served_values(database, closed.clients[1], layout), same)
