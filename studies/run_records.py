"""The records of a run beside scores: relevance by round, errors of alignment, numbers of cut texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from client_agent.alignment.pack import Pack
from client_agent.errors import CoordinatorRefused
from client_agent.model.examples import count_cut
from client_agent.training.silo import Silo
from client_agent.transport.admin_client import Operator
from schemas.messages.alignment import PackErrors
from schemas.messages.base import Strict

_DECIMALS = 4
_NOT_FOUND = 404


class RelevanceRecord(Strict):
    """The relevance of clients in a round: row i of `weights` is that of client `rows[i]`, over `clients`."""

    round: int
    clients: list[str]
    rows: list[str]
    weights: list[list[float]]


class AlignmentRecord(Strict):
    """The held-out errors of a base model's pack by (block, role), and those that it shares."""

    base_model: str
    selected: list[str]
    errors: dict[str, PackErrors]


class TextCount(Strict):
    """How many examples a silo has, and of how many the text is cut to `training.max_length`."""

    examples: int
    cut: int


def read_relevance(
    operator: Operator, federation: str, total: int, names: Sequence[str]
) -> list[RelevanceRecord]:
    """Read the relevance of all rounds of a federation that have one; empty where updates are summed.

    Args:
        federation: the path of the federation in the API.
        total: the number of its rounds.
        names: the clients in the order of the records.

    Raises:
        CoordinatorRefused: the coordinator answers with an error.
    """
    name_by_id = {client["client_id"]: client["name"] for client in operator.every(f"{federation}/clients")}
    records: list[RelevanceRecord] = []
    for number in range(1, total + 1):
        try:
            view = operator.get(f"{federation}/rounds/{number}/relevance")
        except CoordinatorRefused as refusal:
            if refusal.status != _NOT_FOUND:
                raise
            continue
        columns = [name_by_id[client] for client in view["clients"]]
        rows = {
            name_by_id[client]: dict(zip(columns, weights, strict=True))
            for client, weights in zip(view["rows"], view["relevance"], strict=True)
        }
        clients = [name for name in names if name in columns]
        shown = [name for name in names if name in rows]
        records.append(
            RelevanceRecord(
                round=number,
                clients=clients,
                rows=shown,
                # Four digits: a matrix per round would be most of a result's file.
                weights=[[round(rows[row][name], _DECIMALS) for name in clients] for row in shown],
            )
        )
    return records


def alignment_of(packs: Mapping[str, Pack]) -> list[AlignmentRecord]:
    """Return the errors of packs, the pivot's first."""
    return [
        AlignmentRecord(base_model=slug, selected=pack.manifest.selected, errors=pack.manifest.errors)
        for slug, pack in packs.items()
    ]


def count_texts(silo: Silo, max_length: int) -> TextCount:
    """Count a silo's examples, and those whose text is cut."""
    examples = silo.data.all
    return TextCount(examples=len(examples), cut=count_cut(examples, silo.base.tokenizer, max_length))
