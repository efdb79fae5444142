"""The agent of a silo: downloads rounds, trains locally, uploads updates. Never imports the coordinator.

from client_agent import AgentSettings, open_participant, run

with open_participant(AgentSettings.from_toml("silo.toml")) as participant:
    run(participant)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from client_agent.daemon import run as run
    from client_agent.rounds.participant import Participant as Participant
    from client_agent.rounds.steps import take_part as take_part
    from client_agent.session import StopFlag as StopFlag
    from client_agent.session import open_participant as open_participant
    from client_agent.settings import AgentSettings as AgentSettings

__version__ = "0.2.0"

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "AgentSettings": "client_agent.settings",
        "Participant": "client_agent.rounds.participant",
        "StopFlag": "client_agent.session",
        "open_participant": "client_agent.session",
        "run": "client_agent.daemon",
        "take_part": "client_agent.rounds.steps",
    },
)
