"""Store participations: the state of each client in each round, its sketch and its traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from operator import attrgetter, itemgetter

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.orm import Session

from coordinator.db.engine import Database, run
from coordinator.db.tables.federations import ClientRow, ParticipationRow, RoundRow, SignatureRow
from coordinator.db.upsert import insert_new
from coordinator.observability.fault_points import may_crash
from coordinator.observability.metrics import Metrics
from coordinator.strategies.base import Sketch

_IS_CLIENT = (ParticipationRow.round_id == bindparam("round")) & (
    ParticipationRow.client_id == bindparam("client")
)
_BYTES = {
    "bytes_up": ParticipationRow.bytes_up + bindparam("up"),
    "bytes_down": ParticipationRow.bytes_down + bindparam("down"),
}
_PARTICIPATION = select(ParticipationRow.state, ParticipationRow.base_digest).where(_IS_CLIENT)
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
_INSERT_SKETCH = insert(SignatureRow)
_SET_STATE = update(ParticipationRow).where(_IS_CLIENT).values(state=bindparam("new_state"))
_ARRIVE = update(ParticipationRow).where(_IS_CLIENT).values(state="arrived", **_BYTES)
_COUNT = update(ParticipationRow).where(_IS_CLIENT).values(**_BYTES)
_COUNT_TOTAL = (
    update(ClientRow)
    .where(ClientRow.id == bindparam("client"))
    .values(
        bytes_up=ClientRow.bytes_up + bindparam("up"), bytes_down=ClientRow.bytes_down + bindparam("down")
    )
)


@dataclass(frozen=True, slots=True)
class Participation:
    """A client's state in a round, and the digest of the weights from which it trains."""

    state: str
    base_digest: str


@dataclass(frozen=True, slots=True)
class _Download:
    client_id: str
    round_id: int | None
    size: int


def get(session: Session, round_id: int, client_id: str) -> Participation | None:
    row = run(session, _PARTICIPATION, {"round": round_id, "client": client_id}).first()
    return Participation(*row) if row is not None else None


def earlier_states(session: Session, row: RoundRow, client_id: str) -> list[str]:
    """Return the states of a client's last two participations before this round, newest first."""
    parameters = {"federation_id": row.federation_id, "number": row.number, "client": client_id}
    return list(run(session, _BEFORE, parameters).scalars())


def join(
    session: Session,
    round_id: int,
    client_id: str,
    base_digest: str,
    now: datetime,
    *,
    is_waited_for: bool = True,
) -> None:
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


def store_sketch(session: Session, row: RoundRow, client_id: str, origin: str, sketch: Sketch) -> None:
    run(
        session,
        _INSERT_SKETCH,
        {
            "federation_id": row.federation_id,
            "round_id": row.id,
            "round_number": row.number,
            "client_id": client_id,
            "origin": origin,
            "vector": sketch.vector.astype("<f4").tobytes(),
            "reliability": sketch.reliability,
            "epsilon": sketch.epsilon,
        },
    )


def count_upload(session: Session, round_id: int | None, client_id: str, size: int) -> None:
    """Add encoded bytes to a client's traffic: its total and, if `round_id` is set, that of the round."""
    traffic = {"client": client_id, "up": size, "down": 0}
    if round_id is not None:
        run(session, _COUNT, {"round": round_id, **traffic})
    run(session, _COUNT_TOTAL, traffic)


def mark_arrived(session: Session, round_id: int, sizes: Mapping[str, int]) -> None:
    # In one order, since concurrent commits would deadlock otherwise.
    traffic = [{"client": client_id, "up": sizes[client_id], "down": 0} for client_id in sorted(sizes)]
    run(session, _ARRIVE, [{"round": round_id, **values} for values in traffic])
    run(session, _COUNT_TOTAL, traffic)


def set_state(session: Session, round_id: int, client_id: str, state: str) -> None:
    run(session, _SET_STATE, {"round": round_id, "client": client_id, "new_state": state})


def count_download(
    database: Database, metrics: Metrics, client_id: str, size: int, *, round_id: int | None = None
) -> None:
    """Count a body before it is sent, so that a client that has read its last byte finds it counted."""
    if not size:
        return
    download = _Download(client_id, round_id, size)
    database.small_commits.run("downloads", download, partial(_count_downloads, database))
    may_crash("download-counted")
    metrics.bytes_down.inc(size)


def _count_downloads(database: Database, downloads: Sequence[_Download]) -> list[None]:
    """Count downloads that begin at the same time in one transaction."""
    # Participations first, both in the order of clients, as in `mark_arrived`: concurrent commits would
    # deadlock otherwise.
    traffic = [
        (download.round_id, {"client": download.client_id, "up": 0, "down": download.size})
        for download in sorted(downloads, key=attrgetter("client_id"))
    ]
    of_rounds = [{"round": round_id, **values} for round_id, values in traffic if round_id is not None]
    with database.write() as session:
        if of_rounds:
            run(session, _COUNT, sorted(of_rounds, key=itemgetter("round", "client")))
        run(session, _COUNT_TOTAL, [values for _, values in traffic])
    return [None] * len(downloads)
