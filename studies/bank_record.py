"""The record of a bank of experts in a run, from the coordinator: counts, changes and their reasons."""

from __future__ import annotations

from client_agent.transport.admin_client import Operator
from schemas.messages.base import Strict
from schemas.messages.experts import BankRoundView, BankView, ExpertEvent, ExpertView


class BankRecord(Strict):
    """All experts of a run's bank, its rounds in order, and its changes in order."""

    experts: list[ExpertView]
    rounds: list[BankRoundView]
    events: list[ExpertEvent]

    def share(self, expert: int) -> list[tuple[int, float]]:
        """Return the share of members that used an expert, by round, of the rounds that counted it."""
        return [
            (entry.round, entry.users[str(expert)] / entry.members)
            for entry in self.rounds
            if str(expert) in entry.users
        ]


def read_bank_record(operator: Operator, federation: str) -> BankRecord | None:
    """Read the bank of a federation, all pages of it; None = it has none.

    Args:
        federation: the path of the federation in the API.

    Raises:
        CoordinatorRefused: the coordinator answers with an error.
    """
    pages: list[BankView] = []
    after = ""
    while not pages or pages[-1].next is not None:
        pages.append(BankView.model_validate(operator.get(f"{federation}/experts{after}")))
        after = f"?after={pages[-1].next}"
    rounds = sorted((entry for page in pages for entry in page.rounds), key=lambda entry: entry.round)
    if not rounds:
        return None
    # Newest round first, those of one round in order: a stable sort keeps the order within a round.
    events = sorted((event for page in pages for event in page.events), key=lambda event: event.round)
    return BankRecord(experts=pages[0].experts, rounds=rounds, events=events)
