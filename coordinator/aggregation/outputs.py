"""Mix the outputs of clients' models on public texts, and stage a mixture for each client that sent them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from coordinator.aggregation.part import ClosedRound, EstablishedClient, NewWeights, Part
from coordinator.aggregation.voices import has_voices
from coordinator.db.engine import Database
from coordinator.db.tables.alignment import AnchorsRow
from coordinator.storage import payloads
from coordinator.storage.payloads import StagedPayload
from coordinator.storage.staging import Staging
from coordinator.strategies.base import Floats
from coordinator.strategies.opening import OpenedPlan
from coordinator.updates.validation import expected_streams, expected_tensors
from coordinator.weights.store import OUTPUTS
from schemas.messages.alignment import Anchors
from schemas.wire.compress import is_frame
from schemas.wire.envelope import pack, unpack
from schemas.wire.outputs import Outputs, mixed, rows_of


class OutputMixtures(Part):
    """Mixtures of the outputs of clients, which are served beside the weights."""

    def finish(self, closed: ClosedRound, new: NewWeights) -> None:
        """Stage for each client the mixture of its peers' outputs; none for clients with too few voices.

        A client that sent none in its last update, or of other texts, is served none.
        """
        if new.settled is None or not new.clients:
            return
        staging, opened, weighing = closed.staging, closed.opened, new.settled.weighing
        outputs_by_client = _read_outputs(staging, opened, new.clients)
        weights = opened.strategy.listens(weighing)
        manifests = {client.facts.client: client.manifest for client in new.clients if client.is_enrolled}
        names = [peer.client for peer in weighing.cohort.clients]
        staged: dict[str, StagedPayload] = {}
        for row, client in zip(weights, names, strict=True):
            if client in outputs_by_client and client in manifests:
                mixture = _mixture(outputs_by_client, names, row, opened.plan.privacy.min_voices)
                if mixture is not None:
                    body = pack(mixture.tensors, manifests[client], compress=True)
                    staged[client] = staging.stage_body(body)
            staging.between()
        new.beside[OUTPUTS] = staged


def _rows(database: Database, federation_id: str, opened: OpenedPlan) -> int:
    """Return how many rows the outputs on the federation's public texts have."""
    with database.read() as session:
        row = session.get_one(AnchorsRow, federation_id)
        body = payloads.read(session, row.payload_id, 0, row.bytes)
    texts = Anchors.model_validate_json(body).anchors[: opened.options.distilled_texts]
    return rows_of(text.answer for text in texts)


def _mixture(
    outputs_by_client: Mapping[str, Outputs], names: Sequence[str], row: Floats, least: int
) -> Outputs | None:
    """Return the mixture of a client's peers; None if no row has enough voices.

    A row may have fewer voices than the mixture, because the tokens of few peers end there.
    """
    places = [place for place in np.flatnonzero(row).tolist() if names[place] in outputs_by_client]
    if not places:
        return None
    peer_outputs = [outputs_by_client[names[place]] for place in places]
    mixture = mixed(peer_outputs, row[places], partial(has_voices, least=least))
    return mixture if mixture.shares.any() else None


def _read_outputs(
    staging: Staging, opened: OpenedPlan, clients: Sequence[EstablishedClient]
) -> dict[str, Outputs]:
    """Read the outputs of each client's last update; one body is in memory at a time."""
    outputs_by_client: dict[str, Outputs] = {}
    rows = _rows(staging.database, clients[0].manifest.federation, opened)
    needed = opened.traits.needs_sketch
    for client in clients:
        payload_id, size = client.received
        body = payloads.read_alone(staging.database, payload_id, 0, size)
        with unpack(
            body,
            encoding="zstd" if is_frame(body) else None,
            expected=expected_tensors(client.state.layout, needs_sketch=needed, distils=True),
            max_bytes=opened.plan.limits.max_update_bytes,
            coded=expected_streams(needs_sketch=needed, distils=True),
        ) as envelope:
            outputs = Outputs.read(envelope)
        # Outputs with another number of rows are of other texts.
        if outputs is not None and len(outputs.bytes) == rows:
            outputs_by_client[client.facts.client] = outputs
        staging.between()
    return outputs_by_client
