"""Measure the secure sum for a member and the coordinator, with real cryptography, in one process.

    python -m benchmarks.secure_sum [--members 10,100] [--values 100000,1000000] [--out FILE.json]

Per number of members N and of values D, with all members and with 10 % of them lost after step 1:
processor seconds of a member over its five steps, and of the coordinator from the masked vectors to the
decoded sum; the bytes that a member sends and receives, and their ratio to D plain numbers of 16 bits. The
goals at N = 100, D = 1e6: member 0.25 s, coordinator 0.2 s, and 2 s with lost members, 1.55 times the plain
bytes. Every run checks that the sum is exact.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console

from benchmarks import figures
from coordinator.secure_sum import intake
from coordinator.secure_sum.unmasking import opened_keys, unmasked_sum
from tests.scene.secure_sums import Session, inputs_of, terms_of

LOST = 0.1
_BLOCK_VALUES = 1 << 16
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Cost:
    """Figures of one session: processor seconds, bytes of one member."""

    members: int
    values: int
    lost: int
    member_seconds: float
    coordinator_seconds: float
    bytes_up: int
    bytes_down: int
    ratio_to_plain: float


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the secure sum on both sides.")
    parser.add_argument("--members", default="10,100")
    parser.add_argument("--values", default="100000,1000000")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    console = Console()
    costs = []
    for members in map(int, arguments.members.split(",")):
        for values in map(int, arguments.values.split(",")):
            for lost in (0, round(LOST * members)):
                console.print(f"{members} members, {values} values, {lost} lost", highlight=False)
                costs.append(session_cost(members, values, lost))
    columns = ("members", "values", "lost", "member s", "coordinator s", "up", "down", "to plain")
    rows = [list(asdict(cost).values()) for cost in costs]
    figures.show(console, "processor seconds; bytes of a member", columns, rows)
    if arguments.out is not None:
        costs_of_all = [asdict(cost) for cost in costs]
        figures.write(arguments.out, {"machine": figures.machine(), "costs": costs_of_all})


def session_cost(members: int, values: int, lost: int) -> Cost:
    """Run one session; the last `lost` members stop after they have sent shares."""
    terms = terms_of(members, segments=[{"name": "lora", "values": values, "clip": 1 << 20}])
    stops = {n: 2 for n in range(members - lost, members)}
    session = Session(terms, inputs_of(members, values), stops)
    session.step_keys()
    session.step_shares()
    session.step_masked()
    session.step_confirm()
    session.step_unmask()
    masked = frozenset(session.masked)

    def opened() -> np.ndarray:
        keys = opened_keys(terms, session.keys, session.commitments(), masked, session.unmasked)
        vectors = list(session.masked.values())
        size = _BLOCK_VALUES * terms.modulus // 8
        blocks = (
            [memoryview(vector)[begin : begin + size] for vector in vectors]
            for begin in range(0, len(vectors[0]), size)
        )
        return np.concatenate(list(unmasked_sum(terms, keys, len(masked), blocks)))

    coordinator, total = _timed(opened)
    if not np.array_equal(total, session.expected()):
        raise AssertionError("the sum is not exact")
    up, down = _bytes(session)
    return Cost(members, values, lost, _member_seconds(session), coordinator, up, down, up / (2 * values))


def _member_seconds(session: Session) -> float:
    """Repeat all steps of one member with the messages of the session; key generation included."""
    member, keys = session.members[0], intake.keys_answer(session.keys)
    shares = intake.shares_answer(0, session.keys, session.shares)

    def steps() -> None:
        member.keys()
        keyed = member.accept_keys(keys, session.keys[0])
        member.shares(keyed)
        shared = member.accept_shares(shares, keyed, session.own[0])
        member.masked(session.inputs[0], keyed, shared)
        masked = member.accept_masked(intake.masked_answer(session.terms, session.masked), shared)
        member.confirm(shared, masked)
        member.unmask(intake.confirm_answer(session.confirmed), shared, masked)

    return _timed(steps)[0]


def _bytes(session: Session) -> tuple[int, int]:
    """Return the bytes of the bodies that member 0 sends and receives."""
    pushed = (session.keys[0], session.shares[0], session.confirmed[0], session.unmasked[0])
    pulled = (
        intake.keys_answer(session.keys),
        intake.shares_answer(0, session.keys, session.shares),
        intake.masked_answer(session.terms, session.masked),
        intake.confirm_answer(session.confirmed),
    )
    up = sum(len(message.model_dump_json()) for message in pushed) + len(session.masked[0])
    return up, sum(len(message.model_dump_json()) for message in pulled)


def _timed(action: Callable[[], Result]) -> tuple[float, Result]:
    began = time.process_time()
    result = action()
    return time.process_time() - began, result


if __name__ == "__main__":
    main()
