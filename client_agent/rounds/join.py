"""Join a round, accept its manifest, and download its weights. Needs no torch."""

from __future__ import annotations

import logging
from collections.abc import Callable

from client_agent.errors import CoordinatorRefused
from client_agent.rounds.download import download_weights
from client_agent.rounds.opened_round import OpenedRound
from client_agent.rounds.update_history import last_counted_state
from client_agent.rounds.weights_difference import earlier_weights
from client_agent.storage.archive import move_aside
from client_agent.storage.round_folder import CLOSED, JOIN, RECEIPT, SCORES_SENT, TRAINED, RoundFolders
from schemas.maths.adapter import Layout

log = logging.getLogger(__name__)

_PACK_MISSING = "pack-missing"


def join_round(
    work: OpenedRound,
    body: bytes | None,
    *,
    redeliver: Callable[[], None],
    layout: Callable[[], Layout],
) -> bytes:
    """Join a round, return the weights that it begins with, and store what its parts need beside them.

    Args:
        body: a newcomer's sketch.
        redeliver: uploads the alignment pack again, which the coordinator has lost.
        layout: returns the layout of what this client sends.

    Raises:
        ManifestRefused, ManifestExpired, RosterRefused: a check of the manifest fails.
        DownloadDamaged: the weights have another digest.
        BaseDeltaMissing: they are incomplete, and the coordinator has not the whole of them.
    """
    session, brief = work.session, work.brief
    try:
        joined = session.api.join(session.federation_id, brief.round, body)
    except CoordinatorRefused as refusal:
        # After a restored backup the coordinator may lack the pack that an earlier join delivered.
        if refusal.slug != _PACK_MISSING:
            raise
        redeliver()
        joined = session.api.join(session.federation_id, brief.round, body)
    session.accept_manifest(
        # The manifest is accepted before the download, so that the digest of the weights is signed.
        joined.manifest,
        round_number=brief.round,
        weights=joined.weights.digest,
        brief=brief,
    )
    log.info("round %d: joined", brief.round)
    wire = brief.wire
    last_update, earlier = None, None
    if wire.own_last_recipe is not None:
        last_update = last_counted_state(work.rounds, work.trained, brief.round)
    if wire.served_difference is not None:
        earlier = earlier_weights(work.rounds, brief.round)
    content = download_weights(session, brief, work.folder, joined.weights, last_update, earlier)
    content = work.opened.strategy.served.complete(work, content, layout)
    for part in work.opened.parts:
        part.download(work)
    return content


def rejoin(work: OpenedRound) -> None:
    """Join a round again that has a receipt here, so that the same update is sent once more.

    Raises:
        ManifestRefused: the coordinator has lost this client's join, too.
    """
    session, round_number = work.session, work.brief.round
    session.check_brief(work.brief)
    log.warning("round %d: the coordinator has lost the update; sending it again", round_number)
    joined = session.api.join(session.federation_id, round_number, None)
    session.accept_manifest(
        joined.manifest, round_number=round_number, weights=joined.weights.digest, brief=work.brief
    )
    # The receipt last: a finished round without one would never be delivered again.
    work.folder.forget(SCORES_SENT, CLOSED, RECEIPT)


def archive_trained(rounds: RoundFolders) -> None:
    """Archive the trained adapters and a newcomer's join of a voided pack.

    Their P and Q are invalid in the frames of the next pack.
    """
    for folder in rounds.newest_first():
        if folder.has(TRAINED):
            move_aside(folder.path / TRAINED, "trained under an alignment pack that ended")
        # It names the voided pack.
        folder.forget(JOIN)
