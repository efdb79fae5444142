"""Encode a client's weights in the recipe that it requests, and sign the digest of the dense weights.

The result is stored, so that a repeated request costs one query.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from coordinator.auth.authentication import Member
from coordinator.db.engine import Database
from coordinator.http.downloads import StoredBody
from coordinator.http.limits.concurrency import codec_slot, has_space
from coordinator.rounds import delta_reference
from coordinator.rounds.base_weights import ServedWeights
from coordinator.rounds.delta_reference import Reference
from coordinator.settings import Settings
from coordinator.storage.server_key import ServerKey
from coordinator.weights import store
from coordinator.weights.store import EncodedKey
from schemas.maths.adapter import Layout
from schemas.messages.recipes import ON_REQUEST, Recipe, RecipeName, SentRecipe
from schemas.messages.rounds import CodedWeights
from schemas.messages.updates import FoldedWeightsManifest, WeightsManifest
from schemas.wire.envelope import MANIFEST_KEY, MEDIA_TYPE, pack
from schemas.wire.header import read_own_head
from schemas.wire.quantise import NotEncodable
from schemas.wire.streams import encode

Read = Callable[[str], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class EncodingRequest:
    """Stored weights of a client for a round, and the recipe to encode them in."""

    member: Member
    number: int
    weights: ServedWeights
    payload_id: int
    name: RecipeName

    @property
    def recipe(self) -> Recipe:
        return ON_REQUEST[self.name]

    @property
    def key(self) -> EncodedKey:
        return EncodedKey(self.member.federation_id, self.member.client_id, self.number, self.name)


@dataclass(frozen=True, slots=True)
class DifferenceTo:
    """A request for the difference to weights with this digest; None = the client has no weights."""

    digest: str | None


def requested_form(accept: str) -> RecipeName | Literal["whole", "outputs"] | DifferenceTo | None:
    """Parse an Accept field; None = weights as stored, also for every unknown form.

    `application/vnd.tessera.adapter+safetensors;recipe=int8_own_last` requests a recipe, `;fold=whole` the
    sum of all base deltas, `;against="sha256:..."` or `;against=none` the published difference to weights
    with this digest, `;outputs=peers` the mixture of peers' outputs beside the weights; the first known form
    counts.
    """
    for media_range in accept.split(","):
        kind, *parameters = (part.strip() for part in media_range.split(";"))
        if kind.lower() != MEDIA_TYPE:
            continue
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            form = (name.strip().lower(), value.strip().strip('"'))
            if form == ("fold", "whole"):
                return "whole"
            if form == ("outputs", "peers"):
                return "outputs"
            if form[0] == "against":
                return DifferenceTo(None if form[1] == "none" else form[1])
            for recipe_name in ON_REQUEST:
                if form == ("recipe", recipe_name):
                    return recipe_name
    return None


def encoded_weights(database: Database, settings: Settings, request: EncodingRequest) -> StoredBody | None:
    """Return the weights in the recipe, encoded now or before; None = they are served dense.

    Weights are dense if the client has no accepted update as the reference, or one in another layout; if a
    value is too large for the recipe; if they carry a base delta; and if the disk has no space left.

    Raises:
        Busy: too many requests are being encoded.
    """
    with database.read() as session:
        encoded = store.find_encoded(session, request.key)
        terms = _terms(session, request) if encoded is None else None
    if terms is not None and has_space(database, settings):
        # Encoded outside of transactions. If two replicas do it at once, one result is stored.
        with codec_slot():
            body = _encode(database, request, terms)
            with database.write() as session:
                encoded = store.store_encoded(session, request.key, body)
    return encoded.stored if encoded is not None else None


def sign_encoded(
    member: Member, round_number: int, weights: ServedWeights, digest: str, key: ServerKey
) -> str:
    """Return a signed statement that a body of this digest encodes these weights; deterministic."""
    statement = CodedWeights(
        federation=member.federation_id,
        client=member.client_id,
        round=round_number,
        weights=weights.digest,
        digest=digest,
        signature="",
    ).model_dump(mode="json")
    document = statement | {"signature": key.sign("tessera-weights-v1", statement)}
    return urlsafe_b64encode(json.dumps(document).encode()).decode()


@dataclass(frozen=True, slots=True)
class _Terms:
    """The tensors of a body, their manifest, and the reference of their differences."""

    layout: Layout
    manifest: WeightsManifest
    reference: Reference | None


def _terms(session: Session, request: EncodingRequest) -> _Terms | None:
    head = request.weights.head
    if head is None:
        return None
    layout, metadata = read_own_head(head)
    manifest = metadata[MANIFEST_KEY]
    if FoldedWeightsManifest.model_validate_json(manifest).fold_from is not None:
        return None  # agents need base deltas exactly
    reference: Reference | None = None
    if request.recipe.reference == "own_last":
        reference = delta_reference.own_last(session, request.member.client_id, request.number, layout)
        if reference is None:
            return None
    return _Terms(layout, WeightsManifest.model_validate_json(manifest), reference)


def _encode(database: Database, request: EncodingRequest, terms: _Terms) -> bytes | None:
    dense, reference, layout = request.weights, terms.reference, terms.layout
    stored = Reference(dense.digest, request.payload_id, dense.begin, layout, None)
    weights = delta_reference.reader(database, stored, layout)
    subtracted = delta_reference.reader(database, reference, layout) if reference is not None else None
    recipe = request.recipe
    try:  # one rounding seed for all clients: these bodies are never summed
        streams = encode(_Differences(layout, weights, subtracted), recipe, "weights", request.number)
    except NotEncodable:
        return None
    against = reference.digest if reference is not None else None
    sent_recipe = SentRecipe(**recipe.model_dump(), against=against).model_dump(mode="json")
    return pack(streams.tensors, terms.manifest.model_copy(update={"recipe": sent_recipe}), compress=True)


@dataclass(frozen=True, slots=True)
class _Differences(Mapping[str, NDArray[np.float32]]):
    """Weights minus their reference, each tensor read on access."""

    layout: Layout
    weights: Read
    reference: Read | None

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        values = self.weights(name)
        return values if self.reference is None else values - self.reference(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout)

    def __len__(self) -> int:
        return len(self.layout)
