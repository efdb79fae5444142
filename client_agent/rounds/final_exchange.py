"""Download a federation's final weights, and send their scores. Needs no torch."""

from __future__ import annotations

import logging
from collections.abc import Callable

from client_agent.errors import CoordinatorRefused, DownloadDamaged
from client_agent.rounds.client import Client
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.weights_difference import download_difference, earlier_weights
from client_agent.storage.files import write_durably
from client_agent.storage.final_scores import FinalScores
from client_agent.storage.round_folder import (
    BRIEF,
    FINAL_SCORES,
    FINAL_SCORES_SENT,
    FINAL_WEIGHTS,
    SCORES_SENT,
    RoundFolder,
    sent_scores,
)
from schemas.maths.adapter import Layout
from schemas.messages.rounds import FinishedBrief, WeightsReference

log = logging.getLogger(__name__)


def store_final_weights(
    client: Client,
    brief: FinishedBrief,
    weights: WeightsReference,
    layout: Callable[[OpenedBrief], Layout],
) -> None:
    """Download and store the final weights; scores of other ones are deleted.

    `layout` returns that of this client's first adapter.

    Raises:
        DownloadDamaged: the body has another digest.
        ManifestRefused, ManifestExpired, RosterRefused: a check of the manifest fails.
    """
    session, workspace = client.session, client.workspace
    session.accept_manifest(brief.manifest, round_number=brief.round, weights=weights.digest, final=True)
    newest = newest_with(client, BRIEF)
    opened = OpenedBrief.read(newest) if newest is not None else None
    content = _downloaded(client, brief.round, weights, opened)
    if opened is not None:
        form = opened.strategy.served
        content = form.complete_final(session, brief.round, weights.digest, content, lambda: layout(opened))
    file = workspace.home / FINAL_WEIGHTS
    # Scores of other weights, from before a restored backup, must not be taken for those of these.
    if not file.is_file() or file.read_bytes() != content:
        (workspace.home / FINAL_SCORES).unlink(missing_ok=True)
        (workspace.home / FINAL_SCORES_SENT).unlink(missing_ok=True)
    write_durably(file, content)
    rounds = "1 round" if brief.round == 2 else f"{brief.round - 1} rounds"
    log.info("federation finished after %s: final weights stored", rounds)


def _downloaded(
    client: Client, round_number: int, weights: WeightsReference, opened: OpenedBrief | None
) -> bytes:
    """Return the final weights, from the difference to the last ones where there is one.

    Raises:
        DownloadDamaged: the body has another digest.
    """
    session = client.session
    recipe = opened.brief.wire.served_difference if opened is not None else None
    if opened is not None and recipe is not None:
        earlier, seed = earlier_weights(client.workspace.rounds, round_number), opened.brief.training.seed
        content = download_difference(session, round_number, weights, recipe, earlier, seed)
        if content is not None:
            return content
    body = session.api.weights(session.federation_id, round_number)
    if body.digest != weights.digest:
        raise DownloadDamaged("the final weights")
    return body.body


def send_final_scores(client: Client, final: FinalScores) -> None:
    """Send the scores of the final weights with those of the last round, unless an earlier call succeeded."""
    session, record = client.session, client.workspace.home / FINAL_SCORES_SENT
    last = newest_with(client, SCORES_SENT)
    if record.is_file():
        return
    summed = session.manifests.plan.privacy.secure_sum
    if summed is not None and summed.scores == "summed":
        log.info("scores of the final weights not sent: this federation sums the scores of its clients")
        return
    earlier = sent_scores(last) if last is not None else None
    if last is None or earlier is None:
        log.info("scores of the final weights not sent: this client has sent those of no round")
        return
    scores = earlier.model_copy(update={"final": final.scores, "final_kept": final.are_kept})
    try:
        session.api.send_scores(session.federation_id, last.number, scores)
    except CoordinatorRefused as refusal:
        # The API takes final scores only together with those of the last published round, and knows which
        # that is: rounds after it may have been abandoned.
        if refusal.slug != "round-closed":
            raise
        log.info("scores of the final weights not sent: %s", refusal)
        return
    write_durably(record, scores.model_dump_json().encode())


def newest_with(client: Client, file: str) -> RoundFolder | None:
    """Return the newest round that has a file, if any."""
    return next((folder for folder in client.workspace.rounds.newest_first() if folder.has(file)), None)
