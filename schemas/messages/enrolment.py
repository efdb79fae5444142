"""How a client becomes a member, and how clients are shown."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from schemas.messages.base import BaseModelSlug, Digest, Lenient, Strict, UtcTime, wrong
from schemas.messages.federations import ALL_ROLES, Role
from schemas.messages.names import NewName

Shape = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]


def _few(shapes: object) -> object:
    """Refuse more shapes than there are roles before any is validated: each would be a fault of its own.

    What stands behind a validator is no JSON any more, so that lists have to become tuples here.
    """
    if not isinstance(shapes, dict):
        return shapes
    if len(shapes) > len(ALL_ROLES):
        raise ValueError(f"there are {len(ALL_ROLES)} roles")
    return {role: tuple(shape) if isinstance(shape, list) else shape for role, shape in shapes.items()}


class Profile(Lenient):
    """What a client runs. `shapes` gives (d_out, d_in) per role and is needed for LoRA tensors."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    architecture: Annotated[str, Field(min_length=1, max_length=100)]
    base_model: BaseModelSlug
    hidden_size: Annotated[int, Field(ge=1)]
    layers: Annotated[int, Field(ge=1, le=10_000)]
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=len(ALL_ROLES), fail_fast=True)] = (
        ALL_ROLES
    )
    shapes: Annotated[dict[Role, Shape], BeforeValidator(_few)] | None = None
    agent_version: Annotated[str, Field(max_length=100)]
    protocol_version: int

    @model_validator(mode="after")
    def _stays_small(self) -> Self:
        if len(self.model_extra or {}) > 20 or len(self.model_dump_json()) > 8192:
            raise ValueError("a profile has at most 20 further members and 8 KiB")
        return self


def _network(text: str) -> str:
    """Check a network, `192.0.2.0/24` or `2001:db8::/32`."""
    return str(ip_network(text))


class EnrolmentTokenRequest(Strict):
    """Ask for a one-time token for one client.

    With `cidr` only addresses of that network may use it, with `base_model` only a client of that model.

    With `replace` it takes the place of one that nobody has used, which ends: it was lost, or seen by others.
    """

    client_name: NewName
    organisation: NewName | None = None
    cidr: Annotated[str, Field(max_length=50), AfterValidator(_network)] | None = None
    base_model: BaseModelSlug | None = None
    expires_in_seconds: Annotated[int, Field(ge=1, le=7 * 86400)] = 86400
    replace: bool = False


class EnrolmentToken(Strict):
    """A one-time token, shown once."""

    token: str
    expires_at: UtcTime


class EnrolmentRequest(Lenient):
    """Become a member, with a key of one's own or, where the plan allows it, with a bearer credential.

    With a key: `public_key` (32 bytes), `nonce` from /v1/hello, and `proof`, the signature of
    `enrolment_statement`; the same token and key may be sent again. As a bearer client: `retry_key`
    (32 bytes) makes a lost answer repeatable. All in base64url.
    """

    token: Annotated[str, Field(max_length=512)]
    name: NewName
    profile: Profile
    public_key: Annotated[str, Field(max_length=64)] | None = None
    nonce: Annotated[str, Field(max_length=64)] | None = None
    proof: Annotated[str, Field(max_length=128)] | None = None
    retry_key: Annotated[str, Field(max_length=44, pattern=r"^[A-Za-z0-9_-]{43}=?$")] | None = None

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        if self.public_key is None:
            return self
        for field in ("nonce", "proof"):
            if getattr(self, field) is None:
                raise wrong("a public_key needs it", field)
        return self


def enrolment_statement(*, server: str, token: str, public_key: str, nonce: str) -> dict[str, str]:
    """Say what a newcomer signs: the server's thumbprint and the token's id, both as the token has them."""
    return {"server": server, "token": token, "public_key": public_key, "nonce": nonce}


class Enrolment(Strict):
    """What a new member is told; `credential` is a bearer client's secret, null for a client with a key."""

    client_id: str
    federation_id: str
    credential: str | None
    protocol_version: int


class KeyRotation(Strict):
    """Replace one's key: `proof` of the new key and `endorsement` of the old over `rotation_statement`.

    The old key counts for `overlap_seconds` more.
    """

    public_key: Annotated[str, Field(max_length=64)]
    proof: Annotated[str, Field(max_length=128)]
    endorsement: Annotated[str, Field(max_length=128)]
    overlap_seconds: Annotated[int, Field(ge=0, le=86400)] = 3600


def rotation_statement(*, federation: str, client: str, old_key: str, public_key: str) -> dict[str, str]:
    """Say what both keys of a rotation sign."""
    return {"federation": federation, "client": client, "old_key": old_key, "public_key": public_key}


class KeyInUse(Strict):
    """A client's new key, and until when the old one counts."""

    public_key: str
    old_key_expires_at: UtcTime


class Traffic(Strict):
    """Encoded body bytes, up from and down to clients."""

    up: int = 0
    down: int = 0


class Client(Strict):
    """A client as people see it; `identity` is how it proves who it is."""

    client_id: str
    name: str
    organisation: str | None
    profile: Profile
    state: Literal["enrolled", "revoked"]
    identity: Literal["key", "bearer"]
    enrolled_at: UtcTime
    last_seen_at: UtcTime | None
    rounds: int
    bytes: Traffic


class ClientPage(Strict):
    """Some clients, and where the next page starts."""

    items: list[Client]
    next: str | None


class RosterEntry(Lenient):
    """One link of a federation's roster; `previous` is the hash of the one before, null for the first.

    `public_key` is the client's from then on: null for a bearer client, and when it was revoked. A rotation
    has the old key's `endorsement` of `rotation_statement`.
    """

    federation: str
    version: int
    event: Literal["enrolled", "rotated", "revoked"]
    client: str
    name: str
    organisation: str | None
    public_key: str | None
    endorsement: str | None
    at: UtcTime
    previous: Digest | None


class RosterPage(Strict):
    """Some links of the chain in order, and where the next page starts."""

    items: list[dict[str, JsonValue]]
    next: str | None


class Me(Strict):
    """What a client is told about itself; `layout` is empty until its alignment pack is stored."""

    client_id: str
    name: str
    organisation: str | None
    federation_id: str
    state: Literal["enrolled", "revoked"]
    layout: dict[str, tuple[int, ...]]
