"""The table of weights in the recipes that clients asked for, and nothing that reads or writes it."""

from __future__ import annotations

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.db.tables.federations import Table


class CodedWeightsRow(Table):
    """A client's weights of a round, written in a recipe; without a payload they cannot be written in it.

    It says nothing that does not follow from the weights and the update that they are the difference to:
    thinning out removes it, and while those are kept it can be made again.
    """

    __tablename__ = "coded_weights"

    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"), primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True)
    recipe: Mapped[str] = mapped_column(primary_key=True)
    payload_id: Mapped[int | None] = mapped_column(ForeignKey("payloads.id"), index=True)
