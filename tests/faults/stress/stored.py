"""The content of a database after a federation, independent of the faults of its coordinators."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from coordinator.db.engine import Database
from coordinator.db.tables.federations import (
    ChunkRow,
    ClientRow,
    EnrolmentTokenRow,
    ParticipationRow,
    PayloadRow,
    RoundRow,
    Table,
    UpdateRow,
    WeightsRow,
)
from coordinator.db.tables.identity import AuditRow, ClientKeyRow, ManifestRow, RosterRow, ServerIdentityRow
from coordinator.db.tables.secure_sum import SumMessageRow, SumSessionRow
from coordinator.secure_sum.totals import summed_total
from coordinator.storage import payloads
from coordinator.storage.garbage_collection import collect
from schemas.identity.documents import hash_of, is_signed
from schemas.identity.keys import public_key
from schemas.messages.enrolment import RosterEntry
from schemas.messages.rounds import RoundManifest
from schemas.wire.digests import digest_of

Published = dict[tuple[str, int], str]
"""The digest of what was served, by the client's name and the round: of its values, as its head names ids."""

Served = Mapping[str, Mapping[int, str]]
"""The digests of the bytes that clients were served, by public key and round."""


def check_stored(database_url: str, federation_id: str, served: Served, *, rounds: int) -> None:
    """Check all that clients and rounds have left, after deleting what nobody refers to.

    All members took part in all rounds, and each pulled its weights in all of them and at the end.

    Raises:
        AssertionError: something is lost, doubled, changed or left over.
    """
    with _checked(database_url, federation_id, served) as session:
        _check_rounds(session, federation_id, len(served), rounds)
        names = session.scalars(select(ClientRow.name).where(ClientRow.federation_id == federation_id))
        assert set(published(session)) == set(product(names, range(1, rounds + 2)))


def check_sums(
    database_url: str, federation_id: str, served: Served, totals: Mapping[int, NDArray[np.int64]]
) -> None:
    """Check what the sums of a federation have left: each total once and exact, and no message.

    `totals` are the sums of the clients' inputs by round; the other rounds were abandoned.

    Raises:
        AssertionError: something is lost, doubled, changed or left over.
    """
    with _checked(database_url, federation_id, served) as session:
        _check_totals(session, federation_id, totals)


@contextmanager
def _checked(database_url: str, federation_id: str, served: Served) -> Iterator[Session]:
    """Check what every federation leaves, and let the block look at more."""
    with closing(Database(database_url)) as database:
        while collect(database, grace=timedelta(0)):
            pass
        with database.read() as session:
            members = _members(session, federation_id)
            assert sorted(members) == sorted(served), "somebody else is a member, or a member is not"
            _check_tokens(session, federation_id, members.values())
            _check_roster(session, federation_id)
            _check_audit(session)
            for key, client in members.items():
                _check_manifests(session, federation_id, client, served[key])
            _check_payloads(session)
            yield session


def _check_totals(session: Session, federation_id: str, totals: Mapping[int, NDArray[np.int64]]) -> None:
    assert not list(session.scalars(select(SumMessageRow))), "a message is left"
    rounds = session.execute(
        select(RoundRow.id, RoundRow.number, RoundRow.state).where(RoundRow.federation_id == federation_id)
    ).all()
    assert {number for _, number, state in rounds if state == "published"} == set(totals)
    for round_id, number, state in rounds:
        done = select(SumSessionRow.id).where(
            SumSessionRow.round_id == round_id, SumSessionRow.state == "done"
        )
        assert len(list(session.scalars(done))) == (1 if state == "published" else 0)
        states = set(
            session.scalars(select(ParticipationRow.state).where(ParticipationRow.round_id == round_id))
        )
        assert states == ({"arrived"} if state == "published" else {"rejected"})
        if state == "published":
            total = summed_total(session, round_id)
            octets = payloads.read(session, total.payload_id, 0, 4 * total.terms.values)
            assert np.array_equal(np.frombuffer(octets, "<i4"), totals[number]), (
                f"the total of round {number}"
            )


def _members(session: Session, federation_id: str) -> dict[str, str]:
    """Return the ids of a federation's clients by public key."""
    query = select(ClientKeyRow.public_key, ClientRow.id).join(
        ClientRow, ClientRow.id == ClientKeyRow.client_id
    )
    keys = session.execute(query.where(ClientRow.federation_id == federation_id)).all()
    assert len(keys) == len({client for _, client in keys}), "a client has two keys"
    return {key: client for key, client in keys}


def _check_rounds(session: Session, federation_id: str, clients: int, rounds: int) -> None:
    rows = session.execute(
        select(RoundRow.number, RoundRow.state)
        .where(RoundRow.federation_id == federation_id)
        .order_by(RoundRow.number)
    )
    assert [tuple(row) for row in rows] == [(number, "published") for number in range(1, rounds + 1)]
    updates = list(session.scalars(select(UpdateRow).where(UpdateRow.federation_id == federation_id)))
    assert [row.id for row in updates if row.reject_reason is not None] == []
    counted = [(row.client_id, row.round_number) for row in updates]
    assert len(counted) == len(set(counted)) == clients * rounds


