"""Counts of members per group before the sum, and refusals of false counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from client_agent.errors import SumRefused
from client_agent.secure_sum.drive import SumTask, take_part_in_sum
from client_agent.secure_sum.journal import SumJournal
from client_agent.secure_sum.progress import SumProgress
from client_agent.secure_sum.unmask_marks import UnmaskMarks
from schemas.identity.keys import encode
from schemas.maths.bank import manifest
from schemas.messages.secure_sum import SumOutcome, SumStatus, SumTerms
from schemas.messages.sum_counts import SumCounts
from schemas.secure_sum.counts import count_segments, counts_digest, decoded_counts, encoded_counts
from schemas.secure_sum.curve import encode_scalar
from tests.scene.secure_sums import expectation_of, identity, inputs_of, terms_of
from tests.unit.client_agent.secure_sum.memory_server import GoneAway, MemoryCalls, MemoryServer

GROUPS = ("x0", "x1", "x2")
USES = [{"x0", "x1"}, {"x0", "x1"}, {"x0", "x1"}, {"x0", "x2"}, {"x0", "x2"}]
MEMBERS = len(USES)
Change = Callable[[SumCounts], SumCounts]


class GaveUp(Exception):
    """The member waits for a phase that does not come."""


@dataclass
class CountingServer(MemoryServer):
    """Takes counts, then opens the sum: `lie` changes the outcome, `follow` the session after it."""

    counts: SumCounts | None = None
    lie: Change | None = None
    follow: Callable[[CountingServer], SumTerms] | None = None

    def status(self) -> SumStatus:
        status = super().status()
        return status if self.terms.kind == "counts" else status.model_copy(update={"counts": self.counts})

    def sum_terms(self, session: int) -> SumTerms:
        assert self.counts is not None
        groups = sorted(manifest(self.counts.groups, MEMBERS, 0, 3))
        segments = [{"name": f"{g}.A", "values": 10, "clip": 1 << 20, "group": g} for g in groups]
        digest = counts_digest(self.counts)
        return terms_of(MEMBERS, session=session, segments=segments, counts=digest)

    def _open(self) -> None:
        super()._open()
        if self.terms.kind == "sum":
            return
        assert self.total is not None
        assert self.outcome is not None
        counted = self.outcome.counted or []
        groups = decoded_counts(GROUPS, self.total, len(counted), 16)
        scalars = (encode(encode_scalar(scalar)) for scalar in self.openings)
        counts = SumCounts(
            session=self.terms.session,
            counted=counted,
            groups=groups,
            openings=dict(zip(GROUPS, scalars, strict=True)),
        )
        self.counts = self.lie(counts) if self.lie is not None else counts
        self.outcome, self.total = None, None
        self.open(self.follow(self) if self.follow is not None else self.sum_terms(2))


@dataclass
class CrashingCalls(MemoryCalls):
    crashes: set[int] = field(default_factory=set)

    def put(self, session: int, step: int, body: bytes) -> None:
        if session in self.crashes:
            self.crashes.remove(session)
            raise GoneAway
        super().put(session, step, body)


@dataclass
class CountedMember:
    """A member with groups; `run` may be called again after a crash."""

    server: CountingServer
    position: int
    folder: Path
    crashes: set[int] = field(default_factory=set)
    """The sessions in which the member crashes before its first message, once each."""
    reports: list[SumProgress] = field(default_factory=list)

    @property
    def journal(self) -> SumJournal:
        return SumJournal(self.folder, self.folder / "evidence", UnmaskMarks(self.folder / "unmasked"))

    def values(self, terms: SumTerms) -> np.ndarray:
        if terms.kind == "counts":
            return encoded_counts(GROUPS, USES[self.position], 16)
        return inputs_of(MEMBERS, terms.values)[self.position]

    def run(self) -> SumOutcome:
        pause = threading.Event()

        def sleep(seconds: float) -> None:
            if any(report.reason for report in self.reports):
                raise GaveUp
            pause.wait(seconds)

        return take_part_in_sum(
            SumTask(
                calls=CrashingCalls(self.server, self.position, crashes=self.crashes),
                journal=self.journal,
                values=self.values,
                input_digest=f"sha256:{self.position:064}",
                expect=lambda terms, counts: expectation_of(
                    terms,
                    self.position,
                    kind=terms.kind,
                    groups=GROUPS,
                    counts=counts,
                    least_per_group=3,
                ),
                identity=identity(self.position),
                client=f"cli_{self.position:03}",
                report=self.reports.append,
                sleep=sleep,
            ),
            3,
        )


def counting(folder: Path, **server: object) -> list[CountedMember]:
    segments = [segment.model_dump() for segment in count_segments(GROUPS)]
    played = CountingServer(terms_of(MEMBERS, kind="counts", segments=segments), **server)  # type: ignore[arg-type]
    return [CountedMember(played, n, folder / f"member-{n}") for n in range(MEMBERS)]


def run(members: list[CountedMember]) -> list[SumOutcome | BaseException]:
    """Run members at once; return their outcomes, or what they raised."""

    def outcome(member: CountedMember) -> SumOutcome | BaseException:
        try:
            return member.run()
        except GoneAway:
            return outcome(member)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(outcome, members))


def test_members_are_counted_then_summed(tmp_path: Path) -> None:
    members = counting(tmp_path)
    assert all(isinstance(outcome, SumOutcome) for outcome in run(members))
    server = members[0].server
    assert server.counts is not None
    assert server.counts.groups == {"x0": 5, "x1": 3, "x2": 2}
    assert [segment.group for segment in server.terms.segments] == ["x0", "x1"]
    assert server.total is not None
    inputs = inputs_of(MEMBERS, server.terms.values)
    assert np.array_equal(server.total, np.sum([inputs[n].astype(np.int64) for n in range(MEMBERS)], axis=0))
    stored = SumCounts.model_validate_json((tmp_path / "member-0" / "counts.json").read_bytes())
    assert stored == server.counts


def test_member_that_unmasked_counts_joins_no_second_count(tmp_path: Path) -> None:
    """A second count without one member would show which groups it belongs to."""
    segments = [segment.model_dump() for segment in count_segments(GROUPS)]
    again = terms_of(MEMBERS, kind="counts", session=2, segments=segments)
    members = counting(tmp_path, follow=lambda _: again)
    assert all(isinstance(outcome, GaveUp) for outcome in run(members))
    reasons = {report.reason for member in members for report in member.reports if report.reason}
    assert reasons == {"this client has unmasked another session of the round, and unmasks one only"}
    assert not [entry for entry in members[0].server.log if entry[0] == 2]


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (lambda c: c.model_copy(update={"counted": c.counted[:4]}), "confirmed"),
        (lambda c: c.model_copy(update={"groups": {"x0": 5, "x1": 5}}), "other groups"),
        (lambda c: c.model_copy(update={"groups": c.groups | {"x2": 6}}), "more members"),
        (lambda c: c.model_copy(update={"groups": c.groups | {"x2": 3}}), "committed to"),
        (lambda c: c.model_copy(update={"openings": None}), "committed to"),
    ],
    ids=[
        "a counted member concealed",
        "a group concealed",
        "more users than members",
        "a user too many",
        "no openings",
    ],
)
def test_impossible_counts_stop_a_member(tmp_path: Path, lie: Change, reason: str) -> None:
    members = counting(tmp_path, lie=lie)
    for outcome in run(members):
        assert isinstance(outcome, SumRefused)
        assert reason in str(outcome)
    assert not [entry for entry in members[0].server.log if entry[0] == 2]
    assert len(list(members[0].journal.evidence.iterdir())) == 1


def test_counts_that_change_within_a_round_are_evidence(tmp_path: Path) -> None:
    journal = SumJournal(tmp_path / "000003", tmp_path / "evidence", UnmaskMarks(tmp_path / "unmasked"))
    counts = SumCounts(session=1, counted=["cli_000", "cli_001"], groups={"x0": 2, "x1": 1})
    journal.keep_counts(3, counts)
    journal.keep_counts(3, counts)
    assert not journal.evidence.exists()
    with pytest.raises(SumRefused, match="two outcomes of the counts of round 3"):
        journal.keep_counts(3, counts.model_copy(update={"groups": {"x0": 2, "x1": 2}}))
    assert len(list(journal.evidence.iterdir())) == 2


def test_member_that_crashed_after_counts_joins_the_sum(tmp_path: Path) -> None:
    members = counting(tmp_path)
    members[0].crashes = {2}
    outcomes = run(members)
    assert all(isinstance(outcome, SumOutcome) for outcome in outcomes)
    assert not members[0].crashes
    total = members[0].server.total
    inputs = inputs_of(MEMBERS, members[0].server.terms.values)
    assert total is not None
    assert np.array_equal(total, np.sum([inputs[n].astype(np.int64) for n in range(MEMBERS)], axis=0))


def test_member_without_confirmed_counts_leaves_the_sum(tmp_path: Path) -> None:
    members = counting(tmp_path)
    counts = SumCounts(
        session=1, counted=[f"cli_{n:03}" for n in range(MEMBERS)], groups=dict.fromkeys(GROUPS, 5)
    )
    server = members[0].server
    server.counts = counts
    server.open(server.sum_terms(2))
    assert isinstance(run(members[:1])[0], GaveUp)
    assert "has not confirmed" in (members[0].reports[-1].reason or "")
    assert not server.log
