"""Measure before the first run whether a worker's models and steps fit its share of a GPU."""

from __future__ import annotations

import torch

from client_agent.adapters.frames import random_frames
from client_agent.adapters.inject import inject
from client_agent.errors import EngineUnusable
from client_agent.model.examples import encode_all
from client_agent.model.tokens import collate, pad_id
from client_agent.training.memory import held_bytes, step_memory
from studies.clients import build_silos
from studies.results import Cell
from studies.worker_context import WorkerContext

_PROBE_EXAMPLES, _PROBE_LENGTH = 4, 256
_CONTEXT_BYTES = 600 * 2**20
"""What CUDA's context takes in every process, beside what torch allocates."""


def card_bytes() -> int:
    """Return the memory of this process's GPU; 0 without one."""
    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0


def memory_needed(context: WorkerContext, cells: list[Cell]) -> int:
    """Return the bytes that a worker needs for any of these cells: all base models, and its largest step."""
    steps = 0
    for cell in cells:
        silos = build_silos(context.study, context.draw(context.study, cell.seed), context.models)
        adapter_plan, training = cell.plan.adapter, cell.plan.training
        # One silo of each base model is enough: memory depends on the model and the plan.
        for silo in {silo.base.slug: silo for silo in silos.values()}.values():
            base = silo.base
            length = min(training.max_length, base.positions)
            # Few short texts: memory per token is measured, and multiplied by the plan's tokens.
            texts = encode_all(silo.data.train[:_PROBE_EXAMPLES], base.tokenizer, min(_PROBE_LENGTH, length))
            probe = collate(texts, pad=pad_id(base.tokenizer)).to(base.device)
            frames = random_frames(base, adapter_plan, 0) if adapter_plan.kind == "pq" else {}
            with inject(base, adapter_plan, frames, gated=False, seed=0) as adapter:
                measured = step_memory(base, adapter, probe)
            step = measured.recomputing_step if training.gradient_checkpointing else measured.step
            steps = max(steps, step(training.batch_size * length))
    # All models stay loaded; steps are taken one at a time.
    return steps + sum(held_bytes(base) for base in context.models.loaded)


def require_share(share: float, card: int, needed: int) -> None:
    """Raise unless a share of a card of `card` bytes holds the `needed` bytes and a CUDA context.

    Raises:
        EngineUnusable: it does not, or there is no GPU.
    """
    if not card:
        raise EngineUnusable("the workers see no GPU; leave --gpus-per-worker out, or start Ray with GPUs")
    required = needed + _CONTEXT_BYTES
    if required <= share * card:
        return
    most = card // required
    remedy = (
        f"pass --gpus-per-worker {1 / most:.3g} or more: {most} workers fit on a card"
        if most
        else "take fewer bits (silo.quantization), shorter texts, smaller batches or gradient checkpointing"
    )
    raise EngineUnusable(
        f"a worker needs {required / 2**30:.1f} GiB, and {share:g} of a GPU of {card / 2**30:.1f} GiB are "
        f"{share * card / 2**30:.1f} GiB; {remedy}"
    )
