"""Messages of enrolment, key rotation and the roster, and the views of a client."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from schemas.messages.base import BaseModelSlug, Digest, Lenient, Strict, UtcTime, field_error
from schemas.messages.federations import ALL_ROLES, Role
from schemas.messages.names import NewName

Shape = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]

LayerRun = tuple[
    Annotated[int, Field(ge=0)],
    Annotated[int, Field(ge=0)],
    Annotated[int, Field(ge=1)],
    Annotated[int, Field(ge=1)],
]
"""The first and the last of some consecutive layers, and (d_out, d_in) of a role in each of them."""

LayerRuns = Annotated[tuple[LayerRun, ...], Field(max_length=500, fail_fast=True)]


def _limit_shapes(shapes: object) -> object:
    """Reject more shapes than roles before each is validated: every shape would be an error of its own.

    After a validator the value is not JSON any more, so lists become tuples here, and lists in them.
    """
    if not isinstance(shapes, dict):
        return shapes
    if len(shapes) > len(ALL_ROLES):
        raise ValueError(f"there are {len(ALL_ROLES)} roles")
    return {
        role: tuple(tuple(x) if isinstance(x, list) else x for x in shape)
        if isinstance(shape, list)
        else shape
        for role, shape in shapes.items()
    }


class TokenizerDigests(Lenient):
    """Digests of the parts of a tokenizer that decide which tokens a text has."""

    vocabulary: Digest
    """The tokens with their ids, and the settings of the tokenizer's model."""
    merges: Digest
    """The merges of pairs of tokens, in order."""
    normalizer: Digest
    """The changes of a text before it is divided."""
    pre_tokenizer: Digest
    """The division of a text before its parts become tokens."""
    added_tokens: Digest
    """The tokens beside the vocabulary, such as those that mark turns of a chat."""
    post_processor: Digest
    """The tokens around a text: the post-processor, bos and eos."""
    chat_template: Digest | None = None
    """The chat template in use; null where the silo's data are no chats."""

    def differing(self, peer: TokenizerDigests) -> list[str]:
        """Return the names of the parts that differ; a part that either of them lacks does not."""
        pairs = {name: (getattr(self, name), getattr(peer, name)) for name in type(self).model_fields}
        return [name for name, pair in pairs.items() if None not in pair and pair[0] != pair[1]]


class Profile(Lenient):
    """A client's model and software. LoRA tensors need the shapes of every role."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    architecture: Annotated[str, Field(min_length=1, max_length=100)]
    """The model class, such as `LlamaForCausalLM`."""
    base_model: BaseModelSlug
    """The slug of the base model."""
    hidden_size: Annotated[int, Field(ge=1)]
    """The width of the hidden states."""
    layers: Annotated[int, Field(ge=1, le=10_000)]
    """The number of transformer layers."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=len(ALL_ROLES), fail_fast=True)] = (
        ALL_ROLES
    )
    """The linear layers that the architecture has."""
    shapes: Annotated[dict[Role, Shape], BeforeValidator(_limit_shapes)] | None = None
    """(d_out, d_in) by role, of the roles that every layer has in the same shape."""
    layer_shapes: Annotated[dict[Role, LayerRuns], BeforeValidator(_limit_shapes)] = Field(
        default_factory=dict
    )
    """The other roles, each with the layers that have it: first and last layer, d_out and d_in."""
    agent_version: Annotated[str, Field(max_length=100)]
    """The version of the agent."""
    protocol_version: int
    """The version of the protocol that it speaks."""
    capabilities: Annotated[tuple[Annotated[str, Field(max_length=50)], ...], Field(max_length=20)] = ()
    """The agent's capabilities beyond the protocol's first version, such as `secure-sum-3`."""
    tokenizer: TokenizerDigests | None = None
    """The digests of the base model's tokenizer; null = an agent that does not compute them."""

    @model_validator(mode="after")
    def _runs_are_in_order(self) -> Self:
        for role, runs in self.layer_shapes.items():
            if role not in self.roles or role in (self.shapes or {}):
                raise field_error(f"{role} must be one of roles, and not in shapes", "layer_shapes")
            ends = [-1, *(end for run in runs for end in run[:2])]
            rising = all(a < b for a, b in zip(ends[::2], ends[1::2], strict=False))
            if not runs or not rising or any(first > last for first, last, *_ in runs):
                raise field_error(f"{role} must have layers in rising order", "layer_shapes")
            if ends[-1] >= self.layers:
                raise field_error(f"{role} must have layers below {self.layers}", "layer_shapes")
        return self

    @model_validator(mode="after")
    def _size_is_limited(self) -> Self:
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
    """The name that the client will have."""
    organisation: NewName | None = None
    """The organisation of the client; the guard limits the clients of one organisation together."""
    cidr: Annotated[str, Field(max_length=50), AfterValidator(_network)] | None = None
    """The network from which the token may be used."""
    base_model: BaseModelSlug | None = None
    """The slug of the base model that the client must have."""
    expires_in_seconds: Annotated[int, Field(ge=1, le=7 * 86400)] = 86400
    """The lifetime of the token."""
    replace: bool = False
    """Whether an unused token of this name becomes invalid."""