def _check_tokens(session: Session, federation_id: str, clients: Iterable[str]) -> None:
    """Nobody got in but by a token of their own."""
    used = select(EnrolmentTokenRow.client_id).where(
        EnrolmentTokenRow.federation_id == federation_id, EnrolmentTokenRow.used_at.is_not(None)
    )
    assert sorted(map(str, session.scalars(used))) == sorted(clients)


def _check_roster(session: Session, federation_id: str) -> None:
    previous: str | None = None
    links = session.scalars(
        select(RosterRow).where(RosterRow.federation_id == federation_id).order_by(RosterRow.version)
    )
    for version, row in enumerate(links, start=1):
        link = RosterEntry.model_validate_json(json.dumps(row.document))
        assert (link.federation, link.version, link.previous) == (federation_id, version, previous), (
            "the roster broke"
        )
        assert row.hash == hash_of(row.document)
        previous = row.hash
    assert previous is not None


def _check_audit(session: Session) -> None:
    previous: str | None = None
    for number, row in enumerate(session.scalars(select(AuditRow).order_by(AuditRow.number)), start=1):
        assert (row.document["number"], row.document["previous"]) == (number, previous), "the audit broke"
        assert row.hash == hash_of(row.document)
        previous = row.hash
    assert previous is not None


def _check_manifests(session: Session, federation_id: str, client: str, served: Mapping[int, str]) -> None:
    """Each round's manifest is signed, names the one before, and names what the client pulled.

    The last one, of what was pulled after all rounds, is made anew whenever it is asked for.
    """
    server = session.scalars(select(ServerIdentityRow.public_key)).one()
    query = select(ManifestRow).where(ManifestRow.client_id == client).order_by(ManifestRow.round_number)
    previous: tuple[int, str] | None = None
    named, roster = {}, 0
    for row in session.scalars(query):
        manifest = RoundManifest.model_validate_json(json.dumps(row.document))
        before = (manifest.previous.round, manifest.previous.hash) if manifest.previous is not None else None
        assert before == previous, f"the manifest of round {manifest.round} does not follow the one before"
        assert is_signed("tessera-round-v1", row.document, manifest.signature, public_key(server))
        assert (manifest.federation, manifest.client, manifest.round) == (
            federation_id,
            client,
            row.round_number,
        )
        assert row.hash == hash_of(row.document)
        assert manifest.roster_version >= roster
        previous, roster = (manifest.round, row.hash), manifest.roster_version
        named[manifest.round] = manifest.weights
    assert named == {number: digest for number, digest in served.items() if number != max(served)}


def _check_payloads(session: Session) -> None:
    """Every payload is whole, in rows or a store, and is referred to; every piece is of a payload."""
    used: set[int] = set()
    for column in _references():
        used.update(session.scalars(select(column).where(column.is_not(None))))
    stored = {row.id: row for row in session.scalars(select(PayloadRow))}
    assert used <= set(stored), "a payload is gone that something refers to"
    assert set(stored) <= used, "a payload is left that nothing refers to"
    assert set(session.scalars(select(ChunkRow.payload_id))) <= set(stored), "a piece of no payload is left"
    for row in stored.values():
        pieces = select(ChunkRow.begin, func.length(ChunkRow.data)).where(ChunkRow.payload_id == row.id)
        at = 0
        for begin, size in session.execute(pieces.order_by(ChunkRow.begin)):
            assert begin == at, "pieces of a payload overlap, or one is missing"
            at += size
        assert at == (row.bytes if row.place is None else 0), "pieces of a moved payload are left, or missing"
        assert row.digest == digest_of(payloads.read(session, row.id, 0, row.bytes))


def _references() -> list[InstrumentedAttribute[int | None]]:
    """Find every column that refers to a payload: whoever collects has a list of them, which may lack one."""
    return [
        getattr(mapper.class_, column.name)
        for mapper in Table.registry.mappers
        for column in mapper.local_table.columns
        if mapper.class_ is not ChunkRow
        and any(key.column.table is PayloadRow.__table__ for key in column.foreign_keys)
    ]


def published(session: Session) -> Published:
    """Read what every client was served in every round.

    Raises:
        AssertionError: it is not what its digest names.
    """
    digests: Published = {}
    query = select(WeightsRow, ClientRow.name).join(ClientRow, ClientRow.id == WeightsRow.client_id)
    for row, name in session.execute(query):
        body = _body(session, row)
        assert digest_of(body) == row.digest, f"weights of round {row.round_number} are something else"
        digests[name, row.round_number] = digest_of(values_of(body))
    return digests


def published_in(database_url: str) -> Published:
    """Read the same from a database that nobody has open here."""
    with closing(Database(database_url)) as database, database.read() as session:
        return published(session)


def values_of(body: bytes) -> bytes:
    """Leave out a body's head, which names federation and client."""
    return body[8 + int.from_bytes(body[:8], "little") :]


def _body(session: Session, row: Any) -> bytes:
    head = row.head or b""
    if row.payload_id is None:
        return bytes(head)
    return bytes(head) + payloads.read(session, row.payload_id, row.begin, row.begin + row.bytes - len(head))
