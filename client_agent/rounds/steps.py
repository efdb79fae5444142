"""One client in one round: a list of steps whose results are files. Resuming is running it again.

A step is done when its file is there; what was sent once is sent again byte for byte, never made anew.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from client_agent.adapters.base import Adapter, State
from client_agent.errors import CoordinatorRefused, DownloadDamaged
from client_agent.rounds.checkpoints import load_served
from client_agent.rounds.download import fetch, fetch_whole
from client_agent.rounds.encode_update import pack_dense, pack_update
from client_agent.rounds.failure_policy import RECEIPT_LOST, TROUBLE, given_up
from client_agent.rounds.participant import Participant
from client_agent.rounds.sketch import join_signature, sign
from client_agent.rounds.train import Trained, train_locally
from client_agent.sketches.gradient import Sketch
from client_agent.storage.base_delta import BaseDeltaMissing, require_whole
from client_agent.storage.files import write_durably
from client_agent.storage.round_folder import (
    BRIEF,
    CLOSED,
    FINAL_WEIGHTS,
    RECEIPT,
    SCORES_SENT,
    SIGNATURE,
    TRAINED,
    UPDATE,
    WEIGHTS,
    RoundFolder,
)
from client_agent.strategies.base import AgentStrategy, Folding, load_strategy
from schemas.messages.rounds import FinishedBrief, RoundBrief

log = logging.getLogger(__name__)

_REFERENCE_MISMATCH = "reference-mismatch"


@dataclass(frozen=True, slots=True)
class _Work:
    """A round under way."""

    who: Participant
    brief: RoundBrief
    folder: RoundFolder


def take_part(who: Participant, brief: RoundBrief) -> bool:
    """Do what is left to do of a round; False when nothing was.

    Raises:
        Stopped: a stop was asked for; run again to resume.
        CoordinatorUnreachable, CoordinatorRefused: as the connection says.
        ManifestRefused: the coordinator has gone back behind a round that was joined.
        AgentError: model, data or plan do not work.
    """
    who.manifests.hold_to_order(brief.round)
    folder = who.rounds.open(brief.round)
    if folder.finished:
        return folder.has(RECEIPT) and _deliver_again(_Work(who, brief, folder))
    if not folder.has(WEIGHTS):  # until then a newer brief may name other weights
        folder.write(BRIEF, brief.model_dump_json().encode())
    _run(_Work(who, RoundBrief.model_validate_json(folder.read(BRIEF)), folder))
    who.rounds.forget_old(who.keep_rounds)
    return True


def _deliver_again(work: _Work) -> bool:
    """Send an update once more, the same bytes, whose receipt is here and which the coordinator asks for.

    Raises:
        ManifestRefused: it does not even know any more that we had joined.
    """
    who, round_number = work.who, work.brief.round
    log.warning(
        "the coordinator has lost the update of round %d that it had received: sent again", round_number
    )
    joined = who.api.join(who.federation, round_number, None)
    who.believe(joined.manifest, round_number=round_number, weights=joined.weights.digest, brief=work.brief)
    work.folder.forget(SCORES_SENT, CLOSED, RECEIPT)
    _run(work)
    return True


def resume(who: Participant) -> None:
    """Deliver what the last run of this agent made and perhaps did not deliver."""
    folder = next(who.rounds.newest_first(), None)
    if folder is not None and folder.has(UPDATE) and not folder.finished:
        log.info("resuming round %d", folder.number)
        _run(_Work(who, RoundBrief.model_validate_json(folder.read(BRIEF)), folder))


def finish(who: Participant, brief: FinishedBrief) -> None:
    """Keep the final personalised weights."""
    if brief.weights is None:
        log.info("the federation is finished; this client never took part")
        return
    who.believe(brief.manifest, round_number=brief.round, weights=brief.weights.digest, final=True)
    body = who.api.weights(who.federation, brief.round)
    if body.digest != brief.weights.digest:
        raise DownloadDamaged("the final weights")
    whole = fetch_whole(who, brief.round, body.digest) if _folds(who) else None  # they then need nothing else
    write_durably(who.home / FINAL_WEIGHTS, whole if whole is not None else body.body)
    log.info("the federation is finished after %d rounds", brief.round - 1)


def _folds(who: Participant) -> bool:
    """Say whether the rounds on disk are of a strategy that adds to the base model."""
    last = who.rounds.newest_with(BRIEF, before=sys.maxsize)
    if last is None:
        return False
    strategy = RoundBrief.model_validate_json(last.read(BRIEF)).strategy
    return isinstance(load_strategy(strategy.name, strategy.options), Folding)


def _run(work: _Work) -> None:
    work.who.hold_to_plan(work.brief)  # a newcomer signs its join, before there is a manifest to believe
    for file, step in _STEPS:
        if work.folder.finished:
            return
        if work.folder.has(file):
            continue
        try:
            work.folder.write(file, step(work))
        except TROUBLE as trouble:
            reason = given_up(work.who, work.folder, file, trouble)
            if reason is None:
                raise
            if reason == RECEIPT_LOST:
                log.warning("round %d has counted the update; the receipt was lost", work.brief.round)
            else:
                log.warning("round %d goes on without this client: %s", work.brief.round, trouble)
            if file == RECEIPT:
                _try_scores(work)
            work.folder.write(CLOSED, json.dumps({"reason": reason}).encode())


def _try_scores(work: _Work) -> None:
    """Send the scores of a round whose update did not count: they are welcome at any time, but not needed."""
    try:
        _send_scores(work)
    except TROUBLE as trouble:
        log.info("round %d: its scores were not taken either: %s", work.brief.round, trouble)


def _pull(work: _Work) -> bytes:
    """Join, and download the personalised weights."""
    who, brief = work.who, work.brief
    who.follow_packs(brief)
    who.require_affordable(brief)
    who.frames(brief)  # a join needs the pack to be stored: it decides which tensors this client has
    newcomer = who.rounds.newest_with(TRAINED, before=brief.round) is None
    body_of_join = _join_signature(work) if newcomer and brief.round > 1 else None
    try:
        joined = who.api.join(who.federation, brief.round, body_of_join)
    except CoordinatorRefused as refusal:
        if refusal.slug != "pack-missing":
            raise
        who.deliver_pack_again(brief)
        joined = who.api.join(who.federation, brief.round, body_of_join)
    who.believe(joined.manifest, round_number=brief.round, weights=joined.weights.digest, brief=brief)
    return fetch(who, brief, work.folder, joined.weights)


def _join_signature(work: _Work) -> bytes:
    """Write what lets a newcomer be weighed; a private release is the round's only one, and kept at once."""
    if work.brief.signature.dp is None:
        return join_signature(work.who, work.brief, None)
    if not work.folder.has(SIGNATURE):
        work.folder.write(SIGNATURE, _signed(work, None).to_bytes())
    return join_signature(work.who, work.brief, Sketch.from_bytes(work.folder.read(SIGNATURE)))


