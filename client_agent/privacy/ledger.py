"""The ledger of a silo's private sketches and private training, written before anything is released.

A sketch has one entry per release. A round's training has one entry, with the number of steps that are paid
for and of those that have begun. A step that a crash interrupts counts as begun; its repetition costs again.

The ledger belongs to the silo, beside the client's key, across federations and clients. Each entry has the
budget of its plan, an epsilon and a delta, which later releases under other plans keep too. It is written
atomically; a crash between entry and release costs budget and releases nothing. Entries are never removed, so
the spent budget never falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field, ValidationError

from client_agent.agent_entries import LEDGER
from client_agent.privacy.accountant import epsilon_of_counted
from client_agent.privacy.budget import BudgetSpent, LedgerDamaged, TrainingBudgetSpent
from client_agent.privacy.release import MeanRelease, Mechanism
from client_agent.storage.files import write_durably
from schemas.messages.base import Strict
from schemas.messages.private_training import PrivateTrainingPlan
from schemas.messages.sketches import SignatureDpPlan

_ROUNDING = 1 + 1e-6


class Limit(NamedTuple):
    """A budget: the epsilon that all releases of a silo together may cost at a delta."""

    epsilon: float
    delta: float


class _RoundCost(Strict):
    """The cost of one round: `sampled` of `records` in expectation, its noise; `epsilon` so far at `delta`.

    `budget` is the plan's epsilon at `delta`, which later releases must keep.
    """

    federation: str
    round: Annotated[int, Field(ge=1)]
    sampled: Annotated[int, Field(ge=1)]
    records: Annotated[int, Field(ge=1)]
    noise_multiplier: Annotated[float, Field(gt=0)]
    clip: Annotated[float, Field(gt=0)]
    dim: Annotated[int, Field(ge=1)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    epsilon: Annotated[float, Field(ge=0)]
    budget: Annotated[float, Field(gt=0)]

    @property
    def limit(self) -> Limit:
        return Limit(self.budget, self.delta)

    @property
    def mechanism(self) -> Mechanism:
        return Mechanism(self.sampled, self.records, self.noise_multiplier, self.clip, self.dim)


class Entry(_RoundCost):
    """One release of a sketch; `dim` is its number of values."""


class TrainingEntry(_RoundCost):
    """Steps of a round's training: how many were paid for, and how many of them were begun.

    `dim` is the number of trained values.
    """

    steps: Annotated[int, Field(ge=1)]
    begun: Annotated[int, Field(ge=0)] = 0

    @property
    def left(self) -> int:
        """Return how many steps were paid for and not begun."""
        return self.steps - self.begun

    def pays_for(self, federation_id: str, round_number: int, mechanism: Mechanism) -> bool:
        """Whether the entry is of this round and mechanism."""
        return (self.federation, self.round, self.mechanism) == (federation_id, round_number, mechanism)


class Book(Strict):
    """All releases of sketches, and all steps of training, oldest first."""

    releases: tuple[Entry, ...] = ()
    training: tuple[TrainingEntry, ...] = ()

    @property
    def steps(self) -> list[tuple[Mechanism, int]]:
        """Return the mechanism of all steps that were paid for, and their number."""
        return [(entry.mechanism, entry.steps) for entry in self.training]

    @property
    def training_epsilon(self) -> float:
        """Return the epsilon of all training so far, at the smallest delta of all entries."""
        return _at_smallest_delta(self.training, self.steps)

    @property
    def sketch_epsilon(self) -> float:
        """Return the epsilon of all releases of sketches so far, at the smallest delta of all entries."""
        return _at_smallest_delta(self.releases, [(entry.mechanism, 1) for entry in self.releases])

    @property
    def training_delta(self) -> float | None:
        """Return the delta of `training_epsilon`; None without training."""
        return min((entry.delta for entry in self.training), default=None)

    @property
    def sketch_delta(self) -> float | None:
        """Return the delta of `sketch_epsilon`; None without releases."""
        return min((entry.delta for entry in self.releases), default=None)

    def together(self, delta: float) -> float:
        """Return the epsilon of all sketches and all training together, at `delta`."""
        return epsilon_of_counted([*((e.mechanism, 1) for e in self.releases), *self.steps], delta)


def _at_smallest_delta(entries: Sequence[_RoundCost], counted: Sequence[tuple[Mechanism, int]]) -> float:
    """Return the epsilon of all entries at their smallest delta, which the newest entry may have stored."""
    if not entries:
        return 0.0
    smallest = min(entry.delta for entry in entries)
    stored = max(entry.epsilon for entry in entries if entry.delta == smallest)
    # Each entry stores the cost of all entries up to it, at its own delta. This saves a composition.
    if entries[-1].delta == smallest:
        return stored
    return max(stored, epsilon_of_counted(counted, smallest))


def exceeded_limit(
    entries: Sequence[_RoundCost],
    federation_id: str,
    planned: Limit,
    counted: Sequence[tuple[Mechanism, int]],
) -> tuple[Limit, float] | None:
    """Return the first pair that releases would break, and their epsilon at its delta; None = none.

    The pairs are the plan's, and those of all earlier entries. A pair of another plan with a larger epsilon
    at the same or a smaller delta replaces an earlier pair: its operator has extended a budget that is known
    to be spent. A larger delta replaces nothing.

    Args:
        planned: the pair of the plan under which the next release is made.
        counted: the mechanisms of all releases with the next ones, and their numbers.
    """
    limits = [entry.limit for entry in entries if _is_of_another_plan(entry, federation_id, planned)]
    # A promise holds at its own delta, so the cost is compared at each of them.
    for delta in sorted({planned.delta, *(limit.delta for limit in limits)}):
        epsilon = planned.epsilon
        if delta != planned.delta:
            epsilon = max(limit.epsilon for limit in [planned, *limits] if limit.delta <= delta)
        cost = epsilon_of_counted(counted, delta)
        # The noise was chosen so that the cost just meets the budget: rounding must not break it.
        if cost > epsilon * _ROUNDING:
            return Limit(epsilon, delta), cost
    return None


def _is_of_another_plan(entry: _RoundCost, federation_id: str, planned: Limit) -> bool:
    """Whether an entry sets a pair of its own; one without its plan's budget may be of the present plan."""
    return entry.budget is not None or (entry.federation, entry.delta) != (federation_id, planned.delta)


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
        last: MeanRelease | None,
    ) -> Book:
        """Return the ledger with one more release, without writing it.

        Raises:
            BudgetSpent: the release would exceed the budget.
            LedgerDamaged: releases are missing from the file.
        """
        book = self.read()
        # More releases than entries: the file was set back, and the spent budget is unknown.
        if last is not None and len(book.releases) < last.releases:
            raise LedgerDamaged(
                f"{self.folder / LEDGER} has {len(book.releases)} releases, and {last.releases} were made"
            )
        earlier = [(entry.mechanism, 1) for entry in book.releases]
        planned = Limit(dp.epsilon, dp.delta)
        if exceeded := exceeded_limit(book.releases, federation_id, planned, [*earlier, (mechanism, 1)]):
            limit, after = exceeded
            spent = epsilon_of_counted(earlier, limit.delta)
            raise BudgetSpent(spent, after, limit.epsilon, limit.delta, sends_again=last is not None)
        spent = max((e.epsilon for e in book.releases if e.delta <= dp.delta), default=0.0)
        # The numerical cost may fall by rounding; the spent budget never does.
        after = max(spent, epsilon_of_counted([*earlier, (mechanism, 1)], dp.delta))
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
            budget=dp.epsilon,
        )
        return book.model_copy(update={"releases": (*book.releases, entry)})

    def with_steps(
        self,
        federation_id: str,
        round_number: int,
        mechanism: Mechanism,
        needed: int,
        dp: PrivateTrainingPlan,
    ) -> Book:
        """Return the ledger with enough steps paid for that `needed` can be begun, without writing it.

        Raises:
            TrainingBudgetSpent: they would exceed the budget of all training.
            LedgerDamaged: the file cannot be read.
        """
        book = self.read()
        round_entries = [e for e in book.training if e.pays_for(federation_id, round_number, mechanism)]
        # A round that was stopped before its last step continues with the steps that are paid for.
        missing = needed - sum(entry.left for entry in round_entries)
        if missing <= 0:
            return book
        planned, steps = Limit(dp.epsilon, dp.delta), [*book.steps, (mechanism, missing)]
        if exceeded := exceeded_limit(book.training, federation_id, planned, steps):
            limit, next_epsilon = exceeded
            spent = epsilon_of_counted(book.steps, limit.delta)
            raise TrainingBudgetSpent(spent, next_epsilon, limit.epsilon, limit.delta, missing)
        spent = max((e.epsilon for e in book.training if e.delta <= dp.delta), default=0.0)
        next_epsilon = max(spent, epsilon_of_counted(steps, dp.delta))
        entry = TrainingEntry(
            federation=federation_id,
            round=round_number,
            steps=missing,
            **asdict(mechanism),
            delta=dp.delta,
            epsilon=next_epsilon,
            budget=dp.epsilon,
        )
        return book.model_copy(update={"training": (*book.training, entry)})

    def begin_step(self, federation_id: str, round_number: int, mechanism: Mechanism) -> None:
        """Count a step of a round as begun, durably; its examples may be drawn after this returns.

        Raises:
            LedgerDamaged: no step is left that was paid for.
        """
        book = self.read()
        for index, entry in enumerate(book.training):
            if entry.left and entry.pays_for(federation_id, round_number, mechanism):
                # Before the examples are drawn: after a crash the step counts as taken, since its result may
                # have been seen.
                begun_entry = entry.model_copy(update={"begun": entry.begun + 1})
                training = (*book.training[:index], begun_entry, *book.training[index + 1 :])
                self.write(book.model_copy(update={"training": training}))
                return
        raise LedgerDamaged(
            f"{self.folder / LEDGER} has no step of round {round_number} that was paid for and not begun"
        )

    def write(self, book: Book) -> None:
        """Store a ledger durably; its last release is allowed only after this returns."""
        write_durably(self.folder / LEDGER, book.model_dump_json(indent=1).encode())
