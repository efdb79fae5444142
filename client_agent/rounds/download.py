"""Fetch the weights of a round, in fewer bits where both sides can, and give them as plain tensors.

A coded body is believed only with the coordinator's signature that it stands for the weights that the round's
manifest names. Knows no model.
"""

from __future__ import annotations

import json
import logging
from base64 import urlsafe_b64decode
from binascii import Error as NotBase64

from pydantic import ValidationError

from client_agent.adapters.base import State
from client_agent.errors import DownloadDamaged
from client_agent.rounds.participant import Participant
from client_agent.rounds.update_history import own_last
from client_agent.storage.round_folder import BASE, RoundFolder
from client_agent.transport.client import TensorBody
from schemas.identity.documents import is_signed
from schemas.identity.keys import public_key
from schemas.maths.adapter import in_order
from schemas.messages.recipes import NAMED, SentRecipe
from schemas.messages.rounds import CodedWeights, RoundBrief, WeightsReference
from schemas.messages.updates import WeightsManifest
from schemas.wire.envelope import pack, unpack
from schemas.wire.refusals import BodyRefused
from schemas.wire.streams import decode, stream_slots

log = logging.getLogger(__name__)

_LARGEST_BODY = 2**33


def fetch(who: Participant, brief: RoundBrief, folder: RoundFolder, named: WeightsReference) -> bytes:
    """Give the dense body of the weights that a manifest names; the folder keeps what they are called.

    Raises:
        DownloadDamaged: what came are not these weights.
    """
    content = _by_recipe(who, brief, named) if brief.wire.requested_recipe != "dense" else None
    if content is None:
        came = who.api.weights(who.federation, brief.round)
        if came.digest != named.digest:
            raise DownloadDamaged(f"round {brief.round}'s weights")
        content = came.body
    folder.write(BASE, named.digest.encode())
    return content


def fetch_whole(who: Participant, round_number: int, weights: str) -> bytes | None:
    """Give the weights of a round with all that was folded into the base model; None where that is not had.

    `weights` is the digest that the round's manifest names, which the coordinator has to sign for.
    """
    came = who.api.whole_weights(who.federation, round_number)
    if came.digest == weights:  # nothing else is kept there, or it is older than this question
        return None
    if not _is_proved(who, round_number, came, weights):
        log.warning("round %d: nobody has signed for the whole that came: it is not used", round_number)
        return None
    return came.body


def _by_recipe(who: Participant, brief: RoundBrief, named: WeightsReference) -> bytes | None:
    """Ask for the difference to our last update; None where what comes cannot be used as that."""
    own = own_last(who, brief.round)
    if own is None:
        return None
    came = who.api.weights(who.federation, brief.round, brief.wire.requested_recipe)
    if came.digest == named.digest:  # the coordinator has no such update, or is older than recipes
        return came.body
    if not _is_proved(who, brief.round, came, named.digest):
        log.warning("round %d: nobody has signed for the weights that came: asked for whole", brief.round)
        return None
    try:
        return _decoded(came, brief, *own)
    except (BodyRefused, ValidationError) as error:
        log.warning("round %d: the weights do not decode (%s): asked for whole", brief.round, error)
        return None


def _is_proved(who: Participant, round_number: int, came: TensorBody, weights: str) -> bool:
    """Say whether the coordinator has signed for a body that it stands for these weights."""
    try:
        document = json.loads(urlsafe_b64decode(came.proof))
        said = CodedWeights.model_validate(document)
    except (NotBase64, ValueError, ValidationError, RecursionError):
        return False
    wanted = (who.federation, who.client, round_number, weights, came.digest)
    meant = (said.federation, said.client, said.round, said.weights, said.digest) == wanted
    return meant and is_signed("tessera-weights-v1", document, said.signature, public_key(who.server_key))


def _decoded(came: TensorBody, brief: RoundBrief, own: State, digest: str) -> bytes | None:
    """Write a coded body, the difference to `own`, as a dense one; None if it is that to another update.

    Raises:
        BodyRefused, ValidationError: it is malformed.
    """
    layout = in_order({name: values.shape for name, values in own.items()})
    recipe = NAMED[brief.wire.requested_recipe]
    with unpack(
        came.body, encoding="zstd", expected={}, max_bytes=_LARGEST_BODY, coded=stream_slots()
    ) as body:
        manifest = body.manifest(WeightsManifest)
        sent = SentRecipe.model_validate(manifest.recipe)
        if sent.recipe != recipe or sent.against != digest:
            log.warning("round %d: the weights differ from another update: asked for whole", brief.round)
            return None
        made = {name: own[name] + values for name, values in decode(body, layout, recipe)}
    return pack(made, manifest.model_copy(update={"recipe": {}}))
