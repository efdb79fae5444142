"""The status of a silo's agent: identity, process, coordinator and rounds. Loads no model."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from math import exp
from pathlib import Path
from statistics import fmean
from typing import Final

from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open

from client_agent.agent_entries import RATES
from client_agent.errors import AgentError, RoundUnreadable
from client_agent.identity.agent_folder import Membership, is_in_use, read_membership
from client_agent.identity.membership import connect_once
from client_agent.revisions.history import ServingStatus, serving_status
from client_agent.rounds.pending_work import pending_work
from client_agent.secure_sum.progress import read_progress
from client_agent.session import StopFlag, open_offline
from client_agent.settings import AgentSettings
from client_agent.storage.final_scores import read_final_scores
from client_agent.storage.rate_store import RateStore
from client_agent.storage.round_folder import (
    CLOSED,
    FINAL_SCORES_SENT,
    FINAL_WEIGHTS,
    INPUT,
    READY,
    RECEIPT,
    SCORES_SENT,
    SUMMED,
    TRAINED,
    UPDATE,
    WEIGHTS,
    RoundFolder,
    RoundFolders,
    sent_scores,
)
from client_agent.storage.tensor_metadata import read_metadata
from client_agent.sync import last_sync
from schemas.messages.rounds import FinishedBrief, RoundBrief
from schemas.messages.scores import LOSS, Score
from schemas.messages.secure_sum import SumOutcome
from schemas.messages.updates import Receipt

log = logging.getLogger("tessera.agent")

_STEPS: Final = (
    (SCORES_SENT, "update and scores delivered"),
    (SUMMED, "summed, scores not delivered yet"),
    (READY, "ready for the sum"),
    (INPUT, "input of the sum encoded, not ready yet"),
    (RECEIPT, "update delivered"),
    (UPDATE, "update encoded, not delivered yet"),
    (TRAINED, "trained, update not encoded yet"),
    (WEIGHTS, "weights received, training not finished"),
)


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """A round in the agent's folder; fields are None before they are known.

    Attributes:
        served: the loss on the test examples before the local steps.
        trained: the loss on the test examples after the local steps.
        personal: which of both is the client's model.
        scores: every score of that model.
        learning_rate: the rate of the local steps.
        gates: with `mix: gate`, the share of the served weights in each block after the local steps, from 0
            to 1, the mean over its modules.
    """

    round: int
    state: str
    served: float | None
    trained: float | None
    personal: str | None
    scores: dict[str, Score] | None
    learning_rate: float | None
    bytes_sent: int | None
    gates: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """An agent's status. `coordinator` is its answer, or the error.

    `well` is false if a person must act: the coordinator does not answer or refuses this client, or the agent
    does not run and the federation is not finished. `learning_rate` is the search's result, if the plan names
    no rate; `final_scores` are those of the final weights on the test examples. `last_sync` is the time of
    the last exchange by `tessera agent sync`, if there was one; `next_command` is None while an agent runs,
    and after the end. `serving` is None if silo.toml exports no revisions.
    """

    name: str
    client: str
    federation: str
    url: str
    running: bool
    coordinator: str
    well: bool
    learning_rate: str | None
    final_scores: dict[str, Score] | None
    rounds: list[RoundStatus]
    last_sync: str | None = None
    next_command: str | None = None
    serving: ServingStatus | None = None

    def document(self) -> object:
        """Return the status as `tessera agent status --json` prints it."""
        return TypeAdapter(AgentStatus).dump_python(self, mode="json")


def read_status(settings: AgentSettings) -> AgentStatus:
    """Read the agent's folder, newest round first, and send the coordinator one request.

    Raises:
        NotEnrolled: the folder has no membership.
        SettingsUnusable: the membership is damaged.
    """
    member = read_membership(settings.folder)
    running = is_in_use(settings.folder)
    answer, reached, finished = _coordinator_status(settings, member)
    home = settings.folder / member.federation_id
    synced = last_sync(home)
    search, final = RateStore(home / RATES).newest(), read_final_scores(home)
    return AgentStatus(
        name=member.name,
        client=member.client_id,
        federation=member.federation_id,
        url=str(settings.url),
        running=running,
        coordinator=answer,
        well=reached and (running or finished or synced is not None),
        learning_rate=str(search) if search is not None else None,
        final_scores=final.scores if final is not None else None,
        last_sync=synced,
        next_command=None if running else _next_command(settings, home, synced is not None, finished),
        serving=serving_status(settings, is_over=finished and not running),
        rounds=[_round(folder) for folder in RoundFolders(home / "rounds").newest_first()],
    )


def _next_command(settings: AgentSettings, home: Path, syncs: bool, finished: bool) -> str | None:
    """Return what a person or a scheduler calls next; None after the end."""
    try:
        with open_offline(settings, StopFlag()) as client:
            pending = pending_work(client)
    except RoundUnreadable as error:
        log.warning("%s", error)
        return "tessera agent run"
    if syncs and pending is not None:
        return "tessera agent work"
    if syncs:
        is_over = finished and (home / FINAL_SCORES_SENT).is_file()
        return None if is_over else "tessera agent sync"
    # A coordinator may be gone after the end; who has the final weights needs nothing more of it.
    return None if finished or (home / FINAL_WEIGHTS).is_file() else "tessera agent run"


def _coordinator_status(settings: AgentSettings, member: Membership) -> tuple[str, bool, bool]:
    """Return the coordinator's status as text, whether it accepts this client, and whether it is finished."""
    try:
        with connect_once(settings, member) as api:
            current = api.current_round(member.federation_id)
    except AgentError as error:
        return str(error), False, False
    if isinstance(current, FinishedBrief):
        return "the federation is finished", True, True
    if isinstance(current, RoundBrief):
        until = f" until {current.deadline:%Y-%m-%d %H:%M:%S} UTC" if current.deadline is not None else ""
        return f"round {current.round} is {current.state}{until}", True, False
    return "nothing to do for this client now", True, False


