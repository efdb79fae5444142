"""Messages of enrolment, key rotation and the roster, and the views of a client."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from schemas.messages.base import BaseModelSlug, Digest, Lenient, Strict, UtcTime, field_error
from schemas.messages.federations import ALL_ROLES, Role
from schemas.messages.names import NewName

Shape = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]


def _few(shapes: object) -> object:
    """Reject more shapes than roles before each is validated: every shape would be an error of its own.

    After a validator the value is not JSON any more, so lists become tuples here.
    """
    if not isinstance(shapes, dict):
        return shapes
    if len(shapes) > len(ALL_ROLES):
        raise ValueError(f"there are {len(ALL_ROLES)} roles")
    return {role: tuple(shape) if isinstance(shape, list) else shape for role, shape in shapes.items()}


class Profile(Lenient):
    """A client's model and software. `shapes` maps a role to (d_out, d_in); required for LoRA tensors."""

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
            raise ValueError("a profile may have at most 20 additional members and 8 KiB")
        return self


def _network(text: str) -> str:
    return str(ip_network(text))


class EnrolmentTokenRequest(Strict):
    """A request for a one-time enrolment token for one client.

    `cidr` restricts the token to addresses of a network, `base_model` to clients of that model. `replace`
    voids an unused token of the same name, for example after it was lost or exposed.
    """

    client_name: NewName
    organisation: NewName | None = None
    cidr: Annotated[str, Field(max_length=50), AfterValidator(_network)] | None = None
    base_model: BaseModelSlug | None = None
    expires_in_seconds: Annotated[int, Field(ge=1, le=7 * 86400)] = 86400
    replace: bool = False


class EnrolmentToken(Strict):
    """A one-time token, returned once."""

    token: str
    expires_at: UtcTime


class EnrolmentRequest(Lenient):
    """A request to enrol, with a key or, where the plan allows it, with a bearer credential.

    With a key: `public_key` (32 bytes), `nonce` from /v1/hello, and `proof`, the signature of
    `enrolment_statement`; token and key may be sent again. As a bearer client: `retry_key` (32 bytes) makes a
    lost response repeatable. All are base64url.
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
                raise field_error("is required with public_key", field)
        return self


def enrolment_statement(*, server: str, token: str, public_key: str, nonce: str) -> dict[str, str]:
    """Return the statement that a new client signs; `server` and `token` as in the enrolment token."""
    return {"server": server, "token": token, "public_key": public_key, "nonce": nonce}


class Enrolment(Strict):
    """A successful enrolment; `credential` is a bearer client's secret, null for a client with a key."""

    client_id: str
    federation_id: str
    credential: str | None
    protocol_version: int


class KeyRotation(Strict):
    """A new key of a client: `proof` of the new key and `endorsement` of the old, over `rotation_statement`.

    The old key stays valid for `overlap_seconds` (default 3600).
    """

    public_key: Annotated[str, Field(max_length=64)]
    proof: Annotated[str, Field(max_length=128)]
    endorsement: Annotated[str, Field(max_length=128)]
    overlap_seconds: Annotated[int, Field(ge=0, le=86400)] = 3600


def rotation_statement(
    *, federation_id: str, client_id: str, old_key: str, public_key: str
) -> dict[str, str]:
    """Return the statement that both keys of a rotation sign."""
    return {"federation": federation_id, "client": client_id, "old_key": old_key, "public_key": public_key}


class KeyInUse(Strict):
    """A client's new key, and the time at which the old one expires."""

    public_key: str
    old_key_expires_at: UtcTime


class Traffic(Strict):
    """Encoded body bytes: `up` from clients, `down` to clients."""

    up: int = 0
    down: int = 0


class Client(Strict):
    """A client as shown to people; `identity` is its authentication method."""

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
    """A page of clients; `next` is the cursor of the next page, null on the last."""

    items: list[Client]
    next: str | None


class RosterEntry(Lenient):
    """One entry of a federation's roster; `previous` is the hash of the entry before, null for the first.

    `public_key` is the client's current key: null for a bearer client, and after revocation. A rotation
    carries the old key's `endorsement` of `rotation_statement`.
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
    """A page of roster entries in order; `next` is the cursor of the next page, null on the last."""

    items: list[dict[str, JsonValue]]
    next: str | None


class Me(Strict):
    """A client's own record; `layout` is empty until its alignment pack is stored."""

    client_id: str
    name: str
    organisation: str | None
    federation_id: str
    state: Literal["enrolled", "revoked"]
    layout: dict[str, tuple[int, ...]]
