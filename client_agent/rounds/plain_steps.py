"""Steps of a round in which every client sends its update, and the scores that end every round."""

from __future__ import annotations

import logging

from client_agent.adapters.base import State
from client_agent.errors import CoordinatorRefused
from client_agent.privacy.ledger import Ledger
from client_agent.rounds.encode_update import pack_dense, pack_update
from client_agent.rounds.sketch import join_body, update_sketch
from client_agent.rounds.work import Work
from client_agent.sketches.gradient import Sketch
from client_agent.storage.round_folder import PARTIAL, PARTIAL_COMMON, SIGNATURE, UPDATE
from schemas.messages.scores import LOSS, as_text

log = logging.getLogger(__name__)

_REFERENCE_MISMATCH = "reference-mismatch"


def newcomer_body(work: Work) -> bytes:
    if work.brief.signature.dp is None:
        return join_body(work.session, work.trainer, work.opened, None)
    if not work.folder.has(SIGNATURE):
        work.folder.write(SIGNATURE, private_sketch(work, None).to_bytes())
    sketch = Sketch.from_bytes(work.folder.read(SIGNATURE))
    return join_body(work.session, work.trainer, work.opened, sketch)


def sign(work: Work) -> bytes:
    return private_sketch(work, work.trained.of(work.folder).adapter).to_bytes()


def private_sketch(work: Work, trained: State | None) -> Sketch:
    previous = work.rounds.newest_with(SIGNATURE, before=work.brief.round)
    last = Sketch.from_bytes(previous.read(SIGNATURE)) if previous is not None else None
    ledger = Ledger(work.participant.workspace.folder)
    return update_sketch(work.session, work.trainer, ledger, work.opened, trained, last)


def encode_update(work: Work) -> bytes:
    # A private sketch exists before the training, so not in `sign`.
    work.folder.forget(PARTIAL, PARTIAL_COMMON)
    return pack_update(work.update_inputs)


def push_update(work: Work) -> bytes:
    """Deliver the update; encode it again, and at last whole, if the coordinator lacks its reference."""
    try:
        return _deliver(work)
    except CoordinatorRefused as refusal:
        stored_digest = _stored_reference(work, refusal)
    if stored_digest is not None:
        work.folder.write(UPDATE, pack_update(work.update_inputs, stored_digest=stored_digest))
        try:
            return _deliver(work)
        except CoordinatorRefused as refusal:
            _stored_reference(work, refusal)
    work.folder.write(UPDATE, pack_dense(work.update_inputs))
    return _deliver(work)


def _stored_reference(work: Work, refusal: CoordinatorRefused) -> str | None:
    """Return the digest of the reference that the coordinator holds; None = it holds none.

    Raises:
        CoordinatorRefused: the update is refused for another reason.
    """
    if refusal.slug != _REFERENCE_MISMATCH:
        raise refusal
    log.warning("round %d: the coordinator lacks the update's reference; encoding it again", work.brief.round)
    return refusal.expected


def _deliver(work: Work) -> bytes:
    body = work.folder.read(UPDATE)
    receipt = work.session.api.push_update(work.session.federation_id, work.brief.round, body)
    log.info("round %d: update of %d bytes delivered", work.brief.round, len(body))
    return receipt.model_dump_json().encode()


def report_scores(work: Work) -> bytes:
    """Send the scores of the round, unless they travel in the sum; return them."""
    scores = work.trained.of(work.folder).scores
    if not work.scores_are_summed:
        work.session.api.send_scores(work.session.federation_id, work.brief.round, scores)
    log.info(
        "round %d: held-out loss %.3f served, %.3f trained; %s kept: %s",
        *(work.brief.round, scores.served[LOSS].value, scores.trained[LOSS].value, scores.kept),
        as_text(scores.of_kept),
    )
    return scores.model_dump_json().encode()