class EnrolmentToken(Strict):
    """A one-time token, returned once."""

    token: str
    """The secret, `tsr1_...`."""
    expires_at: UtcTime
    """The time at which it expires."""


class UnusedToken(Strict):
    """An enrolment token that may still be used, without its secret."""

    id: str
    """The id of the token."""
    client_name: str
    """The name that the client will have."""
    organisation: str | None
    """The organisation of the client."""
    created_at: UtcTime
    """The time at which it was created."""
    expires_at: UtcTime
    """The time at which it expires."""


class UnusedTokenPage(Strict):
    """A page of enrolment tokens; `next` is the cursor of the next page, null on the last."""

    items: list[UnusedToken]
    """The tokens."""
    next: str | None
    """The cursor of the next page, to be sent as `after`; null on the last."""


class EnrolmentRequest(Lenient):
    """A request to enrol, with a key or, where the plan allows it, with a bearer credential.

    With a key: `public_key` (32 bytes), `nonce` from /v1/hello, and `proof`, the signature of
    `enrolment_statement`; token and key may be sent again. As a bearer client: `retry_key` (32 bytes) makes a
    lost response repeatable. All are base64url.
    """

    token: Annotated[str, Field(max_length=512)]
    """The enrolment token."""
    name: NewName
    """The name of the client, as the token has it."""
    profile: Profile
    """The client's model and software."""
    public_key: Annotated[str, Field(max_length=64)] | None = None
    """The client's Ed25519 public key."""
    nonce: Annotated[str, Field(max_length=64)] | None = None
    """The nonce of `/v1/hello`."""
    proof: Annotated[str, Field(max_length=128)] | None = None
    """The signature of `enrolment_statement` by this key."""
    retry_key: Annotated[str, Field(max_length=44, pattern=r"^[A-Za-z0-9_-]{43}=?$")] | None = None
    """A bearer client's random value, with which it may repeat the request."""

    @model_validator(mode="after")
    def _key_has_a_proof(self) -> Self:
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
    """The id of the client."""
    federation_id: str
    """The id of its federation."""
    credential: str | None
    """A bearer client's secret; null with a key."""
    protocol_version: int
    """The version of the protocol that the coordinator speaks."""


class KeyRotation(Strict):
    """A new key of a client: `proof` of the new key and `endorsement` of the old, over `rotation_statement`.

    The old key stays valid for `overlap_seconds` (default 3600).
    """

    public_key: Annotated[str, Field(max_length=64)]
    """The new public key."""
    proof: Annotated[str, Field(max_length=128)]
    """The signature of `rotation_statement` by the new key."""
    endorsement: Annotated[str, Field(max_length=128)]
    """The signature of `rotation_statement` by the old key."""
    overlap_seconds: Annotated[int, Field(ge=0, le=86400)] = 3600
    """Seconds for which the old key stays valid."""


def rotation_statement(
    *, federation_id: str, client_id: str, old_key: str, public_key: str
) -> dict[str, str]:
    """Return the statement that both keys of a rotation sign."""
    return {"federation": federation_id, "client": client_id, "old_key": old_key, "public_key": public_key}


class KeyInUse(Strict):
    """A client's new key, and the time at which the old one expires."""

    public_key: str
    """The current public key."""
    old_key_expires_at: UtcTime
    """The time at which the old key expires."""


class Traffic(Strict):
    """Encoded body bytes: `up` from clients, `down` to clients."""

    up: int = 0
    """Bytes from clients."""
    down: int = 0
    """Bytes to clients."""


class Client(Strict):
    """A client as shown to people; `identity` is its authentication method."""

    client_id: str
    """The id of the client."""
    name: str
    """The name of the client."""
    organisation: str | None
    """The organisation of the client; null = unknown."""
    profile: Profile
    """The client's model and software."""
    state: Literal["enrolled", "revoked"]
    """Whether it may take part."""
    identity: Literal["key", "bearer"]
    """The authentication of the client: signatures or a bearer token."""
    enrolled_at: UtcTime
    """The time of its enrolment."""
    last_seen_at: UtcTime | None
    """The time of its last request."""
    rounds: int
    """The number of rounds in which its update counted."""
    bytes: Traffic
    """The client's encoded bytes in all rounds."""


class ClientPage(Strict):
    """A page of clients; `next` is the cursor of the next page, null on the last."""

    items: list[Client]
    """The clients."""
    next: str | None
    """The cursor of the next page, to be sent as `after`; null on the last."""


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
    """The entries, oldest first."""
    next: str | None
    """The cursor of the next page, to be sent as `after`; null on the last."""


class Me(Strict):
    """A client's own record; `layout` is empty until its alignment pack is stored."""

    client_id: str
    """The id of the client."""
    name: str
    """The name of the client."""
    organisation: str | None
    """The organisation of the client; null = unknown."""
    federation_id: str
    """The id of its federation."""
    state: Literal["enrolled", "revoked"]
    """Whether it may take part."""
    layout: dict[str, tuple[int, ...]]
    """The shapes of the tensors that it sends, by name."""
