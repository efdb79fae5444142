"""Faults planted in the acknowledgement of updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from tempfile import SpooledTemporaryFile
from typing import Any
from unittest.mock import patch

from coordinator.db.group_commit import GroupCommit
from coordinator.errors import UploadConflict
from coordinator.federations.store import federation
from coordinator.http.uploads import ReceivedBody
from coordinator.updates import commit, ingest, routes
from coordinator.updates.commit import CommitResult, ValidatedUpdate
from coordinator.updates.ingest import ExpectedUpdate
from schemas.messages.updates import Receipt
from tests.faults.fault_simulation.fault_rates import FaultRates, Plan
from tests.faults.fault_simulation.lease_mutants import workers_die
from tests.faults.fault_simulation.planting import mutant, replaces


def rounds_end_early(plan: Plan, rates: FaultRates) -> bool:
    return plan.collect_seconds < 30 and plan.rounds > 1 and plan.sluggish


class _Undo(Exception):
    """Raised to roll back a transaction."""


class _Rehearsal:
    """A database whose transactions are rolled back."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @contextmanager
    def write(self) -> Iterator[Any]:
        with suppress(_Undo), self._database.write() as session:
            yield session
            raise _Undo


@replaces(routes, "ingest_update", workers_die)
def answers_before_the_commit(
    deliver: Any, database: Any, expected: ExpectedUpdate, body: ReceivedBody, _: GroupCommit
) -> CommitResult:
    """The receipt is sent before the update is committed."""
    body.file.seek(0)
    content = body.file.read()
    alone = GroupCommit(max_leaders=1, max_batch=1)
    result: CommitResult = deliver(_Rehearsal(database), expected, body, alone)
    world = database.host

    def keep() -> None:
        with suppress(Exception), SpooledTemporaryFile[bytes](max_size=2**20) as copy:
            copy.write(content)
            again = ReceivedBody(copy, body.digest, body.bytes, body.encoding)
            deliver(database, expected, again, alone)

    if result.is_new:
        world.scheduler.spawn(world.scheduler.current().process, keep, delay=0.2)
    return result


@replaces(routes, "ingest_update", lambda plan, _: plan.two_mouthed)
def acknowledges_other_bytes(
    deliver: Any, database: Any, expected: ExpectedUpdate, body: ReceivedBody, group_commit: GroupCommit
) -> CommitResult:
    """A second update of a round is acknowledged, whatever its bytes."""
    try:
        result: CommitResult = deliver(database, expected, body, group_commit)
    except UploadConflict:
        with database.read() as session:
            moment = federation(session, expected.member.federation_id).created_at
        return CommitResult(
            Receipt(
                digest=body.digest,
                received_at=moment,
                bytes=body.bytes,
                round=expected.round_number,
                client=expected.member.client_id,
                clipped=False,
            )
        )
    return result


@mutant(rounds_end_early)
@contextmanager
def takes_updates_after_closing_began() -> Iterator[None]:
    """Updates count until the round is over."""
    until_the_end = frozenset({"open", "collecting", "closing", "aggregating", "published"})
    with patch.object(ingest, "ACCEPTING", until_the_end), patch.object(commit, "ACCEPTING", until_the_end):
        yield


@replaces(ingest, "commit_updates")
def keeps_only_the_first_of_several(
    _: Any, database: Any, updates: Sequence[ValidatedUpdate]
) -> list[CommitResult]:
    """One update of a group commit is stored, and all get receipts."""
    (receipt_kept,) = commit.commit_updates(database, updates[:1])
    others = [
        receipt_kept.receipt.model_copy(
            update={
                "digest": update.received.digest,
                "bytes": update.received.size,
                "client": update.member.client_id,
            }
        )
        for update in updates[1:]
    ]
    return [receipt_kept, *(CommitResult(receipt, is_new=True) for receipt in others)]
