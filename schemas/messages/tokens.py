"""Messages about people's tokens, the audit log and the coordinator's greeting."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from schemas.messages.base import Digest, Lenient, Strict, UtcTime
from schemas.messages.names import PersonName

PersonRole = Literal["admin", "operator", "auditor"]


class TokenRequest(Strict):
    """A request for a person's token; `expires_in_seconds` defaults to 90 days, null = never."""

    role: PersonRole
    """The role of the token: `auditor` reads, `operator` runs federations, `admin` creates tokens."""
    name: PersonName
    """The name of the token's owner."""
    expires_in_seconds: Annotated[int, Field(ge=1, le=10 * 365 * 86400)] | None = 90 * 86400
    """The lifetime; null = it never expires."""


class NewToken(Strict):
    """A person's token, returned once."""

    id: str
    """The id of the token, by which it is revoked."""
    role: PersonRole
    """The role of the token."""
    name: str
    """The name of the token's owner."""
    token: str
    """The secret."""
    expires_at: UtcTime | None
    """The time at which it expires; null = never."""


class TokenView(Strict):
    """A person's token in a listing, without its secret."""

    id: str
    """The id of the token."""
    role: PersonRole
    """The role of the token."""
    name: str
    """The name of the token's owner."""
    created_at: UtcTime
    """The time at which it was created."""
    expires_at: UtcTime | None
    """The time at which it expires; null = never."""
    revoked_at: UtcTime | None
    """The time at which it was revoked; null = it is valid."""


class TokenPage(Strict):
    """A page of tokens; `next` is the cursor of the next page, null on the last."""

    items: list[TokenView]
    """The tokens."""
    next: str | None
    """The cursor of the next page, to be sent as `after`; null on the last."""


class AuditEntry(Lenient):
    """One entry of the audit log; `actor` is the id of a person's token, a client or an enrolment token, or
    `coordinator` for what it does by itself.
    """

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
    """The number of the last entry."""
    hash: Digest
    """The hash of the last entry."""
    at: UtcTime
    """The coordinator's time."""
    signature: str
    """The coordinator's signature of the other members."""


class AuditName(Strict):
    """The name behind an id in the audit log."""

    name: str
    """The name of a person, client or federation; of an enrolment token that of its client."""
    federation: str | None = None
    """The name of the federation of a client or an enrolment token; null for others."""


class AuditPage(Strict):
    """A page of audit entries in order, the cursor of the next page, and the current end of the log."""

    items: list[dict[str, JsonValue]]
    """The entries, oldest first."""
    next: str | None
    """The cursor of the next page, to be sent as `after`; null on the last."""
    head: AuditHead | None
    """The end of the log; null if it is empty."""
    names: dict[str, AuditName] = Field(default_factory=dict)
    """The names behind the ids in `items`: present names, and those of removed federations. They are not part
    of the hash chain.
    """


class Hello(Strict):
    """The coordinator's identity, signed with its key.

    `nonce` is signed by a new client within the hour; `challenge` repeats the caller's, which proves
    freshness. `root_path` and `authority` show a client whether a proxy changes what signatures cover.
    """

    name: str
    """The name of the coordinator, `TESSERA_NAME`."""
    protocol_version: int
    """The version of the protocol that it speaks."""
    capabilities: tuple[str, ...] = ()
    """Its capabilities beyond the protocol's first version, such as `secure-sum-3`."""
    server_time: UtcTime
    """The coordinator's time."""
    signing_key: str
    """The coordinator's public key, base64url."""
    nonce: str
    """A value that a new client signs when it enrols."""
    challenge: str | None
    """The value that the caller sent."""
    root_path: str = ""
    """The path in front of all paths in the URLs that clients use, which signatures cover; "" = none."""
    authority: str | None = None
    """The Host field with which this request arrived, which signatures cover."""
    signature: str
    """The coordinator's signature of the other members."""
