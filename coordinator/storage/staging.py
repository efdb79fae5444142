"""Payloads that a job stages before it publishes them, all of which are discarded if it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from coordinator.db.engine import Database
from coordinator.observability.logs import logger
from coordinator.storage import payloads
from coordinator.storage.payloads import StagedPayload

_PIECE_BYTES = 8 * 2**20  # of a transaction

log = logger(__name__)


class Staging:
    """The staged payloads of a job; those that it has not adopted are discarded at the end of the block.

    Args:
        between: the job calls it after each piece of its work; it extends a lease, or raises to end the job.
        block_bytes: the memory that the job may use for values.
    """

    def __init__(self, database: Database, between: Callable[[], None], block_bytes: int) -> None:
        self.database = database
        self.between = between
        self.block_bytes = block_bytes
        self._staged: dict[int, StagedPayload] = {}
        self._is_adopted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error adopted payloads are discarded as well: if their transaction was rolled back they are
        # unfinished again, and otherwise `payloads.discard` leaves them alone.
        if kind is not None or not self._is_adopted:
            self.discard([*self._staged.values()])

    def stage(self) -> StagedPayload:
        return self.stage_all([b""])[0]

    def stage_all(self, beginnings: Sequence[bytes]) -> list[StagedPayload]:
        """Begin payloads with these bytes, in one transaction."""
        with self.database.write() as session:
            staged = [payloads.stage(session) for _ in beginnings]
            for payload, beginning in zip(staged, beginnings, strict=True):
                if beginning:
                    payload.append(session, beginning)
        # Not before the commit: after a rollback these ids may be those of another job.
        self._staged |= {payload.payload_id: payload for payload in staged}
        return staged

    def stage_body(self, body: bytes) -> StagedPayload:
        """Write a body as a staged payload, in short transactions."""
        staged, content = self.stage(), memoryview(body)
        for offset in range(0, len(content), _PIECE_BYTES):
            with self.database.write() as session:
                staged.append(session, content[offset : offset + _PIECE_BYTES])
        return staged

    def discard(self, staged: Iterable[StagedPayload]) -> None:
        """Delete staged payloads that will not be published.

        A failing database is only logged: often another error is being raised, and garbage collection deletes
        the payloads later.
        """
        payloads_by_id = {payload.payload_id: payload for payload in staged}
        for payload_id in payloads_by_id:
            self._staged.pop(payload_id, None)
        try:
            payloads.discard(self.database, payloads_by_id.values())
        except SQLAlchemyError as error:
            log.warning("discarding-failed", bodies=len(payloads_by_id), error=type(error).__name__)

    def adopt(self, session: Session) -> dict[int, int]:
        """Finish all payloads that are staged; return by id their ids, or those of older equal payloads."""
        self._is_adopted = True
        return payloads.adopt_all(session, self._staged.values())
