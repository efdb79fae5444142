"""A coordinator of sums in memory, for members driven by the agent's own loop, without HTTP."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from client_agent.errors import CoordinatorRefused
from client_agent.secure_sum.drive import SumTask, take_part_in_sum
from client_agent.secure_sum.expectation import Expectation
from client_agent.secure_sum.journal import SumJournal
from client_agent.secure_sum.progress import SumProgress
from client_agent.secure_sum.unmask_marks import UnmaskMarks
from client_agent.transport.responses import NoOpenRound
from coordinator.secure_sum import intake
from coordinator.secure_sum.phases import first_phase, following
from coordinator.secure_sum.unmasking import opened_keys, unmasked_counts, unmasked_sum
from schemas.messages.secure_sum import (
    STEPS,
    ConfirmStep,
    KeysStep,
    SharesStep,
    SumOutcome,
    SumStatus,
    SumStep,
    SumTerms,
    UnmaskStep,
)
from schemas.messages.sum_counts import SumCounts
from schemas.secure_sum.count_proofs import are_proved
from schemas.wire.digests import digest_of
from tests.scene.secure_sums import expectation_of, identity, inputs_of, terms_of
from tests.scene.threads import run_at_once

KINDS = (KeysStep, SharesStep, None, ConfirmStep, UnmaskStep)


@dataclass
class MemoryServer:
    """One session after the other; a phase closes when all members that are expected have answered it.

    `missing` names members that are not waited for from a step on. `log` has every body that arrived.
    """

    terms: SumTerms
    missing: dict[int, int] = field(default_factory=dict)
    phase: int = 1
    step: SumStep | None = None
    outcome: SumOutcome | None = None
    total: NDArray[np.int64] | None = None
    openings: list[int] = field(default_factory=list)
    bodies: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    log: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    closed: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.step = first_phase(self.terms)

    def open(self, terms: SumTerms) -> None:
        """Open the next session, as after an abort."""
        with self.lock:
            self.terms, self.step, self.phase = terms, first_phase(terms), self.phase + 1

    def status(self) -> SumStatus:
        now = datetime.now(UTC)
        return SumStatus(
            round=self.terms.round,
            phase=self.phase,
            session=self.terms.session,
            kind=self.terms.kind,
            step=self.step,
            deadline=now,
            terms=self.terms,
            outcome=self.outcome,
            server_time=now,
        )

    def put(self, position: int, session: int, step: int, body: bytes) -> None:
        with self.lock:
            self.log.append((session, position, step, body))
            place = (session, position, step)
            if place in self.bodies:
                if self.bodies[place] != body:
                    raise CoordinatorRefused(409, "upload-conflict", "other bytes were sent", "sum")
                return
            if session != self.terms.session or self.step != STEPS[step]:
                raise CoordinatorRefused(409, "phase-mismatch", "the phase is over", "sum")
            self.bodies[place] = body
            self.close_if_complete()

    def close_if_complete(self) -> None:
        """Close the phase once all that are expected have answered."""
        session, step = self.terms.session, STEPS.index(self.step or "keys")
        before = self.closed.get((session, step - 1), list(range(len(self.terms.members))))
        expected = [n for n in before if self.missing.get(n, 9) > step]
        answered = [n for n in before if (session, n, step) in self.bodies]
        if not set(expected) <= set(answered):
            return
        self.closed[session, step] = answered
        next_phase = following(self.terms, STEPS[step])  # type: ignore[arg-type]
        self.step, self.phase = next_phase, self.phase + 1
        if next_phase is None:
            self._open()
        else:
            self.close_if_complete()

    def answer(self, reader: int, session: int, step: int) -> bytes | NoOpenRound:
        with self.lock:
            if (session, step) not in self.closed:
                return NoOpenRound(0.001)
            if reader not in self.closed[session, step]:
                raise CoordinatorRefused(409, "phase-mismatch", "this client missed a step", "sum")
            match step:
                case 0:
                    return _json(intake.keys_answer(self.parsed(0)))
                case 1:
                    return _json(intake.shares_answer(reader, self.closed[session, 0], self.parsed(1)))
                case 2:
                    sent = {n: self.bodies[session, n, 2] for n in self.closed[session, 2]}
                    return _json(intake.masked_answer(self.terms, sent))
                case _:
                    return _json(intake.confirm_answer(self.parsed(3)))

    def parsed(self, step: int) -> dict:  # type: ignore[type-arg]
        kind, session = KINDS[step], self.terms.session
        assert kind is not None
        return {
            n: kind.model_validate_json(self.bodies[session, n, step]) for n in self.closed[session, step]
        }

    def _open(self) -> None:
        session = self.terms.session
        masked = self.closed[session, 2]
        vectors = [self.bodies[session, n, 2] for n in masked]
        commitments = {n: step.commitment for n, step in self.parsed(1).items()}
        opened = opened_keys(self.terms, self.parsed(0), commitments, frozenset(masked), self.parsed(4))
        if are_proved(self.terms):
            self.total, self.openings = unmasked_counts(self.terms, opened, vectors)
        else:
            (self.total,) = unmasked_sum(self.terms, opened, len(masked), [vectors])
        counted = [self.terms.members[n].client for n in masked]
        self.outcome = SumOutcome(state="summed", counted=counted, reason=None)


def _json(message) -> bytes:  # type: ignore[no-untyped-def]
    octets: bytes = message.model_dump_json().encode()
    return octets


@dataclass
class MemoryCalls:
    """The calls of one member."""

    server: MemoryServer
    position: int
    stop_before: int = 9
    """The step from which on this member does not come any more."""

    def status(self, phase: int | None, wait_seconds: int) -> SumStatus | NoOpenRound:
        with self.server.lock:
            status = self.server.status()
        if status.outcome is None and status.phase == phase:
            return NoOpenRound(0.001)
        return status

    def put(self, session: int, step: int, body: bytes) -> None:
        if step >= self.stop_before:
            raise GoneAway
        self.server.put(self.position, session, step, body)

    def answer(self, session: int, step: int) -> bytes | NoOpenRound:
        return self.server.answer(self.position, session, step)


class GoneAway(Exception):
    """A member that is not there any more."""


@dataclass
class DrivenMember:
    """A member with a journal on disk; `run` may be called again after a crash."""

    calls: MemoryCalls
    folder: Path
    values: NDArray[np.int32]
    reports: list[SumProgress] = field(default_factory=list)
    input_digest: str | None = None
    identity: Ed25519PrivateKey | None = None
    expected: Mapping[str, object] = field(default_factory=dict)

    @property
    def journal(self) -> SumJournal:
        return SumJournal(self.folder, self.folder / "evidence", UnmaskMarks(self.folder / "unmasked"))

    def run(self, sleep: Callable[[float], None] | None = None) -> SumOutcome:
        position = self.calls.position
        pause = threading.Event()

        def expect(terms: SumTerms, _: SumCounts | None) -> Expectation:
            return expectation_of(terms, position, **self.expected)

        task = SumTask(
            calls=self.calls,
            journal=self.journal,
            values=lambda _: self.values,
            input_digest=self.input_digest or digest_of(self.values.tobytes()),
            expect=expect,
            identity=self.identity or identity(position),
            client=f"cli_{position:03}",
            report=self.reports.append,
            sleep=sleep or (lambda seconds: pause.wait(seconds) and None),
        )
        return take_part_in_sum(task, self.calls.server.terms.round)


def members_of(folder: Path, count: int, terms: SumTerms | None = None) -> list[DrivenMember]:
    server = MemoryServer(terms or terms_of(count))
    inputs = inputs_of(count)
    return [DrivenMember(MemoryCalls(server, n), folder / f"member-{n}", inputs[n]) for n in range(count)]


def run_all(members: list[DrivenMember]) -> dict[int, BaseException]:
    """Run members at once; return what they raised, by position."""
    return run_at_once({member.calls.position: member.run for member in members})


def expected_sum(members: list[DrivenMember]) -> NDArray[np.int64]:
    total: NDArray[np.int64] = np.sum([member.values.astype(np.int64) for member in members], axis=0)
    return total


class _Over(Exception):
    pass


def run_until_left(member: DrivenMember) -> None:
    """Run a member until it waits for a phase that does not come."""

    def sleep(seconds: float) -> None:
        if any(report.reason for report in member.reports):
            raise _Over

    with contextlib.suppress(_Over):
        member.run(sleep)
        raise AssertionError("the sum ended")


def run_until_all_left(members: list[DrivenMember]) -> None:
    """Run members at once until each waits for a phase that does not come."""
    with ThreadPoolExecutor(len(members)) as pool:
        list(pool.map(run_until_left, members))


def reason_for_leaving(member: DrivenMember) -> str:
    run_until_left(member)
    return next(report.reason for report in member.reports if report.reason)


def change_answers(monkeypatch: pytest.MonkeyPatch, step: int, lie: Any) -> None:
    honest = MemoryCalls.answer

    def answer(self: MemoryCalls, session: int, number: int) -> bytes | NoOpenRound:
        answer_body = honest(self, session, number)
        return lie(self, answer_body) if number == step and isinstance(answer_body, bytes) else answer_body

    monkeypatch.setattr(MemoryCalls, "answer", answer)
