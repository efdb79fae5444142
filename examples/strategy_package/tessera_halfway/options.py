"""What both halves know: the options of a plan, and the facts that follow from them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from schemas.strategies.declaration import StrategyOptions


class Options(StrategyOptions):
    """The proportion of the mixture. All facts are those of plain averaging."""

    share_of_own: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The weight of a client's own update in what it is served."""
