"""The record of a scene, as written to bank_scene.json."""

from __future__ import annotations

from typing import Literal

from client_agent.experts.memory import Choice
from schemas.messages.base import Strict
from studies.bank_record import BankRecord

Phase = Literal["training", "between masked input and unmasking", "coordinator"]


class Kill(Strict):
    """A process that was killed with SIGKILL, and started again.

    `progress` is its position at the time of the kill, by the files of its folder.
    """

    round: int
    name: str
    phase: Phase
    process: int
    next_process: int
    progress: str


class RoundFacts(Strict):
    """A published round: the counted members, and the choice of each silo by the files of its folder.

    Attributes:
        seconds: from the publication of the round before.
        counted: members of the sum.
        sessions: kinds and states of the sessions of the sum, in order.
        choices: what each silo chose, by its name; the coordinator does not know it.
        served: the loss of each silo before its own steps, on its test examples.
    """

    round: int
    seconds: float
    counted: int
    sessions: list[str]
    choices: dict[str, Choice]
    served: dict[str, float]


class Record(Strict):
    """A scene."""

    seed: int
    groups: dict[str, str]
    arrivals: dict[int, list[str]]
    leaves_after: int
    leaving: list[str]
    newcomer: str
    rounds: list[RoundFacts]
    bank: BankRecord
    kills: list[Kill]
    seconds: float

    def facts(self, number: int) -> RoundFacts:
        return self.rounds[number - 1]

    def experts_of(self, group: str, number: int) -> dict[int, int]:
        """Return how many silos of a group trained each expert first in a round, the most used one first."""
        counts: dict[int, int] = {}
        for name, choice in self.facts(number).choices.items():
            if self.groups[name] == group:
                counts[choice.trained[0]] = counts.get(choice.trained[0], 0) + 1
        return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))

    def present(self, number: int) -> list[str]:
        """Return the groups with silos in a round, in order of their first silo."""
        present = {self.groups[name] for name in self.facts(number).choices}
        return [group for group in dict.fromkeys(self.groups.values()) if group in present]

    def is_exploring(self, number: int) -> bool:
        return any(choice.exploring for choice in self.facts(number).choices.values())

    def is_separated(self, number: int) -> bool:
        """Whether all silos of each group are on one expert in a round, and no two groups on the same."""
        shares = [self.experts_of(group, number) for group in self.present(number)]
        experts = [next(iter(share)) for share in shares if len(share) == 1]
        return not self.is_exploring(number) and len(experts) == len(shares) == len(set(experts))