def _learning_rate(folder: RoundFolder) -> float | None:
    """Return the rate of a round's training; None before it is done, or if its file is damaged."""
    try:
        return float(read_metadata(folder.path / TRAINED)["learning_rate"])
    except (OSError, ValueError, KeyError):
        return None


def _gates(folder: RoundFolder) -> dict[str, float] | None:
    """Return the mean gate of each block, sigmoid(gate); None without gates, or before training."""
    by_block: dict[str, list[float]] = {}
    try:
        with safe_open(folder.path / TRAINED, framework="numpy") as file:
            for key in file.keys():  # noqa: SIM118, it is no mapping
                part, _, name = key.partition("/")
                if part == "private" and name.endswith(".gate"):
                    gate = 1 / (1 + exp(-float(file.get_tensor(key))))
                    by_block.setdefault(name.partition(".")[0], []).append(gate)
    except (OSError, SafetensorError):
        return None
    blocks = sorted(by_block, key=lambda block: int(block[1:]))
    return {block: fmean(by_block[block]) for block in blocks} or None


def _sum_state(folder: RoundFolder) -> str:
    """Return the progress of a round's sum, and after its end whether this client is counted in it."""
    if folder.has(SUMMED):
        counted = SumOutcome.model_validate_json(folder.read(SUMMED)).counted or []
        return f"summed over {len(counted)} members"
    progress = read_progress(folder)
    if progress is None or folder.finished:
        return "ready for the sum"
    return f"ready for the sum; {progress}, for {progress.seconds():.0f} s"


def _round(folder: RoundFolder) -> RoundStatus:
    """Return the status of a round; a damaged file hides this round alone."""
    try:
        return _read_round(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        fact = str(error) if isinstance(error, OSError) else type(error).__name__
        log.warning("%s: a file is missing or damaged (%s)", folder.path, fact)
        return RoundStatus(folder.number, "a file cannot be read", *[None] * 6)


def _read_round(folder: RoundFolder) -> RoundStatus:
    state = next((text for file, text in _STEPS if folder.has(file)), "joining")
    if folder.has(READY):
        state = _sum_state(folder)
    elif folder.has(SCORES_SENT) and not folder.has(RECEIPT):
        state = "scores delivered"
    if folder.has(CLOSED):
        state = f"{state}; closed: {json.loads(folder.read(CLOSED))['reason']}"
    scores = sent_scores(folder)
    receipt = Receipt.model_validate_json(folder.read(RECEIPT)) if folder.has(RECEIPT) else None
    return RoundStatus(
        round=folder.number,
        state=state,
        served=scores.served[LOSS].value if scores is not None else None,
        trained=scores.trained[LOSS].value if scores is not None else None,
        personal=scores.kept if scores is not None else None,
        scores=scores.kept_scores if scores is not None else None,
        learning_rate=_learning_rate(folder),
        bytes_sent=receipt.bytes if receipt is not None else None,
        gates=_gates(folder),
    )
