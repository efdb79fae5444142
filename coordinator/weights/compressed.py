"""Write the weights of a client in the recipe that it asks for, and sign which stored bytes they stand for.

They are written once and kept: who asks again costs a look at the database. Refuses to know who may ask.
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
from coordinator.http.downloads import Stored
from coordinator.http.limits.concurrency import codec_slot, has_space
from coordinator.rounds import delta_reference
from coordinator.rounds.base_weights import ServedWeights
from coordinator.rounds.delta_reference import Reference
from coordinator.settings import Settings
from coordinator.storage.server_key import ServerKey
from coordinator.weights import store
from coordinator.weights.store import InRecipe
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
class Asked:
    """Whose weights of which round are wanted, as they are stored, and in which recipe."""

    member: Member
    number: int
    given: ServedWeights
    payload_id: int
    name: RecipeName

    @property
    def recipe(self) -> Recipe:
        """What the name stands for."""
        return ON_REQUEST[self.name]

    @property
    def key(self) -> InRecipe:
        """What they are kept under."""
        return InRecipe(self.member.federation_id, self.member.client_id, self.number, self.name)


def asked_for(accept: str) -> RecipeName | Literal["whole"] | None:
    """Read how an Accept field wants weights; None = as they are stored, as for all that is not on offer.

    `application/vnd.tessera.adapter+safetensors;recipe=int8_own_last` asks for a recipe, `;fold=whole` for
    all that was folded; the first that is known counts.
    """
    for one in accept.split(","):
        kind, *parameters = (part.strip() for part in one.split(";"))
        if kind.lower() != MEDIA_TYPE:
            continue
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            said = (name.strip().lower(), value.strip().strip('"'))
            if said == ("fold", "whole"):
                return "whole"
            for known in ON_REQUEST:
                if said == ("recipe", known):
                    return known
    return None


def coded(database: Database, settings: Settings, wanted: Asked) -> Stored | None:
    """Give the weights in the recipe, written now if nobody has asked before; None: dense it is, then.

    That is so while the client has no update that counts to take the difference to, or one in another layout,
    where a value is too large for the recipe, where the weights add to the base model, and where nothing was
    written yet and there is no space for it.

    Raises:
        Busy: it would have to be written, and others are at it.
    """
    with database.read() as session:
        made = store.coded(session, wanted.key)
        terms = _terms(session, wanted) if made is None else None
    if terms is not None and has_space(database, settings):
        with codec_slot():
            body = _written(database, wanted, terms)
            with database.write() as session:
                made = store.keep_coded(session, wanted.key, body)
    return made.stored if made is not None else None


def signed(member: Member, round_number: int, given: ServedWeights, digest: str, key: ServerKey) -> str:
    """Sign that a body of this digest stands for the weights that a client was given; the same each time."""
    said = CodedWeights(
        federation=member.federation_id,
        client=member.client_id,
        round=round_number,
        weights=given.digest,
        digest=digest,
        signature="",
    ).model_dump(mode="json")
    document = said | {"signature": key.sign("tessera-weights-v1", said)}
    return urlsafe_b64encode(json.dumps(document).encode()).decode()


@dataclass(frozen=True, slots=True)
class _Terms:
    """What a body is written by: which tensors there are, what is said of them, what they differ from."""

    layout: Layout
    manifest: WeightsManifest
    reference: Reference | None


def _terms(session: Session, wanted: Asked) -> _Terms | None:
    """Look what a body would be written by; None where the recipe cannot be followed."""
    head = wanted.given.head
    if head is None:
        return None
    layout, metadata = read_own_head(head)
    said = metadata[MANIFEST_KEY]
    if FoldedWeightsManifest.model_validate_json(said).fold_from is not None:
        return None  # what they add to the base model has to be known to the bit
    reference: Reference | None = None
    if wanted.recipe.reference == "own_last":
        reference = delta_reference.own_last(session, wanted.member.client_id, wanted.number, layout)
        if reference is None:
            return None
    return _Terms(layout, WeightsManifest.model_validate_json(said), reference)


def _written(database: Database, wanted: Asked, terms: _Terms) -> bytes | None:
    """Write the body; None where a value is too large. The same terms give the same bytes everywhere."""
    given, reference, layout = wanted.given, terms.reference, terms.layout
    dense = Reference(given.digest, wanted.payload_id, given.begin, None)
    weights = delta_reference.reader(database, dense, layout)
    own = delta_reference.reader(database, reference, layout) if reference is not None else None
    recipe = wanted.recipe
    try:  # nobody adds these up: all may draw alike
        streams = encode(_Differences(layout, weights, own), recipe, "weights", wanted.number)
    except NotEncodable:
        return None
    against = reference.digest if reference is not None else None
    sent = SentRecipe(**recipe.model_dump(), against=against).model_dump(mode="json")
    return pack(streams.tensors, terms.manifest.model_copy(update={"recipe": sent}), compress=True)


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
