"""Decode the served weights of a round, and apply their base delta."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from client_agent.errors import AdapterUnreadable
from client_agent.storage.base_delta import read_served, round_base_delta
from client_agent.storage.round_folder import WEIGHTS, RoundFolder, RoundFolders
from client_agent.storage.stored_body import open_body
from client_agent.strategies.base import Traits
from schemas.maths.adapter import Layout
from schemas.maths.factors import resized
from schemas.messages.updates import WeightsManifest
from schemas.wire.envelope import Envelope, slots
from schemas.wire.ranks import any_rank
from schemas.wire.refusals import BodyRefused

if TYPE_CHECKING:
    from client_agent.adapters.base import Adapter


def read_weights(body: bytes, layout: Layout, *, mixed_ranks: bool = False) -> dict[str, NDArray[np.float32]]:
    """Decode served weights; with `mixed_ranks` of any rank, truncated or padded to the layout's.

    Raises:
        AdapterUnreadable: the body is damaged or of another layout.
    """
    with _opened(body, layout, mixed_ranks=mixed_ranks) as envelope:
        return {name: resized(envelope.read_float32(name), shape) for name, shape in layout.items()}


def read_adapter(body: bytes, layout: Layout, traits: Traits) -> dict[str, NDArray[np.float32]]:
    """Decode A and B of served weights, without their base delta; zeros where none are served.

    Raises:
        AdapterUnreadable: the body is damaged or of another layout.
    """
    if traits.base_delta:
        return read_served(body, layout, mixed_ranks=traits.mixed_ranks).adapter
    return read_weights(body, layout, mixed_ranks=traits.mixed_ranks)


def is_initial(body: bytes, layout: Layout, traits: Traits) -> bool:
    """Whether served weights are those of a client none of whose updates counts.

    Raises:
        AdapterUnreadable: the body is damaged or of another layout.
    """
    if traits.base_delta:
        return read_served(body, layout, mixed_ranks=traits.mixed_ranks).manifest.initial
    with _opened(body, layout, mixed_ranks=traits.mixed_ranks) as envelope:
        return envelope.manifest(WeightsManifest).initial


@contextmanager
def _opened(body: bytes, layout: Layout, *, mixed_ranks: bool) -> Iterator[Envelope]:
    try:
        with open_body(body, any_rank(layout) if mixed_ranks else slots(layout)) as envelope:
            yield envelope
    except BodyRefused as refusal:
        raise AdapterUnreadable(
            f"the stored weights are damaged, or not of this plan ({refusal}); "
            "`--round` chooses another round"
        ) from refusal


def load_served(
    adapter: Adapter, traits: Traits, rounds: RoundFolders, folder: RoundFolder
) -> Mapping[str, NDArray[np.float32]]:
    """Decode the weights of a round, and apply their base delta to the adapter.

    Raises:
        AdapterUnreadable: they are damaged or of another layout.
        BaseDeltaMissing: they add to a base delta that is not stored here.
    """
    body = folder.read(WEIGHTS)
    if not traits.base_delta:
        return read_weights(body, adapter.layout, mixed_ranks=traits.mixed_ranks)
    served = read_served(body, adapter.layout, mixed_ranks=traits.mixed_ranks)
    adapter.load_base_delta(round_base_delta(rounds, folder, served).added)
    return served.adapter
