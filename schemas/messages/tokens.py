"""Tokens of people, and the coordinator's greeting."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from schemas.messages.base import Digest, Lenient, Strict, UtcTime
from schemas.messages.names import NewName

PersonRole = Literal["admin", "operator", "auditor"]


class TokenRequest(Strict):
    """Ask for a person's token; it ends after 90 days, or never where that is null."""

    role: PersonRole
    name: NewName
    expires_in_seconds: Annotated[int, Field(ge=1, le=10 * 365 * 86400)] | None = 90 * 86400


class NewToken(Strict):
    """A person's token, shown once."""

    id: str
    role: PersonRole
    name: str
    token: str
    expires_at: UtcTime | None


class TokenView(Strict):
    """A person's token as it is listed: never the token itself."""

    id: str
    role: PersonRole
    name: str
    created_at: UtcTime
    expires_at: UtcTime | None
    revoked_at: UtcTime | None


class TokenPage(Strict):
    """Some tokens, and where the next page starts."""

    items: list[TokenView]
    next: str | None


class AuditEntry(Lenient):
    """One link of the audit log: `actor` is a person's token, a client or an enrolment token, by id."""

    number: int
    at: UtcTime
    event: str
    actor: str
    subject: str
    reason: str | None
    previous: Digest | None


class AuditHead(Strict):
    """Where the chain ended at a time, signed by the coordinator: who keeps it proves later that it stood.

    `hash` is that of entry `number`, so of all before it.
    """

    number: int
    hash: Digest
    at: UtcTime
    signature: str


class AuditPage(Strict):
    """Some links of the chain in order, where the next page starts, and where the chain ends now."""

    items: list[dict[str, JsonValue]]
    next: str | None
    head: AuditHead | None


class Hello(Strict):
    """Who answers here, signed with the coordinator's key over what was asked.

    `nonce` is what a newcomer signs within the hour; `challenge` is the caller's, so that the answer is new.
    """

    name: str
    protocol_version: int
    server_time: UtcTime
    signing_key: str
    nonce: str
    challenge: str | None
    signature: str
