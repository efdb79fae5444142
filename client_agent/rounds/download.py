"""Download the weights of a round as plain tensors, in fewer bits where both sides can.

A difference to this client's last update must carry the coordinator's signature for the weights of the
manifest; a difference to its last weights reconstructs them.
"""

from __future__ import annotations

import json
import logging
from base64 import urlsafe_b64decode
from binascii import Error as NotBase64

from pydantic import ValidationError

from client_agent.errors import DownloadDamaged
from client_agent.rounds.client import Session
from client_agent.rounds.update_history import CountedState
from client_agent.rounds.weights_difference import EarlierWeights, download_difference
from client_agent.storage.round_folder import BASE, RoundFolder
from client_agent.transport.client import TensorBody
from schemas.identity.documents import is_signed
from schemas.identity.keys import public_key
from schemas.maths.adapter import in_order
from schemas.messages.recipes import NAMED, OwnLastName, Recipe, SentRecipe
from schemas.messages.rounds import CodedWeights, RoundBrief, WeightsReference
from schemas.messages.updates import WeightsManifest
from schemas.wire.envelope import pack, unpack
from schemas.wire.errors import BodyRefused
from schemas.wire.streams import bound, decode, stream_slots

log = logging.getLogger(__name__)

_BESIDE_STREAMS = 2**20  # the header, whose manifest and three tensors have less


def download_weights(
    session: Session,
    brief: RoundBrief,
    folder: RoundFolder,
    reference: WeightsReference,
    last_update: CountedState | None,
    earlier: EarlierWeights | None,
) -> bytes:
    """Return the dense body of the weights of a manifest, and store their digest in the folder.

    Args:
        last_update: the state that `own_last` weights are the difference to; None asks for dense ones.
        earlier: the weights that published differences are added to.

    Raises:
        DownloadDamaged: the body has another digest.
    """
    recipe, content = brief.wire.served_difference, None
    if recipe is not None:
        content = download_difference(session, brief.round, reference, recipe, earlier, brief.training.seed)
    elif brief.wire.own_last_recipe is not None and last_update is not None:
        content = _compressed(session, brief, reference, brief.wire.own_last_recipe, last_update)
    if content is None:
        body = session.api.weights(session.federation_id, brief.round)
        if body.digest != reference.digest:
            raise DownloadDamaged(f"round {brief.round}'s weights")
        content = body.body
    # By the dense digest, which updates name, whatever encoding was downloaded.
    folder.write(BASE, reference.digest.encode())
    return content


def download_whole(session: Session, round_number: int, weights: str) -> bytes | None:
    """Return the weights of a round with the whole base delta; None if the coordinator has none.

    `weights` is the digest in the round's manifest, for which the coordinator must have signed.
    """
    body = session.api.whole_weights(session.federation_id, round_number)
    if body.digest == weights:  # the coordinator has no whole base delta
        return None
    if not is_proved(session, round_number, body, weights):
        log.warning("round %d: whole base delta without a valid signature; not used", round_number)
        return None
    return body.body


def _compressed(
    session: Session,
    brief: RoundBrief,
    reference: WeightsReference,
    name: OwnLastName,
    last_update: CountedState,
) -> bytes | None:
    body = session.api.weights(session.federation_id, brief.round, name)
    # The digest proves dense weights; anything else needs a signature.
    if body.digest == reference.digest:  # the coordinator lacks that update
        return body.body
    if not is_proved(session, brief.round, body, reference.digest):
        log.warning(
            "round %d: compressed weights without a valid signature; downloading dense ones", brief.round
        )
        return None
    try:
        return _decoded(body, brief, NAMED[name], last_update)
    except (BodyRefused, ValidationError) as error:
        log.warning(
            "round %d: compressed weights are malformed (%s); downloading dense ones", brief.round, error
        )
        return None


def is_proved(session: Session, round_number: int, body: TensorBody, weights: str) -> bool:
    """Whether the coordinator has signed that a body stands for these weights."""
    try:
        document = json.loads(urlsafe_b64decode(body.proof))
        proof = CodedWeights.model_validate(document)
    except (NotBase64, ValueError, ValidationError, RecursionError):
        return False
    expected = (session.federation_id, session.client_id, round_number, weights, body.digest)
    if (proof.federation, proof.client, proof.round, proof.weights, proof.digest) != expected:
        return False
    return is_signed("tessera-weights-v1", document, proof.signature, public_key(session.server_key))


def _decoded(body: TensorBody, brief: RoundBrief, recipe: Recipe, last_update: CountedState) -> bytes | None:
    """Return a compressed body as a dense one; None if it is the difference to another update.

    Raises:
        BodyRefused, ValidationError: it is malformed.
    """
    values = last_update.values
    layout = in_order({name: tensor.shape for name, tensor in values.items()})
    # A frame of a few bytes could claim any size.
    limit = bound(layout, recipe) + _BESIDE_STREAMS
    with unpack(body.body, encoding="zstd", expected={}, max_bytes=limit, coded=stream_slots()) as envelope:
        manifest = envelope.manifest(WeightsManifest)
        sent_recipe = SentRecipe.model_validate(manifest.recipe)
        # Added to another state the difference would give wrong weights without an error.
        if sent_recipe.recipe != recipe or sent_recipe.against != last_update.digest:
            log.warning(
                "round %d: compressed weights refer to another update; downloading dense ones", brief.round
            )
            return None
        weights = {name: values[name] + delta for name, delta in decode(envelope, layout, recipe)}
    return pack(weights, manifest.model_copy(update={"recipe": {}}))
