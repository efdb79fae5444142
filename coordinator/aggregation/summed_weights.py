"""Write the values of a joint model once for all clients, each with a head of its own.

Where the plan says so, they are those that clients reconstruct from the model before and a difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.difference import Difference
from coordinator.db.engine import Database
from coordinator.observability.fault_points import may_crash
from coordinator.storage import payloads
from coordinator.storage.payloads import Staged
from schemas.maths.adapter import Layout
from schemas.messages.recipes import Recipe
from schemas.messages.updates import WeightsManifest
from schemas.wire.digests import digest_from_hash
from schemas.wire.envelope import head
from schemas.wire.quantise import NotEncodable

Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Receivers:
    """The clients that are served a joint model, by their manifests.

    `began` are those whose last weights are the model before it.
    """

    layout: Layout
    manifests: Mapping[str, WeightsManifest]
    began: frozenset[str]


@dataclass(frozen=True, slots=True)
class NewWeights:
    """Staged values, and for each client its own head with the digest of head and values.

    `differences` are those to the model which all began with, by client.
    """

    staged: Staged
    heads: Mapping[str, bytes]
    digests: Mapping[str, str]
    differences: Mapping[str, Staged] = field(default_factory=dict)


def write(
    database: Database,
    receivers: Receivers,
    blocks: Iterable[Values],
    begun: list[Staged],
    between: Callable[[], None],
) -> NewWeights:
    """Stage a model's values, in blocks in the order of the layout; `begun` gets what was staged.

    `between` is called after every block; it extends the lease, or raises.
    """
    heads = {client: head(receivers.layout, manifest) for client, manifest in receivers.manifests.items()}
    hashers = {client: hashlib.sha256(beginning) for client, beginning in heads.items()}
    with database.write() as session:
        staged = payloads.stage(session)
    begun.append(staged)
    for values in blocks:
        octets = values.data.cast("B")
        with database.write() as session:
            staged.append(session, octets)
        may_crash("block-staged")
        for hasher in hashers.values():
            hasher.update(octets)
        between()
    digests = {client: digest_from_hash(hasher.hexdigest()) for client, hasher in hashers.items()}
    return NewWeights(staged, heads, digests)


def write_as_difference(
    database: Database,
    recipe: Recipe,
    receivers: Receivers,
    blocks: Iterator[Values],
    earlier: Callable[[str], Values],
    begun: list[Staged],
    between: Callable[[], None],
) -> NewWeights | None:
    """Stage a model's values as clients reconstruct them, and the difference to the model before.

    Clients with different alignment packs get the same streams under manifests of their own. None = there is
    no client, or a value is too far from the one before.
    """
    if not receivers.manifests:
        return None
    difference = Difference(recipe, next(iter(receivers.manifests.values())).round)
    tensors = _tensors(receivers.layout, blocks)
    rounded = difference.rounded(receivers.layout, lambda _: next(tensors), earlier)
    try:
        weights = write(database, receivers, (values.reshape(-1) for values in rounded), begun, between)
    except NotEncodable:
        return None
    by_pack: dict[str | None, Staged] = {}
    for client in sorted(receivers.began):
        manifest = receivers.manifests[client]
        if manifest.pack not in by_pack:
            by_pack[manifest.pack] = difference.stage(database, manifest).staged
            begun.append(by_pack[manifest.pack])
    by_client = {client: by_pack[receivers.manifests[client].pack] for client in sorted(receivers.began)}
    return replace(weights, differences=by_client)


def _tensors(layout: Layout, blocks: Iterator[Values]) -> Iterator[Values]:
    """Yield the tensors of a layout, in order and shape, from blocks of values."""
    remaining = np.empty(0, np.float32)
    for shape in layout.values():
        parts, missing = [], prod(shape)
        while missing:
            if not remaining.size:
                remaining = next(blocks)
            parts.append(remaining[:missing])
            remaining = remaining[missing:]
            missing -= parts[-1].size
        yield np.concatenate(parts).reshape(shape)
