"""The publication of a summed round: the model before it, plus the mean of its members' inputs.

I2: every value says whom the round counted, as every agent learns a vector of its own, and all clients are
served the same.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from schemas.secure_sum.encoding import CLIP_UNIT
from tests.faults.fault_simulation.fault_rates import NOISE, PUBLISHED

if TYPE_CHECKING:
    from tests.faults.fault_simulation.world import World

_CLOSE = 1e-5
_QUANTA = 6.0
"""By how many steps of the encoding a mean may miss what was learnt: a small weight makes them larger."""


def counted(world: World, number: int) -> frozenset[str]:
    """Return the clients whose inputs a published round must count: those of its total."""
    if number not in world.oracle.sums.counted:
        world.violated("I21", f"round {number} was published without a total")
    return world.oracle.sums.counted.get(number, frozenset())


def check_receivers(
    world: World, connection: sqlite3.Connection, number: int, given_rows: list[tuple[Any, ...]]
) -> None:
    """Check the weights that a summed round gave to each client."""
    receivers = {row[1] for row in given_rows if row[2] == number + 1}
    enrolled = {client for (client,) in connection.execute("SELECT id FROM clients WHERE state = 'enrolled'")}
    everyone = {client for (client,) in connection.execute("SELECT id FROM clients")}
    if not enrolled <= receivers <= everyone:  # who is shut out meanwhile may have been given some
        world.violated("I1", f"round {number} gave weights to {sorted(receivers)}, not to {sorted(enrolled)}")
    expected = _after(world, number)
    for row in given_rows:
        values = world.oracle.ledger.given_weights.values[row[0]]
        if values is None:
            continue
        close = _CLOSE + world.oracle.meaning.published_slack(expected, number + 1)
        if not np.allclose(values, expected, rtol=_CLOSE, atol=close):
            world.violated("I2", f"round {number} gave {row[1]} another model than its total makes")
        wrong = _miscounted(world, number, values) if close == _CLOSE else []
        if wrong:
            world.violated("I2", f"round {number} counted {wrong}")


def check_joined(world: World, receivers: list[tuple[Any, ...]]) -> None:
    """Check the weights at joins: zeros, or the model after the last published round."""
    last = max(world.oracle.ledger.counted, default=0)
    expected = _after(world, last)
    published = world.oracle.ledger.given_weights.published(last + 1)
    if world.plan.weights_recipe in PUBLISHED and published is not None:
        expected = published.astype(np.float64)
    for row in receivers:
        values = world.oracle.ledger.given_weights.values[row[0]]
        if values is not None and not np.allclose(values, expected, rtol=_CLOSE, atol=_CLOSE):
            world.violated("I2", f"{row[1]} was given something else than the model after round {last}")


def _after(world: World, number: int) -> NDArray[np.float64]:
    """Return the model after a round, (values,): the changes of all published rounds, one on the other.

    Where models are published as differences, a round changes the one that was published before.
    """
    values = np.zeros(world.plan.values)
    for round_total in sorted(world.oracle.sums.totals):
        if round_total <= number and round_total in world.oracle.ledger.counted:
            values = values + _change(world, round_total)
            published = world.oracle.ledger.given_weights.published(round_total + 1)
            if world.plan.weights_recipe in PUBLISHED and published is not None and round_total < number:
                values = published.astype(np.float64)
    return values


def _change(world: World, number: int) -> NDArray[np.float64]:
    total, terms = world.oracle.sums.totals[number], world.oracle.sums.terms[number]
    count = world.plan.values
    steps = {
        segment.name: segment.clip * CLIP_UNIT / (2 ** (terms.bits - 1) - 1) for segment in terms.segments
    }
    weight = float(len(world.oracle.sums.counted[number]))
    if "weight" in steps:
        weight = float(total[count]) * steps["weight"]
    return total[:count] * steps[terms.segments[0].name] / weight


def _miscounted(world: World, number: int, values: NDArray[np.float32]) -> list[str]:
    """Return the clients that were counted wrongly, left out, or counted twice."""
    members, descriptions = world.oracle.sums.counted[number], []
    terms = world.oracle.sums.terms[number]
    close = _QUANTA * terms.segments[0].clip * CLIP_UNIT / (2 ** (terms.bits - 1) - 1)
    for round_number in range(1, number + 1):
        for client, index in world.index_of_clients().items():
            expected = 1 / len(members) if round_number == number and client in members else 0.0
            share = values[: len(values) - NOISE][world.plan.place(round_number, index)]
            if abs(share - expected) > close:
                descriptions.append(f"{client} of round {round_number} {share:.3f} times, not {expected:.3f}")
    return descriptions
