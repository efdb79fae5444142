"""Tables of keys, names, nonces, the roster and the audit log. No row holds a secret."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.db.tables.federations import Table


class ClientKeyRow(Table):
    """A client's public key (base64url), valid until it expires or its client is revoked."""

    __tablename__ = "client_keys"

    public_key: Mapped[str] = mapped_column(primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]


class UsedNonceRow(Table):
    """The nonce of a received request, which must not be received again."""

    __tablename__ = "used_nonces"

    public_key: Mapped[str] = mapped_column(primary_key=True)
    nonce: Mapped[str] = mapped_column(primary_key=True)
    used_at: Mapped[datetime] = mapped_column(index=True)


class FailedEnrolmentRow(Table):
    """A failed enrolment or bearer token, by address, IPv6 network or token."""

    __tablename__ = "failed_enrolments"

    origin: Mapped[str] = mapped_column(primary_key=True)
    failed_at: Mapped[datetime] = mapped_column(primary_key=True, index=True)


class SignedOutTokenRow(Table):
    """An ID token whose person signed out, by the digest of what the provider signed, until it expires."""

    __tablename__ = "signed_out_tokens"

    digest: Mapped[str] = mapped_column(primary_key=True)
    expires_at: Mapped[datetime] = mapped_column(index=True)


class NameKeyRow(Table):
    """A key of a name in use: names that can be taken for each other have one in common.

    `scope` is the federation of clients and organisations, "" for names of federations and people.
    """

    __tablename__ = "name_keys"

    scope: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]


class ServerIdentityRow(Table):
    """The public key of this coordinator; the private one is never in the database."""

    __tablename__ = "server_identity"

    id: Mapped[int] = mapped_column(primary_key=True)
    public_key: Mapped[str]
    created_at: Mapped[datetime]


class RosterRow(Table):
    """An entry of a federation's roster: documents, each with the hash of the previous one."""

    __tablename__ = "roster"

    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"))
    at: Mapped[datetime]
    document: Mapped[dict[str, Any]]
    hash: Mapped[str]


class ManifestRow(Table):
    """The signed manifest that a client got when it joined a round."""

    __tablename__ = "round_manifests"

    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True)
    document: Mapped[dict[str, Any]]
    hash: Mapped[str]


class AuditRow(Table):
    """An entry of the audit log: documents, each with the hash of the previous one."""

    __tablename__ = "audit"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    document: Mapped[dict[str, Any]]
    hash: Mapped[str]
