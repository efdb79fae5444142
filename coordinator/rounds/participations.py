"""The rows of who takes part in which round, and of what its part costs. One function per question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.orm import Session

from coordinator.db.engine import Database, run
from coordinator.db.tables.federations import ClientRow, ParticipationRow, RoundRow, SignatureRow
from coordinator.db.upsert import insert_new
from coordinator.observability.fault_points import may_crash
from coordinator.observability.metrics import Metrics
from coordinator.strategies.base import Sketch

_OF_CLIENT = (ParticipationRow.round_id == bindparam("round")) & (
    ParticipationRow.client_id == bindparam("client")
)
_BYTES = {
    "bytes_up": ParticipationRow.bytes_up + bindparam("up"),
    "bytes_down": ParticipationRow.bytes_down + bindparam("down"),
}
_PART = select(ParticipationRow.state, ParticipationRow.base_digest).where(_OF_CLIENT)
_BEFORE = (
    select(ParticipationRow.state)
    .join(RoundRow, RoundRow.id == ParticipationRow.round_id)
    .where(
        RoundRow.federation_id == bindparam("federation_id"),
        RoundRow.number < bindparam("number"),
        ParticipationRow.client_id == bindparam("client"),
    )
    .order_by(RoundRow.number.desc())
    .limit(2)
)
_SIGN = insert(SignatureRow)
_MARK = update(ParticipationRow).where(_OF_CLIENT).values(state=bindparam("now"))
_ARRIVE = update(ParticipationRow).where(_OF_CLIENT).values(state="arrived", **_BYTES)
_COUNT = update(ParticipationRow).where(_OF_CLIENT).values(**_BYTES)
_COUNT_ALTOGETHER = (
    update(ClientRow)
    .where(ClientRow.id == bindparam("client"))
    .values(
        bytes_up=ClientRow.bytes_up + bindparam("up"), bytes_down=ClientRow.bytes_down + bindparam("down")
    )
)


@dataclass(frozen=True, slots=True)
class Taking:
    """A client's part in a round: how it went, and the name of the weights it was told to start from."""

    state: str
    base_digest: str


def of(session: Session, round_id: int, client_id: str) -> Taking | None:
    """Did this client join?"""
    found = run(session, _PART, {"round": round_id, "client": client_id}).first()
    return Taking(*found) if found is not None else None


def before(session: Session, row: RoundRow, client_id: str) -> list[str]:
    """How did a client's last two parts in rounds before this one go, the newest first?"""
    which = {"federation_id": row.federation_id, "number": row.number, "client": client_id}
    return list(run(session, _BEFORE, which).scalars())


def join(
    session: Session,
    round_id: int,
    client_id: str,
    base_digest: str,
    now: datetime,
    *,
    is_waited_for: bool = True,
) -> None:
    """Let a client take part, if it does not yet."""
    insert_new(
        session,
        ParticipationRow,
        {
            "round_id": round_id,
            "client_id": client_id,
            "state": "joined",
            "joined_at": now,
            "base_digest": base_digest,
            "bytes_up": 0,
            "bytes_down": 0,
            "reject_reason": None,
            "is_waited_for": is_waited_for,
        },
    )


def keep_signature(session: Session, row: RoundRow, client_id: str, origin: str, sent: Sketch) -> None:
    """Keep a client's signature; `origin` is `join` or `update`."""
    run(
        session,
        _SIGN,
        {
            "federation_id": row.federation_id,
            "round_id": row.id,
            "round_number": row.number,
            "client_id": client_id,
            "origin": origin,
            "vector": sent.vector.astype("<f4").tobytes(),
            "reliability": sent.reliability,
            "epsilon": sent.epsilon,
        },
    )


def count_bytes(
    session: Session, round_id: int | None, client_id: str, *, up: int = 0, down: int = 0
) -> None:
    """Add encoded bytes to what a client sent and was sent, altogether and in a round it takes part in."""
    counted = {"client": client_id, "up": up, "down": down}
    if round_id is not None:
        run(session, _COUNT, {"round": round_id, **counted})
    run(session, _COUNT_ALTOGETHER, counted)


def arrive(session: Session, round_id: int, sizes: Mapping[str, int]) -> None:
    """Say that these clients' updates are in, and count the encoded bytes of each."""
    counted = [{"client": client, "up": sizes[client], "down": 0} for client in sorted(sizes)]
    run(session, _ARRIVE, [{"round": round_id, **one} for one in counted])
    run(session, _COUNT_ALTOGETHER, counted)


def mark(session: Session, round_id: int, client_id: str, state: str) -> None:
    """Say how a client's part in a round went."""
    run(session, _MARK, {"round": round_id, "client": client_id, "now": state})


def sent_to(
    database: Database, metrics: Metrics, client_id: str, size: int, *, round_id: int | None = None
) -> None:
    """Count a body before it leaves, so that who has read the last byte already finds it counted."""
    if not size:
        return
    with database.write() as session:
        count_bytes(session, round_id, client_id, down=size)
    may_crash("download-counted")
    metrics.bytes_down.inc(size)
