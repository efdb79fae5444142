"""The ledger of a silo's private sketches: one entry per release, written before the release.

It belongs to the silo, beside the client's key, across federations and clients. It is written atomically; a
crash between entry and release costs budget and releases nothing. Entries are never removed, so the spent
budget never falls.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from client_agent.privacy.accountant import epsilon_of
from client_agent.privacy.budget import BudgetSpent, LedgerDamaged
from client_agent.privacy.release import Averaged, Mechanism
from client_agent.storage.files import write_durably
from schemas.messages.base import Strict
from schemas.messages.federations import SignatureDpPlan

LEDGER = "privacy_ledger.json"
_ROUNDING = 1 + 1e-6


class Entry(Strict):
    """One release: its round, `sampled` of `records` in expectation, its noise; `epsilon` so far."""

    federation: str
    round: Annotated[int, Field(ge=1)]
    sampled: Annotated[int, Field(ge=1)]
    records: Annotated[int, Field(ge=1)]
    noise_multiplier: Annotated[float, Field(gt=0)]
    clip: Annotated[float, Field(gt=0)]
    dim: Annotated[int, Field(ge=1)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    epsilon: Annotated[float, Field(ge=0)]

    @property
    def mechanism(self) -> Mechanism:
        return Mechanism(self.sampled, self.records, self.noise_multiplier, self.clip, self.dim)


class Book(Strict):
    """All releases, oldest first."""

    releases: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger file in an agent's folder."""

    folder: Path

    def read(self) -> Book:
        """Read the ledger; empty if there was no release.

        Raises:
            LedgerDamaged: the file cannot be read; an empty ledger would forget the spent budget.
        """
        file = self.folder / LEDGER
        try:
            return Book.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return Book()
        except (ValidationError, OSError) as error:
            raise LedgerDamaged(f"{file} cannot be read") from error

    def priced(
        self,
        federation_id: str,
        round_number: int,
        mechanism: Mechanism,
        dp: SignatureDpPlan,
        last: Averaged | None,
    ) -> Book:
        """Return the ledger with one more release, without writing it.

        Raises:
            BudgetSpent: the release would exceed the budget.
            LedgerDamaged: releases are missing from the file.
        """
        book = self.read()
        if last is not None and len(book.releases) < last.releases:
            raise LedgerDamaged(
                f"{self.folder / LEDGER} has {len(book.releases)} releases, and {last.releases} were made"
            )
        earlier = [entry.mechanism for entry in book.releases]
        spent = max((e.epsilon for e in book.releases if e.delta <= dp.delta), default=0.0)
        after = max(spent, epsilon_of([*earlier, mechanism], dp.delta))
        if after > dp.epsilon * _ROUNDING:
            raise BudgetSpent(epsilon_of(earlier, dp.delta), after, dp.epsilon, again=last is not None)
        entry = Entry(
            federation=federation_id,
            round=round_number,
            sampled=mechanism.sampled,
            records=mechanism.records,
            noise_multiplier=mechanism.noise_multiplier,
            clip=mechanism.clip,
            dim=mechanism.dim,
            delta=dp.delta,
            epsilon=after,
        )
        return Book(releases=(*book.releases, entry))

    def write(self, book: Book) -> None:
        """Store a ledger durably; its last release is allowed only after this returns."""
        write_durably(self.folder / LEDGER, book.model_dump_json(indent=1).encode())
