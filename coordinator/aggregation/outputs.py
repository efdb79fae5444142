"""Mix the outputs of clients' models on public texts, and stage a mixture for each client that sent them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from coordinator.aggregation.difference import StagedDifference, stage_body
from coordinator.aggregation.output_writer import discard
from coordinator.aggregation.store import Established
from coordinator.aggregation.voices import has_voices
from coordinator.db.engine import Database
from coordinator.storage import payloads
from coordinator.strategies.base import Floats, Weighing
from coordinator.strategies.opening import OpenedPlan
from coordinator.updates.validation import expected_streams, expected_tensors
from schemas.wire.compress import is_frame
from schemas.wire.envelope import pack, unpack
from schemas.wire.outputs import Outputs, mixed


def stage_mixtures(
    database: Database,
    opened: OpenedPlan,
    clients: Sequence[Established],
    weighing: Weighing,
    between: Callable[[], None],
) -> dict[str, StagedDifference]:
    """Stage by client the mixture of its peers' outputs; none for clients with too few voices.

    A client that sent none in its last update is served none. `between` is called after every client; if it
    raises, everything staged is discarded.
    """
    if opened.traits.distil is None:
        return {}
    sent = _read_outputs(database, opened, clients, between)
    weights = opened.strategy.listens(weighing)
    manifests = {client.facts.client: client.manifest for client in clients if client.is_enrolled}
    staged: dict[str, StagedDifference] = {}
    try:
        for row, facts in zip(weights, weighing.cohort.clients, strict=True):
            if facts.client in sent and facts.client in manifests:
                names = [peer.client for peer in weighing.cohort.clients]
                mixture = _mixture(sent, facts.client, names, row, opened.plan.privacy.min_voices)
                if mixture is not None:
                    body = pack(mixture.tensors, manifests[facts.client], compress=True)
                    staged[facts.client] = stage_body(database, body)
            between()
    except BaseException:
        discard(database, staged.values())
        raise
    return staged


def _mixture(
    sent: Mapping[str, Outputs], client: str, names: Sequence[str], row: Floats, least: int
) -> Outputs | None:
    """Return the mixture of peers with outputs of the client's texts; None if they are too few voices."""
    shape = sent[client].bytes.shape
    fits = np.array([name in sent and sent[name].bytes.shape == shape for name in names], bool)
    shares = np.where(fits, row, 0.0)
    places = np.flatnonzero(shares).tolist()
    if not places or not has_voices(shares, least):
        return None
    return mixed([sent[names[place]] for place in places], shares[places].tolist())


def _read_outputs(
    database: Database, opened: OpenedPlan, clients: Sequence[Established], between: Callable[[], None]
) -> dict[str, Outputs]:
    """Read the outputs of each client's last update; one body is in memory at a time."""
    sent: dict[str, Outputs] = {}
    needed = opened.traits.needs_sketch
    for client in clients:
        payload_id, size = client.received
        body = payloads.read_alone(database, payload_id, 0, size)
        with unpack(
            body,
            encoding="zstd" if is_frame(body) else None,
            expected=expected_tensors(client.state.layout, needs_sketch=needed, distils=True),
            max_bytes=opened.plan.limits.max_update_bytes,
            coded=expected_streams(needs_sketch=needed, distils=True),
        ) as envelope:
            outputs = Outputs.read(envelope)
        if outputs is not None and client.facts.is_source:
            sent[client.facts.client] = outputs
        between()
    return sent
