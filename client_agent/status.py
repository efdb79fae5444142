"""The status of a silo's agent: identity, process, coordinator and rounds. Loads no model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from client_agent.errors import AgentError
from client_agent.identity.membership import Membership, connect_once, is_in_use, read_membership
from client_agent.settings import AgentSettings
from client_agent.storage.round_folder import (
    CLOSED,
    RECEIPT,
    SCORES_SENT,
    TRAINED,
    UPDATE,
    WEIGHTS,
    RoundFolder,
    RoundFolders,
)
from schemas.messages.rounds import FinishedBrief, RoundBrief, Scores
from schemas.messages.updates import Receipt

_STEPS: Final = (
    (SCORES_SENT, "update and scores delivered"),
    (RECEIPT, "update delivered"),
    (UPDATE, "update encoded, not delivered yet"),
    (TRAINED, "trained, update not encoded yet"),
    (WEIGHTS, "weights received, not trained yet"),
)


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """A round in the agent's folder. `before` and `after` are exact match on the silo's held-out examples.

    Fields are None until scores and update are sent.
    """

    round: int
    state: str
    before: float | None
    after: float | None
    bytes_sent: int | None


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """An agent's status. `coordinator` is its answer, or the error.

    `well` is false if a person must act: the coordinator does not answer or refuses this client, or the agent
    does not run and the federation is not finished.
    """

    name: str
    client: str
    federation: str
    url: str
    running: bool
    coordinator: str
    well: bool
    rounds: list[RoundStatus]


def read_status(settings: AgentSettings) -> AgentStatus:
    """Read the agent's folder, newest round first, and send the coordinator one request.

    Raises:
        NotEnrolled: the folder has no membership.
        SettingsUnusable: the membership is damaged.
    """
    member = read_membership(settings.folder)
    running = is_in_use(settings.folder)
    answer, reached, finished = _coordinator_status(settings, member)
    return AgentStatus(
        name=member.name,
        client=member.client_id,
        federation=member.federation_id,
        url=str(settings.url),
        running=running,
        coordinator=answer,
        well=reached and (running or finished),
        rounds=[
            _round(f) for f in RoundFolders(settings.folder / member.federation_id / "rounds").newest_first()
        ],
    )


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


def _round(folder: RoundFolder) -> RoundStatus:
    state = next((text for file, text in _STEPS if folder.has(file)), "joining")
    if folder.has(CLOSED):
        state = f"{state}; closed: {json.loads(folder.read(CLOSED))['reason']}"
    scores = Scores.model_validate_json(folder.read(SCORES_SENT)) if folder.has(SCORES_SENT) else None
    receipt = Receipt.model_validate_json(folder.read(RECEIPT)) if folder.has(RECEIPT) else None
    return RoundStatus(
        round=folder.number,
        state=state,
        before=scores.before.exact_match if scores is not None else None,
        after=scores.after.exact_match if scores is not None else None,
        bytes_sent=receipt.bytes if receipt is not None else None,
    )
