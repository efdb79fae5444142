"""The agent of a silo: downloads rounds, trains locally, uploads updates. Never imports the coordinator.

from client_agent import AgentSettings, open_participant, run

with open_participant(AgentSettings.from_toml("silo.toml")) as participant:
    run(participant)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from client_agent.daemon import run as run
    from client_agent.rounds.participant import Participant as Participant
    from client_agent.rounds.steps import take_part as take_part
    from client_agent.session import StopFlag as StopFlag
    from client_agent.session import open_participant as open_participant
    from client_agent.settings import AgentSettings as AgentSettings

__version__ = "0.1.0"

_EXPORTS = {
    "AgentSettings": "client_agent.settings",
    "Participant": "client_agent.rounds.participant",
    "StopFlag": "client_agent.session",
    "open_participant": "client_agent.session",
    "run": "client_agent.daemon",
    "take_part": "client_agent.rounds.steps",
}


def __getattr__(name: str) -> object:
    """Import an exported name when it is first used, so that `import client_agent` needs no torch."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
