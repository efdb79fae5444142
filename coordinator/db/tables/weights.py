"""Table of weights encoded in the recipes that clients request."""

from __future__ import annotations

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.db.tables.federations import Table


class CodedWeightsRow(Table):
    """A client's weights of a round, encoded in a recipe; without a payload the recipe cannot encode them.

    Derived from the weights and the update that they are relative to: retention deletes it, and it can be
    rebuilt while those exist.
    """

    __tablename__ = "coded_weights"

    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"), primary_key=True)
    client_id: Mapped[str] = mapped_column(ForeignKey("clients.id"), primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True)
    recipe: Mapped[str] = mapped_column(primary_key=True)
    payload_id: Mapped[int | None] = mapped_column(ForeignKey("payloads.id"), index=True)
