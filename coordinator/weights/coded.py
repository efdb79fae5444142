"""Write the weights of a client in the recipe that it asks for, and sign which stored bytes they stand for.

Nothing of it is kept: the same request gives the same bytes. Refuses to know who may ask.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.database import Database
from coordinator.downloads import Stored
from coordinator.enrolment.auth import Member
from coordinator.rounds import references
from coordinator.rounds.bases import Given
from coordinator.rounds.references import Reference
from coordinator.server_key import ServerKey
from schemas.maths.adapter import Layout
from schemas.messages.recipes import ON_REQUEST, Recipe, SentRecipe
from schemas.messages.rounds import CodedWeights
from schemas.messages.updates import FoldedWeightsManifest, WeightsManifest
from schemas.wire.coding import encode
from schemas.wire.digests import digest_of
from schemas.wire.envelope import MANIFEST_KEY, MEDIA_TYPE, pack
from schemas.wire.header import read_own_head
from schemas.wire.quantise import NotEncodable

Read = Callable[[str], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose weights of which round are wanted, as they are stored, and in which recipe."""

    member: Member
    number: int
    given: Given
    payload_id: int
    recipe: Recipe


def recipe_wanted(accept: str) -> Recipe | None:
    """Read which recipe an Accept field asks for; None = dense, as for anything that is not on offer.

    `application/vnd.tessera.adapter+safetensors;recipe=int8_own_last`; the first that is known counts.
    """
    said = (ON_REQUEST.get(value) for name, value in _parameters(accept) if name == "recipe")  # type: ignore[call-overload]
    return next((recipe for recipe in said if recipe is not None), None)


def whole_wanted(accept: str) -> bool:
    """Say whether an Accept field asks for all that was folded: with `;fold=whole`."""
    return ("fold", "whole") in _parameters(accept)


def _parameters(accept: str) -> Iterator[tuple[str, str]]:
    """Read the parameters of our own media type, in their order."""
    for one in accept.split(","):
        kind, *parameters = (part.strip() for part in one.split(";"))
        if kind.lower() == MEDIA_TYPE:
            for parameter in parameters:
                name, _, value = parameter.partition("=")
                yield name.strip().lower(), value.strip().strip('"')


def coded(database: Database, wanted: Asked, key: ServerKey) -> tuple[Stored, str] | None:
    """Give the body and what is signed for it; None where the recipe cannot be followed: dense it is, then.

    That is so while the client has no update that counts to take the difference to, or one in another layout,
    where a value is too large for the recipe, and where the weights add to the base model.
    """
    head = wanted.given.head
    if head is None:
        return None
    layout, metadata = read_own_head(head)
    if FoldedWeightsManifest.model_validate_json(metadata[MANIFEST_KEY]).fold_from is not None:
        return None  # what they add to the base model has to be known to the bit
    member, recipe = wanted.member, wanted.recipe
    reference: Reference | None = None
    if recipe.reference == "own_last":
        with database.read() as session:
            reference = references.own_last(session, member.client_id, wanted.number, layout)
        if reference is None:
            return None
    values = _Differences(layout, _weights(database, wanted, layout), _own(database, reference, layout))
    try:
        streams = encode(values, recipe, "weights", wanted.number)  # nobody adds these up: all may draw alike
    except NotEncodable:
        return None
    against = reference.digest if reference is not None else None
    sent = SentRecipe(**recipe.model_dump(), against=against).model_dump(mode="json")
    manifest = WeightsManifest.model_validate_json(metadata[MANIFEST_KEY]).model_copy(update={"recipe": sent})
    body = pack(streams.tensors, manifest, compress=True)
    digest = digest_of(body)
    stored = Stored(wanted.payload_id, digest, len(body), MEDIA_TYPE, encoding="zstd", head=body)
    return stored, signed(member, wanted.number, wanted.given, digest, key)


def signed(member: Member, number: int, given: Given, digest: str, key: ServerKey) -> str:
    """Sign that a body of this digest stands for the weights that a client was given for a round."""
    said = CodedWeights(
        federation=member.federation_id,
        client=member.client_id,
        round=number,
        weights=given.digest,
        digest=digest,
        signature="",
    ).model_dump(mode="json")
    document = said | {"signature": key.sign("tessera-weights-v1", said)}
    return urlsafe_b64encode(json.dumps(document).encode()).decode()


def _weights(database: Database, wanted: Asked, layout: Layout) -> Read:
    given = wanted.given
    return references.reader(database, Reference(given.digest, wanted.payload_id, given.begin, None), layout)


def _own(database: Database, reference: Reference | None, layout: Layout) -> Read | None:
    return references.reader(database, reference, layout) if reference is not None else None


@dataclass(frozen=True, slots=True)
class _Differences(Mapping[str, NDArray[np.float32]]):
    """Weights minus what they are the difference to, each tensor read when it is asked for."""

    layout: Layout
    weights: Read
    own: Read | None

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        values = self.weights(name)
        return values if self.own is None else values - self.own(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout)

    def __len__(self) -> int:
        return len(self.layout)
