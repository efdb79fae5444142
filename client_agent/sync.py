"""Exchange the files of an agent on a machine without a network with the coordinator. No torch.

`synchronise` takes every step of a round that needs the coordinator; the steps between them are those of
`client_agent.offline_work`. Both leave their results as files of the round's folder, so each resumes.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from client_agent.errors import AgentError, CoordinatorRefused, PivotPackAwaited, SumNeedsNetwork, WorkNeeded
from client_agent.rounds.failure_policy import FATAL, TRANSIENT, outcome_of
from client_agent.rounds.final_exchange import newest_with, send_final_scores, store_final_weights
from client_agent.rounds.join import rejoin
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.pending_work import pending_work
from client_agent.rounds.sync_steps import SyncClient, SyncRound, layout_of_silo, sync_round
from client_agent.storage.files import write_durably
from client_agent.storage.final_scores import read_final_scores
from client_agent.storage.round_folder import BRIEF, CLOSED, RECEIPT, WEIGHTS
from client_agent.transport.handshake import require_protocol, require_sums
from client_agent.transport.responses import NoOpenRound
from schemas.maths.adapter import Layout
from schemas.messages.rounds import FinishedBrief, RoundBrief

log = logging.getLogger("tessera.agent")

SYNCED = "synced.json"
"""The file in a federation's folder with the time of the last exchange."""

_POLL_SECONDS = 30
_PAUSE_SECONDS = 5.0


class Outcome(NamedTuple):
    """The next task: `work` for the model's machine, `nothing` until the coordinator has more, the end."""

    next: Literal["work", "nothing", "finished"]
    reason: str
    seconds: float = _PAUSE_SECONDS


def synchronise(client: SyncClient, *, waits: bool) -> Outcome:
    """Send what is finished, and fetch the next round; with `waits` until there is work, or the end.

    Raises:
        Stopped: the agent was stopped, or its time is up.
        SumNeedsNetwork: the federation sums updates, and this call does not wait.
        VersionMismatch: the coordinator or this agent must be upgraded.
        AgentError: the coordinator does not answer, and this call does not wait; or a person must act.
    """
    is_checked = False
    while True:
        try:
            if not is_checked:
                _check(client, waits=waits)
                is_checked = True
            outcome = _exchange(client, _POLL_SECONDS if waits else 0)
            # After the exchange, so that the time is that of the last complete one.
            write_durably(client.session.home / SYNCED, json.dumps({"at": _now()}).encode())
            if outcome.next != "nothing" or not waits:
                return outcome
            client.sleep(outcome.seconds)
        except (*TRANSIENT, CoordinatorRefused) as trouble:
            if not waits or (isinstance(trouble, CoordinatorRefused) and trouble.slug in FATAL):
                raise
            log.warning("%s; trying again", trouble)
            client.sleep(_PAUSE_SECONDS)


def last_sync(home: Path) -> str | None:
    """Return the time of the last exchange (RFC 3339), if there was one."""
    try:
        return str(json.loads((home / SYNCED).read_bytes())["at"])
    except (OSError, ValueError, KeyError):
        return None


def _check(client: SyncClient, *, waits: bool) -> None:
    session = client.session
    hello = session.hello()
    require_protocol(hello)
    session.check_plan()
    require_sums(hello, session.manifests.plan)
    summed = session.manifests.plan.privacy.secure_sum
    # Members of a sum must answer within its phases; a stick that is carried about is too slow.
    if summed is not None and not waits:
        raise SumNeedsNetwork(summed.phase_seconds)


def _exchange(client: SyncClient, wait_seconds: int) -> Outcome:
    newest = next(client.workspace.rounds.newest_first(), None)
    # First the round on disk: the coordinator may name a newer one, and this round's update would be lost.
    if newest is not None and newest.has(BRIEF) and newest.has(WEIGHTS) and not newest.finished:
        outcome = _advance(SyncRound(client, OpenedBrief.read(newest), newest))
        if outcome is not None and not _is_over(client, newest.number):
            return outcome
    session = client.session
    answer = session.api.current_round(session.federation_id, wait_seconds=wait_seconds)
    if isinstance(answer, NoOpenRound):
        reason = "the coordinator has nothing for this client now"
        if answer.undrawn is not None:
            reason = f"other clients were drawn for round {answer.undrawn}"
        return Outcome("nothing", reason, answer.seconds)
    if isinstance(answer, FinishedBrief):
        return _finish(client, answer)
    return _begin(client, answer) or Outcome("nothing", f"round {answer.round} is delivered")


def _begin(client: SyncClient, brief: RoundBrief) -> Outcome | None:
    """Take the steps of the coordinator's round that need no model; None if the round is done."""
    # A round of an earlier number is a coordinator that was set back, or another one.
    client.session.manifests.hold_to_order(brief.round)
    rounds = client.workspace.rounds
    folder = rounds.open(brief.round)
    if folder.finished:
        if not folder.has(RECEIPT):
            return None
        rejoin(SyncRound(client, OpenedBrief.of(brief), folder))
    elif not folder.has(WEIGHTS):  # until then a newer brief may name other weights
        folder.write(BRIEF, brief.model_dump_json().encode())
    outcome = _advance(SyncRound(client, OpenedBrief.read(folder), folder))
    rounds.forget_old(client.workspace.keep_rounds)
    return outcome


def _advance(work: SyncRound) -> Outcome | None:
    """Take the steps of a round that need no model; None if the round is done."""
    try:
        sync_round(work)
    except WorkNeeded as awaited:
        return Outcome("work", str(awaited))
    except PivotPackAwaited as awaited:
        return Outcome("nothing", str(awaited))
    if work.folder.finished:
        return None
    return Outcome("work", f"round {work.brief.round}: weights downloaded")


def _is_over(client: SyncClient, round_number: int) -> bool:
    """Close a round without an update if the coordinator accepts none any more; return whether it is over."""
    reason = outcome_of(client.session, round_number)
    if reason is None:
        return False
    log.warning("round %d ended before its update was made (%s)", round_number, reason)
    folder = client.workspace.rounds.open(round_number)
    folder.write(CLOSED, json.dumps({"reason": reason}).encode())
    return True


def _finish(client: SyncClient, brief: FinishedBrief) -> Outcome:
    if brief.weights is None:
        return Outcome("finished", "the federation is finished; this client has no update in it")
    newest = newest_with(client, WEIGHTS)

    def first_layout(opened: OpenedBrief) -> Layout:
        if newest is None:
            raise WorkNeeded("this client has no round on disk")
        return layout_of_silo(SyncRound(client, opened, newest), None)

    store_final_weights(client, brief, brief.weights, first_layout)
    if newest is None:
        return Outcome("finished", "the federation is finished; this client has no round on disk")
    if pending_work(client) is not None:
        return Outcome(
            "work", "the federation is finished; its final weights are downloaded and not scored yet"
        )
    scores = read_final_scores(client.workspace.home)
    try:
        if scores is not None:
            send_final_scores(client, scores)
    except AgentError as error:
        # The federation is finished either way, so this is no failure of the exchange.
        log.warning("scores of the final weights not sent (%s); the next sync sends them again", error)
    return Outcome("finished", "the federation is finished")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
