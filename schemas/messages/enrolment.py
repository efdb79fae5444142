"""How a client becomes a member, and how clients are shown."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from schemas.messages.federations import ALL_ROLES, Role
from schemas.messages.strict import BaseModelSlug, Lenient, Name, Strict, UtcTime

Shape = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]


class Profile(Lenient):
    """What a client runs. `shapes` gives (d_out, d_in) per role and is needed for LoRA tensors."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    architecture: Annotated[str, Field(min_length=1, max_length=100)]
    base_model: BaseModelSlug
    hidden_size: Annotated[int, Field(ge=1)]
    layers: Annotated[int, Field(ge=1, le=10_000)]
    roles: Annotated[tuple[Role, ...], Field(min_length=1)] = ALL_ROLES
    shapes: dict[Role, Shape] | None = None
    agent_version: Annotated[str, Field(max_length=100)]
    protocol_version: int

    @model_validator(mode="after")
    def _stays_small(self) -> Self:
        if len(self.model_extra or {}) > 20 or len(self.model_dump_json()) > 8192:
            raise ValueError("a profile has at most 20 further members and 8 KiB")
        return self


class EnrolmentTokenRequest(Strict):
    """Ask for a one-time token for one client."""

    client_name: Name
    organisation: Name | None = None
    expires_in_seconds: Annotated[int, Field(ge=1, le=7 * 86400)] = 86400


class EnrolmentToken(Strict):
    """A one-time token, shown once."""

    token: str
    expires_at: UtcTime


class EnrolmentRequest(Lenient):
    """Become a member. `retry_key` (32 bytes, base64url) makes a lost answer repeatable."""

    token: Annotated[str, Field(max_length=512)]
    name: Name
    profile: Profile
    retry_key: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{43}=?$")] | None = None


class Enrolment(Strict):
    """What a new member is told; `credential` is its bearer secret."""

    client_id: str
    federation_id: str
    credential: str
    protocol_version: int


class Traffic(Strict):
    """Encoded body bytes, up from and down to clients."""

    up: int = 0
    down: int = 0


class Client(Strict):
    """A client as people see it."""

    client_id: str
    name: str
    organisation: str | None
    profile: Profile
    state: Literal["enrolled", "revoked"]
    enrolled_at: UtcTime
    last_seen_at: UtcTime | None
    rounds: int
    bytes: Traffic


class ClientPage(Strict):
    """Some clients, and where the next page starts."""

    items: list[Client]
    next: str | None


class Me(Strict):
    """What a client is told about itself; `layout` is empty until its alignment pack is stored."""

    client_id: str
    name: str
    organisation: str | None
    federation_id: str
    state: Literal["enrolled", "revoked"]
    layout: dict[str, tuple[int, ...]]
