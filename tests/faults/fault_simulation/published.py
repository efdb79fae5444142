"""The updates counted by a published round, read from its bytes: each update is a vector of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from hashlib import sha256
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tests.faults.fault_simulation import joint, meaning
from tests.faults.fault_simulation.fault_rates import NOISE

if TYPE_CHECKING:
    from tests.faults.fault_simulation.world import World

_CLOSE = 1e-5


def check_round(world: World, connection: sqlite3.Connection, round_id: int, number: int) -> frozenset[str]:
    """Check the weighed clients and their order; return the clients that a round has to count."""
    if world.plan.summed is not None:
        return joint.counted(world, number)
    accepted = connection.execute(
        "SELECT client_id FROM updates WHERE round_id = ? AND reject_reason IS NULL", (round_id,)
    ).fetchall()
    weighed = [
        client
        for (client,) in connection.execute(
            "SELECT client_id FROM relevance WHERE round_id = ? ORDER BY ordinal", (round_id,)
        )
    ]
    if weighed != sorted(weighed):
        world.violated("inputs are sorted", f"round {number} was aggregated in the order {weighed}")
    return frozenset(client for (client,) in accepted)


def check_receivers(
    world: World, connection: sqlite3.Connection, number: int, given_rows: list[tuple[Any, ...]]
) -> None:
    """Check the weights that a round gave: the mean of its updates, and nothing else."""
    if world.plan.summed is not None:
        joint.check_receivers(world, connection, number, given_rows)
        return
    counted = world.oracle.ledger.counted[number]
    expected = _mean(world, number, counted)
    receivers = {row[1] for row in given_rows if row[2] == number + 1}
    delivered = {
        client: state
        for client, state in connection.execute(
            "SELECT u.client_id, c.state FROM updates u JOIN clients c ON c.id = u.client_id"
            " WHERE u.reject_reason IS NULL"
        )
    }
    enrolled = {client for client, state in delivered.items() if state == "enrolled"}
    if not enrolled <= receivers <= delivered.keys():  # who is shut out meanwhile may have been given some
        world.violated("I1", f"round {number} gave weights to {sorted(receivers)}, not to {sorted(enrolled)}")
    for row in given_rows:
        values = world.oracle.ledger.given_weights.values[row[0]]
        if values is None:
            continue
        close = _CLOSE + world.oracle.meaning.published_slack(expected, number + 1)
        is_told = world.plan.is_exact and close < 0.5 / max(1, len(counted))
        wrong = _miscounted(world, number, counted, values, close) if is_told else []
        if wrong:
            world.violated("I2", f"round {number} counted {wrong}")
        elif not np.allclose(values, expected, rtol=_CLOSE, atol=close):
            world.violated("I2", f"round {number} counted other bytes than were accepted")


def check_joined(world: World, receivers: list[tuple[Any, ...]]) -> None:
    """Check the weights at joins: zeros, or the mean of the last published round's updates."""
    if world.plan.summed is not None:
        joint.check_joined(world, receivers)
        return
    last = max(world.oracle.ledger.counted, default=0)
    counted = world.oracle.ledger.counted.get(last, frozenset())
    for row in receivers:
        values = world.oracle.ledger.given_weights.values[row[0]]
        if values is None or not values.any():
            continue
        if not world.plan.is_exact:
            means = _means(world, last, counted)
            if not any(np.allclose(values, mean, rtol=_CLOSE, atol=_CLOSE) for mean in means):
                world.violated("I2", f"{row[1]} was given something else than what round {last} counted")
            continue
        places = _places(world, last)
        counted_clients = {client for client, place in places.items() if values[place] != 0}
        share = 1 / len(counted_clients) if counted_clients else 0.0
        remainder = np.delete(values[:-NOISE], [places[client] for client in counted_clients])
        if not counted_clients <= counted or remainder.any():
            world.violated("I2", f"{row[1]} was given something else than what round {last} counted")
        elif any(abs(values[places[client]] - share) > _CLOSE for client in counted_clients):
            world.violated("I2", f"{row[1]} was given unequal shares")


def read_weights(
    world: World, connection: sqlite3.Connection, row: tuple[Any, ...]
) -> NDArray[np.float32] | None:
    """Read weights as they would be served, (values,); None when they are not what their digest says."""
    _, client, number, payload, head, begin, digest, size = row
    chunks = connection.execute(
        "SELECT data FROM payload_chunks WHERE payload_id = ? ORDER BY begin", (payload,)
    ).fetchall()
    body = (head or b"") + b"".join(data for (data,) in chunks)[begin:]
    if f"sha256:{sha256(body).hexdigest()}" != digest or len(body) != size:
        world.violated("I7", f"the weights of {client} for round {number} are not what their digest says")
        return None
    return meaning.read_body(body, world.plan.rank).values


def _means(world: World, number: int, counted: frozenset[str]) -> Iterator[NDArray[np.float32]]:
    """Return the mean of all counted clients, and means without one or two that were revoked meanwhile."""
    for size in range(len(counted), max(0, len(counted) - 3), -1):
        for subset in combinations(sorted(counted), size):
            yield _mean(world, number, subset)


def _places(world: World, number: int) -> dict[str, int]:
    return {client: world.plan.place(number, index) for client, index in world.index_of_clients().items()}


def _mean(world: World, number: int, counted: Collection[str]) -> NDArray[np.float32]:
    states = world.oracle.meaning.states
    sent = [states[client, number].astype(np.float64) for client in counted]
    mean: NDArray[np.float32] = (
        np.mean(sent, axis=0).astype(np.float32) if sent else np.zeros(world.plan.values, np.float32)
    )
    return mean


def _miscounted(
    world: World, number: int, counted: frozenset[str], values: NDArray[np.float32], close: float
) -> list[str]:
    """Return the clients that were counted wrongly, left out, or counted twice."""
    descriptions = []
    share = 1 / len(counted) if counted else 0.0
    for round_number in range(1, world.oracle.newest_round + 1):
        for client, place in _places(world, round_number).items():
            expected = share if round_number == number and client in counted else 0.0
            if abs(values[place] - expected) > close:
                descriptions.append(
                    f"{client} of round {round_number} {values[place]:.3f} times, not {expected:.3f}"
                )
    return descriptions
