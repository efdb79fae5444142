"""Let a route tell those who wait for rounds that there may be something to do. Knows no ticker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request

from coordinator.rounds.waiting import waiting_of


async def _wake(request: Request) -> Callable[[], None]:
    wake_ticker: Callable[[], None] = request.app.state.ticker.wake
    waiting = waiting_of(request)

    def wake() -> None:
        wake_ticker()
        waiting.look()

    return wake


Wake = Annotated[Callable[[], None], Depends(_wake)]
"""Call it after the commit: what is woken looks at the database at once."""
