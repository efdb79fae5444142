"""The book of what a silo's signatures have cost: one line per release, written before the release is made.

It belongs to the silo and lies beside the client's key, not in a federation's folder: what was released once
stays known, whatever federation or client it was for. It is written whole or not at all; a crash between the
line and the release costs budget and releases nothing. Nothing is ever taken out, so what is spent never
falls. Knows no model and no coordinator.
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
    """One release: for which round, `sampled` of `records` in expectation, its noise; `epsilon` so far."""

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
        """What was released."""
        return Mechanism(self.sampled, self.records, self.noise_multiplier, self.clip, self.dim)


class Book(Strict):
    """All releases, oldest first."""

    releases: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """The book in an agent's folder."""

    folder: Path

    def read(self) -> Book:
        """Read the book; an empty one if nothing was ever released.

        Raises:
            LedgerDamaged: it cannot be read. Beginning anew would forget what was spent.
        """
        file = self.folder / LEDGER
        try:
            return Book.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return Book()
        except (ValidationError, OSError) as error:
            raise LedgerDamaged(f"{file} cannot be read") from error

    def priced(
        self, federation: str, number: int, mechanism: Mechanism, dp: SignatureDpPlan, last: Averaged | None
    ) -> Book:
        """Give the book as it will be with one more release; nothing is written.

        Raises:
            BudgetSpent: the release would cost more than is left.
            LedgerDamaged: it lacks releases that were made.
        """
        book = self.read()
        if last is not None and len(book.releases) < last.releases:
            raise LedgerDamaged(
                f"{self.folder / LEDGER} knows {len(book.releases)} releases, and {last.releases} were made"
            )
        made = [entry.mechanism for entry in book.releases]
        spent = max((e.epsilon for e in book.releases if e.delta <= dp.delta), default=0.0)
        after = max(spent, epsilon_of([*made, mechanism], dp.delta))
        if after > dp.epsilon * _ROUNDING:
            raise BudgetSpent(epsilon_of(made, dp.delta), after, dp.epsilon, again=last is not None)
        entry = Entry(
            federation=federation,
            round=number,
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
        """Keep a book for good: only after this may its last release be made."""
        write_durably(self.folder / LEDGER, book.model_dump_json(indent=1).encode())
