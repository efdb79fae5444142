"""Ask the coordinator once, for somebody who is waiting for the answer. Knows no question."""

from __future__ import annotations

from client_agent.coordinator_api import CoordinatorApi
from client_agent.membership import Membership, read_key
from client_agent.settings import AgentSettings


def one_try(settings: AgentSettings, member: Membership | None) -> CoordinatorApi:
    """Connect for calls that are tried once; as nobody where there is no member.

    Raises:
        NotEnrolled, SettingsUnusable: the member's key is missing or damaged.
    """
    return CoordinatorApi(
        str(settings.url),
        key=read_key(settings.folder) if member is not None else None,
        server_key=member.server_key if member is not None else None,
        deadline_seconds=0.0,
    )