def _train(work: _Work) -> bytes:
    """Mix what was served with what is here, train, score before and after."""
    who, brief = work.who, work.brief
    strategy = load_strategy(brief.strategy.name, brief.strategy.options)
    earlier = _earlier(work)
    with who.injected(brief) as adapter:
        g = _served(work, adapter, strategy)
        if strategy.gated:
            adapter.load_global(g)
        return train_locally(
            who.silo,
            adapter,
            brief.training,
            origin=who.origin(brief),
            round_number=brief.round,
            start=strategy.start(earlier.adapter if earlier else None, g, newcomer=earlier is None),
            earlier=earlier,
            strategy=strategy,
            stop=who.stop,
            title=f"round {brief.round}",
        ).to_bytes()


def _served(work: _Work, adapter: Adapter, strategy: AgentStrategy) -> State:
    """Read what was served; where it adds to what is not here any more, ask for all of it."""
    who, folder = work.who, work.folder
    try:
        return load_served(adapter, strategy, who.rounds, folder)
    except BaseDeltaMissing:
        content = fetch_whole(who, folder.number, folder.base)
        if content is None:
            raise
    require_whole(content, adapter.layout)
    log.warning("round %d: what was folded before is not here: began with the whole of it", folder.number)
    folder.write(WEIGHTS, content)
    return load_served(adapter, strategy, who.rounds, folder)


def _sign(work: _Work) -> bytes:
    """Make the round's signature."""
    return _signed(work, Trained.read(work.folder.path / TRAINED).adapter).to_bytes()


def _signed(work: _Work, trained: State | None) -> Sketch:
    previous = work.who.rounds.newest_with(SIGNATURE, before=work.brief.round)
    last = Sketch.from_bytes(previous.read(SIGNATURE)) if previous is not None else None
    return sign(work.who, work.brief, trained, last)


def _pack(work: _Work) -> bytes:
    """Write the body of the update."""
    return pack_update(work.who, work.brief, work.folder)


def _push(work: _Work) -> bytes:
    """Deliver the update; if it is the difference to what the coordinator does not hold, to what it does, or
    whole."""
    try:
        return _pushed(work)
    except CoordinatorRefused as refusal:
        held = _held_instead(work, refusal)
    if held is not None:
        work.folder.write(UPDATE, pack_update(work.who, work.brief, work.folder, held=held))
        try:
            return _pushed(work)
        except CoordinatorRefused as refusal:
            _held_instead(work, refusal)
    work.folder.write(UPDATE, pack_dense(work.who, work.brief, work.folder))
    return _pushed(work)


def _held_instead(work: _Work, refusal: CoordinatorRefused) -> str | None:
    """Say what the coordinator holds instead of what an update is the difference to; None = nothing.

    Raises:
        CoordinatorRefused: the update is refused for something else.
    """
    if refusal.slug != _REFERENCE_MISMATCH:
        raise refusal
    round_number = work.brief.round
    log.warning("round %d: the coordinator does not hold what this update is the difference to", round_number)
    return refusal.expected


def _pushed(work: _Work) -> bytes:
    body = work.folder.read(UPDATE)
    receipt = work.who.api.push_update(work.who.federation, work.brief.round, body)
    log.info("round %d: update of %d bytes delivered", work.brief.round, len(body))
    return receipt.model_dump_json().encode()


def _send_scores(work: _Work) -> bytes:
    """Tell how good the model is."""
    scores = Trained.read(work.folder.path / TRAINED).scores
    work.who.api.send_scores(work.who.federation, work.brief.round, scores)
    log.info(
        "round %d: exact match %.3f -> %.3f, loss %.3f -> %.3f on %d held-out examples",
        *(work.brief.round, scores.before.exact_match, scores.after.exact_match),
        *(scores.before.loss, scores.after.loss, scores.examples),
    )
    return scores.model_dump_json().encode()


def _earlier(work: _Work) -> Trained | None:
    folder = work.who.rounds.newest_with(TRAINED, before=work.brief.round)
    return Trained.read(folder.path / TRAINED) if folder is not None else None


_STEPS: Final[tuple[tuple[str, Callable[[_Work], bytes]], ...]] = (
    (WEIGHTS, _pull),
    (TRAINED, _train),
    (SIGNATURE, _sign),
    (UPDATE, _pack),
    (RECEIPT, _push),
    (SCORES_SENT, _send_scores),
)
