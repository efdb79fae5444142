"""One client in one round: a list of steps whose results are files. Resuming is running it again.

A step is done when its file exists; what was sent once is sent again byte for byte, never made anew.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Final

from client_agent.adapters.base import Adapter, State
from client_agent.errors import CoordinatorRefused
from client_agent.privacy.ledger import Ledger
from client_agent.rounds.byte_budget import has_budget, require_affordable
from client_agent.rounds.download import download_weights, download_whole
from client_agent.rounds.encode_update import pack_dense, pack_update
from client_agent.rounds.failure_policy import RECEIPT_LOST, TROUBLE, closing_reason
from client_agent.rounds.opened_brief import OpenedBrief
from client_agent.rounds.participant import Participant
from client_agent.rounds.served_weights import load_served
from client_agent.rounds.sketch import join_body, update_sketch
from client_agent.rounds.train import learning_rate, train_locally
from client_agent.rounds.update_history import last_counted_state
from client_agent.rounds.work import Work
from client_agent.sketches.gradient import Sketch
from client_agent.storage.archive import move_aside
from client_agent.storage.base_delta import BaseDeltaMissing, require_whole
from client_agent.storage.round_folder import (
    BRIEF,
    CLOSED,
    FOLD,
    PARTIAL,
    RECEIPT,
    SCORES_SENT,
    SIGNATURE,
    TRAINED,
    UPDATE,
    WEIGHTS,
    RoundFolders,
)
from schemas.messages.rounds import RoundBrief
from schemas.messages.scores import LOSS, as_text
from schemas.wire.digests import digest_of

log = logging.getLogger(__name__)

_REFERENCE_MISMATCH = "reference-mismatch"


def take_part(participant: Participant, brief: RoundBrief) -> bool:
    """Run the missing steps of a round; False if there were none.

    Raises:
        Stopped: the agent was stopped; call again to resume.
        CoordinatorUnreachable, CoordinatorRefused: the connection failed.
        ManifestRefused: the coordinator has lost a round that this client joined.
        AgentError: model, data or plan do not work.
    """
    participant.session.manifests.hold_to_order(brief.round)
    rounds = participant.workspace.rounds
    folder = rounds.open(brief.round)
    if folder.finished:
        return folder.has(RECEIPT) and _deliver_again(Work(participant, OpenedBrief.of(brief), folder))
    if not folder.has(WEIGHTS):  # until then a newer brief may name other weights
        folder.write(BRIEF, brief.model_dump_json().encode())
    _run(Work(participant, OpenedBrief.read(folder), folder))
    rounds.forget_old(participant.workspace.keep_rounds)
    return True


def resume(participant: Participant) -> None:
    """Deliver the update that an earlier run made and perhaps did not deliver."""
    folder = next(participant.workspace.rounds.newest_first(), None)
    if folder is not None and folder.has(UPDATE) and not folder.finished:
        log.info("round %d: resuming", folder.number)
        _run(Work(participant, OpenedBrief.read(folder), folder))


def _deliver_again(work: Work) -> bool:
    """Send an update again, the same bytes, whose receipt is here and which the coordinator asks for.

    Raises:
        ManifestRefused: the coordinator has lost this client's join, too.
    """
    session, round_number = work.session, work.brief.round
    log.warning("round %d: the coordinator has lost the update; sending it again", round_number)
    joined = session.api.join(session.federation_id, round_number, None)
    session.accept_manifest(
        joined.manifest, round_number=round_number, weights=joined.weights.digest, brief=work.brief
    )
    work.folder.forget(SCORES_SENT, CLOSED, RECEIPT)
    _run(work)
    return True


def _run(work: Work) -> None:
    work.session.check_brief(work.brief)  # a newcomer's join carries a sketch, before any manifest
    for file, step in _STEPS:
        if work.folder.finished:
            return
        if work.folder.has(file):
            continue
        try:
            work.folder.write(file, step(work))
        except TROUBLE as trouble:
            reason = closing_reason(work.session, work.folder, file, trouble)
            if reason is None:
                raise
            _close(work, file, reason, trouble)


def _close(work: Work, file: str, reason: str, trouble: Exception) -> None:
    if reason == RECEIPT_LOST:
        log.warning("round %d: receipt lost (the update was counted)", work.brief.round)
    else:
        log.warning(
            "round %d: update not counted (%s); continuing with the next round", work.brief.round, trouble
        )
    if file == RECEIPT:
        try:
            work.folder.write(SCORES_SENT, _send_scores(work))
        except TROUBLE as error:
            log.info("round %d: scores not accepted (%s)", work.brief.round, error)
    work.folder.write(CLOSED, json.dumps({"reason": reason}).encode())


def _pull(work: Work) -> bytes:
    session, trainer, brief = work.session, work.trainer, work.brief
    if brief.alignment is not None and trainer.drop_ended_pack():
        archive_trained(work.rounds)
    if has_budget(work.opened):
        require_affordable(work.opened, trainer.layout(work.opened, work.earlier))
    trainer.silo.require_fit(brief.training.max_length)
    trainer.frames(brief)  # the coordinator must have the pack before a join: it determines the layout
    newcomer = work.rounds.newest_with(TRAINED, before=brief.round) is None
    body = _join_body(work) if newcomer and brief.round > 1 else None
    try:
        joined = session.api.join(session.federation_id, brief.round, body)
    except CoordinatorRefused as refusal:
        if refusal.slug != "pack-missing":
            raise
        trainer.redeliver_pack(brief)
        joined = session.api.join(session.federation_id, brief.round, body)
    session.accept_manifest(
        joined.manifest, round_number=brief.round, weights=joined.weights.digest, brief=brief
    )
    is_compressed = brief.wire.requested_recipe != "dense"
    last_update = last_counted_state(work.rounds, work.trained, brief.round) if is_compressed else None
    return download_weights(session, brief, work.folder, joined.weights, last_update)


def archive_trained(rounds: RoundFolders) -> None:
    """Archive the trained adapters of a pack that has ended: their P and Q are invalid under the next."""
    for folder in rounds.newest_first():
        if folder.has(TRAINED):
            move_aside(folder.path / TRAINED, "trained under an alignment pack that ended")


def _join_body(work: Work) -> bytes:
    if work.brief.signature.dp is None:
        return join_body(work.session, work.trainer, work.opened, None)
    if not work.folder.has(SIGNATURE):
        work.folder.write(SIGNATURE, _sketch(work, None).to_bytes())
    sketch = Sketch.from_bytes(work.folder.read(SIGNATURE))
    return join_body(work.session, work.trainer, work.opened, sketch)


def _train(work: Work) -> bytes:
    trainer, opened, brief = work.trainer, work.opened, work.brief
    earlier, traits = work.trained.before(brief.round), work.opened.traits
    origin = trainer.origin(opened)
    with trainer.injected(opened, work.earlier) as adapter:
        rate = learning_rate(
            *(trainer.silo, adapter, brief.training, origin, work.participant.workspace.rates, trainer.stop),
            first=trainer.first_adapter(opened),
            traits=traits,
        )
        served = _load_served(work, adapter)
        if traits.gated:
            adapter.load_global(served)
        return train_locally(
            trainer.silo,
            adapter,
            brief.training,
            learning_rate=rate,
            origin=origin,
            round_number=brief.round,
            total_rounds=brief.total_rounds,
            start=opened.strategy.start(work.earlier, served, newcomer=earlier is None),
            earlier=earlier,
            federated=True,
            scores=brief.scores,
            surroundings=_surroundings(work),
            traits=traits,
            stop=trainer.stop,
            checkpoint=work.checkpoint,
        ).to_bytes()


def _surroundings(work: Work) -> str:
    """Return the digest of what acts in the model beside the adapter: global branch and base delta."""
    folder, traits = work.folder, work.opened.traits
    files = [file for file, acts in ((WEIGHTS, traits.gated), (FOLD, traits.base_delta)) if acts]
    return " ".join(digest_of(folder.read(file)) for file in files)


def _load_served(work: Work, adapter: Adapter) -> State:
    """Read the served weights; download the whole base delta if earlier increments are missing here."""
    folder, traits, rounds = work.folder, work.opened.traits, work.rounds
    try:
        return load_served(adapter, traits, rounds, folder)
    except BaseDeltaMissing:
        content = download_whole(work.session, folder.number, folder.base)
        if content is None:
            raise
    require_whole(content, adapter.layout)
    log.warning("round %d: earlier base deltas are missing; downloaded the whole of it", folder.number)
    folder.write(WEIGHTS, content)
    return load_served(adapter, traits, rounds, folder)


def _sign(work: Work) -> bytes:
    return _sketch(work, work.trained.of(work.folder).adapter).to_bytes()


def _sketch(work: Work, trained: State | None) -> Sketch:
    previous = work.rounds.newest_with(SIGNATURE, before=work.brief.round)
    last = Sketch.from_bytes(previous.read(SIGNATURE)) if previous is not None else None
    ledger = Ledger(work.participant.workspace.folder)
    return update_sketch(work.session, work.trainer, ledger, work.opened, trained, last)


def _pack(work: Work) -> bytes:
    work.folder.forget(PARTIAL)  # a private sketch exists before the training, so not in `_sign`
    return pack_update(work.update_inputs)


def _push(work: Work) -> bytes:
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


def _send_scores(work: Work) -> bytes:
    scores = work.trained.of(work.folder).scores
    work.session.api.send_scores(work.session.federation_id, work.brief.round, scores)
    log.info(
        "round %d: held-out loss %.3f served, %.3f trained; %s kept: %s",
        *(work.brief.round, scores.served[LOSS].value, scores.trained[LOSS].value, scores.kept),
        as_text(scores.of_kept),
    )
    return scores.model_dump_json().encode()


_STEPS: Final[tuple[tuple[str, Callable[[Work], bytes]], ...]] = (
    (WEIGHTS, _pull),
    (TRAINED, _train),
    (SIGNATURE, _sign),
    (UPDATE, _pack),
    (RECEIPT, _push),
    (SCORES_SENT, _send_scores),
)
