"""Say how a silo's agent stands: who it is, whether it runs, what its federation does, how its rounds went.

Reads the folder and asks the coordinator once; changes nothing and loads no model.
"""

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
    (UPDATE, "update made, not delivered yet"),
    (TRAINED, "trained, no update made yet"),
    (WEIGHTS, "weights received, not trained yet"),
)


@dataclass(frozen=True, slots=True)
class RoundHere:
    """A round in the agent's folder; exact match is that on the silo's own held-out examples.

    What is not known is null: before the scores are sent, or where the round went on without this client.
    """

    round: int
    state: str
    before: float | None
    after: float | None
    bytes_sent: int | None


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """How an agent stands; `coordinator` is what it says, or why it does not.

    `well` unless something needs somebody: the coordinator does not answer or has no place for this client,
    or no agent runs though the federation is not finished.
    """

    name: str
    client: str
    federation: str
    url: str
    running: bool
    coordinator: str
    well: bool
    rounds: list[RoundHere]


def standing(settings: AgentSettings) -> AgentStatus:
    """Look at the folder, newest round first, and ask the coordinator once.

    Raises:
        NotEnrolled: this agent is nobody yet.
        SettingsUnusable: what enrolment left is damaged.
    """
    member = read_membership(settings.folder)
    running = is_in_use(settings.folder)
    said, reached, finished = _asked(settings, member)
    return AgentStatus(
        name=member.name,
        client=member.client_id,
        federation=member.federation_id,
        url=str(settings.url),
        running=running,
        coordinator=said,
        well=reached and (running or finished),
        rounds=[
            _round(f) for f in RoundFolders(settings.folder / member.federation_id / "rounds").newest_first()
        ],
    )


def _asked(settings: AgentSettings, member: Membership) -> tuple[str, bool, bool]:
    """Say what the coordinator says, whether it answers this client, and whether all is over."""
    try:
        with connect_once(settings, member) as api:
            now = api.current_round(member.federation_id)
    except AgentError as error:
        return str(error), False, False
    if isinstance(now, FinishedBrief):
        return "the federation is finished", True, True
    if isinstance(now, RoundBrief):
        until = f" until {now.deadline:%Y-%m-%d %H:%M:%S} UTC" if now.deadline is not None else ""
        return f"round {now.round} is {now.state}{until}", True, False
    return "nothing to do for this client now", True, False


def _round(folder: RoundFolder) -> RoundHere:
    state = next((said for file, said in _STEPS if folder.has(file)), "being joined")
    if folder.has(CLOSED):
        state = f"{state}; over for this client: {json.loads(folder.read(CLOSED))['reason']}"
    scores = Scores.model_validate_json(folder.read(SCORES_SENT)) if folder.has(SCORES_SENT) else None
    receipt = Receipt.model_validate_json(folder.read(RECEIPT)) if folder.has(RECEIPT) else None
    return RoundHere(
        round=folder.number,
        state=state,
        before=scores.before.exact_match if scores is not None else None,
        after=scores.after.exact_match if scores is not None else None,
        bytes_sent=receipt.bytes if receipt is not None else None,
    )
