"""Faults planted in how an update is acknowledged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from tempfile import SpooledTemporaryFile
from typing import Any
from unittest.mock import patch

from coordinator.errors import UploadConflict
from coordinator.federations.store import federation
from coordinator.http.uploads import ReceivedBody
from coordinator.updates import commit, ingest, routes
from coordinator.updates.commit import CommitResult, ValidatedUpdate
from coordinator.updates.group_commit import GroupCommit
from coordinator.updates.ingest import ExpectedUpdate
from schemas.messages.updates import Receipt


class _Undo(Exception):
    """What was done is not kept."""


class _Rehearsal:
    """A database in which nothing that is written stays."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @contextmanager
    def write(self) -> Iterator[Any]:
        with suppress(_Undo), self._database.write() as session:
            yield session
            raise _Undo


@contextmanager
def answers_before_the_commit() -> Iterator[None]:
    """The receipt leaves, and soon after the update is kept, if the replica lives that long."""
    deliver = routes.ingest_update

    def early(database: Any, expected: ExpectedUpdate, body: ReceivedBody, _: GroupCommit) -> CommitResult:
        body.file.seek(0)
        content = body.file.read()
        told = deliver(_Rehearsal(database), expected, body, GroupCommit(max_leaders=1, max_batch=1))  # type: ignore[arg-type]
        world = database.host

        def keep() -> None:
            with suppress(Exception), SpooledTemporaryFile[bytes](max_size=2**20) as copy:
                copy.write(content)
                again = ReceivedBody(copy, body.digest, body.bytes, body.encoding)
                deliver(database, expected, again, GroupCommit(max_leaders=1, max_batch=1))

        if told.is_new:
            world.scheduler.spawn(world.scheduler.current().process, keep, delay=0.2)
        return told

    with patch.object(routes, "ingest_update", early):
        yield


@contextmanager
def acknowledges_other_bytes() -> Iterator[None]:
    """Whoever delivers a second time is told that it is well."""
    deliver = routes.ingest_update

    def polite(
        database: Any, expected: ExpectedUpdate, body: ReceivedBody, group_commit: GroupCommit
    ) -> CommitResult:
        try:
            return deliver(database, expected, body, group_commit)
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

    with patch.object(routes, "ingest_update", polite):
        yield


@contextmanager
def takes_updates_after_closing() -> Iterator[None]:
    """Updates count until the round is over."""
    until_the_end = frozenset({"open", "collecting", "closing", "aggregating", "published"})
    with (
        patch.object(ingest, "ACCEPTING", until_the_end),
        patch.object(commit, "ACCEPTING", until_the_end),
    ):
        yield


@contextmanager
def keeps_only_the_first_of_several() -> Iterator[None]:
    """Of updates that are kept together one is written, and all get receipts."""

    def first(database: Any, updates: Sequence[ValidatedUpdate]) -> list[CommitResult]:
        (kept,) = commit.commit_updates(database, updates[:1])
        others = [
            kept.receipt.model_copy(
                update={
                    "digest": one.received.digest,
                    "bytes": one.received.size,
                    "client": one.member.client_id,
                }
            )
            for one in updates[1:]
        ]
        return [kept, *(CommitResult(receipt, is_new=True) for receipt in others)]

    with patch.object(ingest, "commit_updates", first):
        yield
