"""Measure proved counts of a bank of experts: seconds and bytes of members and the coordinator.

    python -m benchmarks.count_proofs [--members 16,128] [--experts 6,32] [--out FILE.json]

Processor seconds, in one process: a member makes its message (commitments, proofs, signature); the
coordinator verifies one message; a member verifies those of all members, and adds up the commitments; the
coordinator opens the counts, with a tenth of the members lost after step 1. Bytes: a message, and the answer
to step 2 as JSON, which every member reads. The goal: 128 members of 32 experts are verified in seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks import figures
from coordinator.secure_sum import intake
from coordinator.secure_sum.unmasking import opened_keys, unmasked_counts
from schemas.secure_sum.count_proofs import message_bytes, summed_commitments, verify_counts
from schemas.secure_sum.counts import count_segments, encoded_counts
from tests.scene.secure_sums import Session, terms_of

LOST = 0.1
CHOICES = 2
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor seconds and bytes of one session of counts."""

    members: int
    experts: int
    building: float
    verified_once: float
    verified_by_member: float
    opened: float
    message: int
    answer: int


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the proofs of counts.")
    parser.add_argument("--members", default="16,128")
    parser.add_argument("--experts", default="6,32")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    console = Console()
    costs = []
    for members in map(int, arguments.members.split(",")):
        for experts in map(int, arguments.experts.split(",")):
            console.print(f"{members} members, {experts} experts", highlight=False)
            costs.append(session_cost(members, experts))
    columns = ("members", "experts", "make s", "verify one s", "verify all s", "open s", "message", "answer")
    rows = [list(asdict(cost).values()) for cost in costs]
    figures.show(console, "processor seconds, bytes", columns, rows)
    if arguments.out is not None:
        costs_of_all = [asdict(cost) for cost in costs]
        figures.write(arguments.out, {"machine": figures.machine(), "costs": costs_of_all})


def session_cost(members: int, experts: int) -> Cost:
    """Run a session of counts in which member n uses two experts; a tenth of the members is lost."""
    groups = (*(f"x{expert + 1}" for expert in range(experts)), "reject")
    segments = [segment.model_dump() for segment in count_segments(groups)]
    terms = terms_of(members, kind="counts", segments=segments, choices=CHOICES)
    used = {n: {groups[n % experts], groups[(n + 1) % experts]} for n in range(members)}
    inputs = {n: encoded_counts(groups, used[n], terms.bits) for n in range(members)}
    lost = {n: 2 for n in range(members - round(LOST * members), members)}
    session = Session(terms, inputs, lost, {"kind": "counts", "choices": CHOICES}).run_steps(2)
    member = session.members[0]
    shares = intake.shares_answer(0, session.keys, session.shares)
    shared = member.accept_shares(shares, session.keyed[0], session.own[0])
    building, message = _timed(lambda: member.masked(inputs[0], session.keyed[0], shared))
    once, _ = _timed(lambda: verify_counts(terms, 0, message))
    session.step_masked()
    answer = intake.masked_answer(terms, session.masked)

    def verify_all() -> None:
        member.accept_masked(answer, session.shared[0])
        summed_commitments(terms, session.masked.values())

    verified, _ = _timed(verify_all)
    # Members have equal steps: one set of checks stands for those of all.
    masked = sorted(session.masked)
    for n in masked:
        session.confirmed[n] = session.members[n].confirm(session.shared[n], masked)
    session.step_unmask()

    def opened() -> NDArray[np.int64]:
        keys = opened_keys(
            terms, session.keys, session.commitments(), frozenset(session.masked), session.unmasked
        )
        return unmasked_counts(terms, keys, session.masked.values())[0]

    seconds, total = _timed(opened)
    if not np.array_equal(total, session.expected()):
        raise AssertionError("the counts are not exact")
    size = len(answer.model_dump_json())
    return Cost(members, experts, building, once, verified, seconds, message_bytes(terms), size)


def _timed(action: Callable[[], Result]) -> tuple[float, Result]:
    began = time.process_time()
    result = action()
    return time.process_time() - began, result


if __name__ == "__main__":
    main()
