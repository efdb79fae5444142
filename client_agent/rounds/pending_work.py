"""The next task for the machine with the model, found by files alone. Needs no torch and no network."""

from __future__ import annotations

from typing import Literal, NamedTuple

from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.sync_steps import SyncClient, SyncRound, missing_for_join
from client_agent.storage.round_folder import BRIEF, FINAL_WEIGHTS, WEIGHTS, RoundFolder, awaits_exchange
from client_agent.storage.silo_facts import read_silo_facts


class PendingWork(NamedTuple):
    """One task: `prepare` what a join needs, `train` in a round, or `score` the final weights."""

    task: Literal["prepare", "train", "score"]
    folder: RoundFolder
    reason: str


def pending_work(client: SyncClient) -> PendingWork | None:
    """Return the next task that needs the model; None = there is none before the next exchange."""
    rounds, home = client.workspace.rounds, client.workspace.home
    if awaits_exchange(home):
        return None
    if (home / FINAL_WEIGHTS).is_file():
        scored = next((folder for folder in rounds.newest_first() if folder.has(WEIGHTS)), None)
        return PendingWork("score", scored, "the final weights are not scored yet") if scored else None
    newest = next(folder for folder in rounds.newest_first() if folder.has(BRIEF))
    work = SyncRound(client, OpenedBrief.read(newest), newest)
    if newest.has(WEIGHTS):
        return PendingWork("train", newest, f"round {newest.number}: the update is not trained yet")
    reason = missing_for_join(work, read_silo_facts(client.workspace.folder))
    return PendingWork("prepare", newest, f"round {newest.number}: {reason}") if reason else None
