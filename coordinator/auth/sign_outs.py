"""Refuse the ID tokens of people who signed out, on all replicas, until the tokens expire by themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import Connection, bindparam, select
from sqlalchemy.orm import Session

from coordinator.db.engine import Database, database_time, run
from coordinator.db.tables.identity import SignedOutTokenRow
from coordinator.db.upsert import delete_before, insert_new
from coordinator.errors import CredentialInvalid

# A token is accepted for 30 s after its end, by the clock of each replica.
_MARGIN = timedelta(hours=1)
_DIGEST = select(SignedOutTokenRow.digest).where(SignedOutTokenRow.digest == bindparam("digest"))


def digest_of(token: str) -> str:
    """Return the SHA-256 of what the provider signed: a token without its signature."""
    # The holder of a token can derive a second valid signature: (r, n - s) from ECDSA's (r, s).
    return hashlib.sha256(token.rpartition(".")[0].encode()).hexdigest()


def add(session: Session, digest: str, expires_at: datetime) -> bool:
    """Store that a token is signed out; return False if it was before."""
    return insert_new(session, SignedOutTokenRow, {"digest": digest, "expires_at": expires_at})


def check(connection: Connection | Session, digest: str) -> None:
    """Check that a token is not signed out.

    Raises:
        CredentialInvalid: it is.
    """
    if run(connection, _DIGEST, {"digest": digest}).first() is not None:
        raise CredentialInvalid("This sign-in has ended; sign in again.")


def among(session: Session, digests: Collection[str]) -> set[str]:
    """Return those of the digests whose tokens are signed out."""
    return set(session.scalars(select(SignedOutTokenRow.digest).where(SignedOutTokenRow.digest.in_(digests))))


def delete_expired(database: Database) -> int:
    """Delete one batch of tokens that have expired; return the number of deleted rows."""
    with database.write() as session:
        return delete_before(session, SignedOutTokenRow.expires_at, database_time(session) - _MARGIN)
