"""Tables of a bank of experts: the experts, their revisions, and what each summed round has changed."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, ForeignKeyConstraint
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.db.tables.federations import Table


class ExpertRow(Table):
    """An expert of a federation's bank; its ordinal is never used again, and rows are never deleted.

    `status` is active, archived or merged. `utilisation` is the moving average of the share of members that
    used it, null before its first round.
    """

    __tablename__ = "experts"

    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"), primary_key=True)
    expert: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    status: Mapped[str]
    born: Mapped[int]
    grace_until: Mapped[int]
    prior: Mapped[float]
    utilisation: Mapped[float | None]
    strikes: Mapped[int]
    parent: Mapped[int | None]
    merged_into: Mapped[int | None]
    ended: Mapped[int | None]


class ExpertRevisionRow(Table):
    """The values of an expert after a round in which they changed.

    `contributors` is the number of members that were counted in its group. Retention clears the payloads of
    old revisions, never that of an expert's last one.
    """

    __tablename__ = "expert_revisions"
    __table_args__ = (
        ForeignKeyConstraint(["federation_id", "expert"], ["experts.federation_id", "experts.expert"]),
    )

    federation_id: Mapped[str] = mapped_column(primary_key=True)
    expert: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    round_number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    payload_id: Mapped[int | None] = mapped_column(ForeignKey("payloads.id"), index=True)
    digest: Mapped[str]
    bytes: Mapped[int]
    contributors: Mapped[int]


class BankRoundRow(Table):
    """The results of a summed round for a bank: `sums`, `events` with their reasons, and `memory`.

    `memory` is what decisions of later rounds depend on beside the experts: streaks and cooldowns.
    """

    __tablename__ = "bank_rounds"

    federation_id: Mapped[str] = mapped_column(ForeignKey("federations.id"), primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    sums: Mapped[dict[str, Any]]
    events: Mapped[list[Any]]
    memory: Mapped[dict[str, Any]]
