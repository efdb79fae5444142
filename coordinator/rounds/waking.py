"""Let a route tell the ticker that there may be something to do. Knows no ticker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request


async def _wake(request: Request) -> Callable[[], None]:
    wake: Callable[[], None] = request.app.state.ticker.wake
    return wake


Wake = Annotated[Callable[[], None], Depends(_wake)]
"""Call it after the commit: what is woken looks at the database at once."""
