"""Steps of a round in which every client sends its update."""

from __future__ import annotations

from client_agent.errors import CoordinatorRefused
from client_agent.privacy.ledger import Ledger
from client_agent.rounds.delivery import deliver, note_reference
from client_agent.rounds.encode_update import pack_dense, pack_update
from client_agent.rounds.sketch import join_body, update_sketch
from client_agent.rounds.work import Work
from client_agent.sketches.gradient import Sketch
from client_agent.storage.round_folder import REFERENCE, SKETCH, UPDATE


def newcomer_body(work: Work) -> bytes:
    # Without noise it can be computed again. A private sketch is paid for, and kept for the update.
    if work.brief.signature.dp is None:
        return join_body(work.session, work.trainer, work.opened, None)
    if not work.folder.has(SKETCH):
        work.folder.write(SKETCH, private_sketch(work).to_bytes())
    sketch = Sketch.from_bytes(work.folder.read(SKETCH))
    return join_body(work.session, work.trainer, work.opened, sketch)


def encode_sketch(work: Work) -> bytes:
    return private_sketch(work).to_bytes()


def private_sketch(work: Work) -> Sketch:
    ledger = Ledger(work.participant.workspace.folder)
    return update_sketch(work.session, work.trainer, ledger, work.opened, earlier_sketch(work))


def earlier_sketch(work: Work) -> Sketch | None:
    """Return the sketch of the newest round before this one; None if there is none."""
    previous = work.rounds.newest_with(SKETCH, before=work.brief.round)
    return Sketch.from_bytes(previous.read(SKETCH)) if previous is not None else None


def encode_update(work: Work) -> bytes:
    """Encode the update; after a refusal against the reference that the coordinator holds, or whole."""
    # A private sketch exists before the training, so not in `encode_sketch`.
    # The training is stored: its positions are large, and not needed any more.
    work.folder.forget_training()
    if not work.folder.has(REFERENCE):
        return pack_update(work.update_inputs)
    stored_digest = work.folder.read(REFERENCE).decode()
    if not stored_digest:
        return pack_dense(work.update_inputs)
    return pack_update(work.update_inputs, stored_digest=stored_digest)


def push_update(work: Work) -> bytes:
    """Deliver the update; encode it again, and at last whole, if the coordinator lacks its reference."""
    while True:
        try:
            return deliver(work)
        except CoordinatorRefused as refusal:
            note_reference(work, refusal)
        work.folder.write(UPDATE, encode_update(work))
