"""Messages about people's tokens, the audit log and the coordinator's greeting."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from schemas.messages.base import Digest, Lenient, Strict, UtcTime
from schemas.messages.names import NewName

PersonRole = Literal["admin", "operator", "auditor"]


class TokenRequest(Strict):
    """A request for a person's token; `expires_in_seconds` defaults to 90 days, null = never."""

    role: PersonRole
    name: NewName
    expires_in_seconds: Annotated[int, Field(ge=1, le=10 * 365 * 86400)] | None = 90 * 86400


class NewToken(Strict):
    """A person's token, returned once."""

    id: str
    role: PersonRole
    name: str
    token: str
    expires_at: UtcTime | None


class TokenView(Strict):
    """A person's token in a listing, without its secret."""

    id: str
    role: PersonRole
    name: str
    created_at: UtcTime
    expires_at: UtcTime | None
    revoked_at: UtcTime | None


class TokenPage(Strict):
    """A page of tokens; `next` is the cursor of the next page, null on the last."""

    items: list[TokenView]
    next: str | None


class AuditEntry(Lenient):
    """One entry of the audit log; `actor` is the id of a person's token, a client or an enrolment token."""

    number: int
    at: UtcTime
    event: str
    actor: str
    subject: str
    reason: str | None
    previous: Digest | None


class AuditHead(Strict):
    """The end of the audit log at a time, signed by the coordinator; a stored head proves what was logged.

    `hash` is that of entry `number`, and so covers all entries before it.
    """

    number: int
    hash: Digest
    at: UtcTime
    signature: str


class AuditPage(Strict):
    """A page of audit entries in order, the cursor of the next page, and the current end of the log."""

    items: list[dict[str, JsonValue]]
    next: str | None
    head: AuditHead | None


class Hello(Strict):
    """The coordinator's identity, signed with its key.

    `nonce` is signed by a new client within the hour; `challenge` repeats the caller's, which proves
    freshness.
    """

    name: str
    protocol_version: int
    server_time: UtcTime
    signing_key: str
    nonce: str
    challenge: str | None
    signature: str
