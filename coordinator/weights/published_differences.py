"""Serve the difference by which a client reconstructs its weights from the ones that it was served before.

It was published with the weights. Zeros, with which new clients begin, are a frame that nothing is added to.
"""

from __future__ import annotations

from sqlalchemy import bindparam, select

from coordinator.auth.authentication import Member
from coordinator.db.engine import Database, run
from coordinator.db.tables.federations import PayloadRow
from coordinator.http.downloads import Stored
from coordinator.http.limits.concurrency import codec_slot, has_space
from coordinator.rounds import base_weights
from coordinator.rounds.base_weights import ServedWeights, Zeros
from coordinator.settings import Settings
from coordinator.weights import store
from coordinator.weights.compressed import DifferenceTo
from coordinator.weights.store import SERVED, ZEROS, EncodedKey
from schemas.wire.compress import compress_pieces

_DIGEST = select(PayloadRow.digest).where(PayloadRow.id == bindparam("payload"))


def published_difference(
    database: Database, settings: Settings, member: Member, weights: ServedWeights, request: DifferenceTo
) -> Stored | None:
    """Return the difference to the weights that a client has; None = it needs the weights as stored.

    Raises:
        Busy: too many requests are being encoded.
    """
    place = (member.federation_id, member.client_id, weights.round_number)
    with database.read() as session:
        earlier = base_weights.newest_reference(session, member.client_id, weights.round_number - 1)
        published = store.find_encoded(session, EncodedKey(*place, SERVED))
        stored = store.find_encoded(session, EncodedKey(*place, ZEROS))
        digest = run(session, _DIGEST, {"payload": weights.payload_id}).scalar()
    if earlier is not None and published is not None:
        return published.stored if request.digest == earlier.digest else None
    head = weights.head or b""
    zeros = Zeros(head, weights.size - len(head))
    if digest != zeros.digest:
        return None
    if stored is None and has_space(database, settings):
        with codec_slot():
            body = compress_pieces([head, *zeros.pieces()], weights.size)
            with database.write() as session:
                stored = store.store_encoded(session, EncodedKey(*place, ZEROS), body)
    return stored.stored if stored is not None else None
