"""Encode a client's input of a sum, once per round: it is rounded at random."""

from __future__ import annotations

from dataclasses import replace

from client_agent.experts.memory import Choice
from client_agent.rounds.bank import plain_names, read_bank, read_index
from client_agent.rounds.served_weights import read_weights
from client_agent.rounds.sum_input import RoundResult
from client_agent.rounds.summed_steps import counted_groups, expert_layout, layout_of, required_plan
from client_agent.rounds.work import Work
from client_agent.storage.round_folder import PARTIAL, PARTIAL_COMMON, WEIGHTS


def encode_input(work: Work) -> bytes:
    """Return the encoded input of the round. Later steps use this file: it is rounded at random, and once."""
    layout, trained = layout_of(work), work.trained.of(work.folder)
    is_bank = work.opened.traits.routing is not None
    result = RoundResult(
        plan=work.session.manifests.plan,
        summed=required_plan(work),
        layout=layout,
        served={} if is_bank else read_weights(work.folder.read(WEIGHTS), layout),
        trained=trained.adapter,
        scores=trained.scores,
        examples=len(work.trainer.silo.data.train),
        base=work.folder.base,
        groups=counted_groups(work),
    )
    content = (_of_bank(work, result) if is_bank else result).encode(work.brief.round)
    work.folder.forget(PARTIAL, PARTIAL_COMMON)
    return content


def _of_bank(work: Work, result: RoundResult) -> RoundResult:
    """Return a round's result with the experts that were served, and with this client's choice among them.

    Without the choice, whose file was lost or damaged, the client belongs to the experts that it changed.
    """
    index, choice = read_index(work.folder), work.expert_memory.rounds.get(work.brief.round)
    served = read_bank(work.session.home, work.folder, expert_layout(work))
    return replace(
        result,
        served=plain_names(served),
        trained=plain_names(result.trained),
        bank=index,
        responsibilities=_trained_responsibilities(choice) if choice is not None else None,
        rejects=choice is not None and choice.rejects,
    )


def _trained_responsibilities(choice: Choice) -> dict[int, float]:
    return {expert: choice.responsibilities[expert] for expert in choice.trained}
