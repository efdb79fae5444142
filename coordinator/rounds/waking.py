"""Let a route say to those who wait for rounds or follow them that something is new. Knows no ticker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request

from coordinator.rounds.telling import Change
from coordinator.rounds.waiting import waiting_of


async def _wake(request: Request) -> Callable[[], None]:
    wake_ticker: Callable[[], None] = request.app.state.ticker.wake
    waiting = waiting_of(request)

    def wake() -> None:
        wake_ticker()
        waiting.look()

    return wake


async def _tell(request: Request) -> Callable[[Change], None]:
    tell: Callable[[Change], None] = request.app.state.ticker.note
    return tell


Wake = Annotated[Callable[[], None], Depends(_wake)]
"""Call it after the commit: what is woken looks at the database at once."""

Tell = Annotated[Callable[[Change], None], Depends(_tell)]
"""Call it after a commit that changed what a round counts, not its state: it is told soon, with others."""
