"""Download weights as the difference to those that this client has, and reconstruct them to the bit.

The result is used only if it has the digest of the signed manifest. So a file that is lost, damaged or of
another coordinator costs a dense download, and does no other harm.
"""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from client_agent.rounds.client import Session
from client_agent.storage.round_folder import WEIGHTS, RoundFolders
from client_agent.transport.client import TensorBody
from schemas.maths.adapter import in_order
from schemas.maths.start import from_start
from schemas.messages.recipes import Recipe
from schemas.messages.rounds import WeightsReference
from schemas.messages.updates import WeightsManifest
from schemas.wire.compress import decompress
from schemas.wire.digests import digest_of
from schemas.wire.envelope import pack, unpack
from schemas.wire.errors import BodyRefused
from schemas.wire.header import free_slots
from schemas.wire.served_difference import reconstructed
from schemas.wire.streams import stream_slots

log = logging.getLogger(__name__)

_BESIDE_VALUES = 2**20  # a difference of a few values may have a longer header than they have bytes


class _AnyWeightsManifest(WeightsManifest):
    """A manifest of weights with the members of newer coordinators too, which the digest covers."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class EarlierWeights:
    """The weights of an earlier round as they were served: a dense body, and its digest in that manifest."""

    body: bytes
    digest: str


def earlier_weights(rounds: RoundFolders, round_number: int) -> EarlierWeights | None:
    """Return the newest weights before a round; None if they are lost, damaged, or were rounded."""
    folder = rounds.newest_with(WEIGHTS, before=round_number)
    if folder is None:
        return None
    body = folder.read(WEIGHTS)
    digest = digest_of(body)
    return EarlierWeights(body, digest) if digest == folder.base else None


def download_difference(
    session: Session,
    round_number: int,
    weights: WeightsReference,
    recipe: Recipe,
    earlier: EarlierWeights | None,
    seed: int,
) -> bytes | None:
    """Return the dense body of the weights of a manifest; None = it must be downloaded dense.

    Args:
        recipe: that of the plan.
        seed: the plan's, for weights whose zeros stand for the start.
    """
    against = f'against="{earlier.digest}"' if earlier is not None else "against=none"
    body = session.api.weights(session.federation_id, round_number, form=against)
    if body.digest == weights.digest:  # the coordinator has no difference to them
        return body.body
    try:
        content = _dense(session.client_id, body, weights, recipe, earlier, seed)
    except BodyRefused as error:
        log.warning("round %d: difference malformed (%s); downloading dense weights", round_number, error)
        return None
    if content is None or digest_of(content) != weights.digest:
        log.warning("round %d: difference to other weights; downloading dense ones", round_number)
        return None
    return content


def _dense(
    client_id: str,
    body: TensorBody,
    weights: WeightsReference,
    recipe: Recipe,
    earlier: EarlierWeights | None,
    seed: int,
) -> bytes | None:
    """Return what a frame stands for: a dense body as it is, or a difference applied to the earlier weights.

    Raises:
        BodyRefused: it is malformed.
    """
    plain = io.BytesIO()
    decompress(io.BytesIO(body.body), plain, max_bytes=weights.bytes + _BESIDE_VALUES)
    content = plain.getvalue()
    if digest_of(content) == weights.digest or earlier is None:
        return content
    with unpack(
        content, encoding=None, expected={}, max_bytes=len(content), coded=stream_slots()
    ) as difference:
        manifest = difference.manifest(_AnyWeightsManifest)
        if manifest.recipe != recipe.model_dump(mode="json"):
            return None
        values = _values(earlier.body)
        layout = in_order({name: tensor.shape for name, tensor in values.items()})

        def reference(name: str) -> NDArray[np.float32]:
            return from_start(name, values.__getitem__, seed, layout)

        with np.errstate(over="ignore", invalid="ignore"):  # of a damaged difference: the digest decides
            tensors = dict(reconstructed(difference, layout, recipe, reference))
    return pack(dict(tensors), manifest.model_copy(update={"client": client_id, "recipe": {}}))


def _values(body: bytes) -> dict[str, NDArray[np.float32]]:
    expected = free_slots(io.BytesIO(body), len(body))
    with unpack(body, encoding=None, expected=expected, max_bytes=len(body)) as envelope:
        return {name: envelope.read_float32(name) for name in envelope.names}
