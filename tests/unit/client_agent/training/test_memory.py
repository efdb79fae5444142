"""The estimated memory of a training step equals the allocator's peak."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.random_llama import Size, built, full_batch
from client_agent.adapters.frames import random_frames
from client_agent.adapters.inject import inject
from client_agent.model.examples import encode_all
from client_agent.model.tokens import collate, pad_id
from client_agent.settings import Quantization
from client_agent.training.memory import step_memory
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.scene.local_training import train_examples

PLANS = {
    "pq": AdapterPlan(rank=16, blocks=4),
    "recommended": AdapterPlan(same_architecture_rank=8, roles=("v", "o", "gate", "up", "down")),
    "lora": AdapterPlan(kind="lora", rank=16),
    "last layers": AdapterPlan(kind="lora", rank=16, layers=2),
}


def peak_of(work: Callable[[], object], folder: Path) -> int:
    """Return the peak of bytes that the CPU allocator held, above the bytes before."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    trace = folder / "trace.json"
    profiler.export_chrome_trace(str(trace))
    events = [e for e in json.loads(trace.read_bytes())["traceEvents"] if e["name"] == "[memory]"]
    events.sort(key=lambda event: event["ts"])
    before = events[0]["args"]["Total Allocated"] - events[0]["args"]["Bytes"]
    return int(max(event["args"]["Total Allocated"] for event in events) - before)


@pytest.mark.parametrize("vocabulary", [500, 16_000])  # little of the memory is the head's, or most of it
@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        pytest.param("none", torch.float32, marks=pytest.mark.slow),
        # A CPU computes in bfloat16 so slowly that a step of these takes half a minute.
        pytest.param("none", torch.bfloat16, marks=pytest.mark.long),
        pytest.param("nf4", torch.bfloat16, marks=pytest.mark.long),
        pytest.param("int8", torch.bfloat16, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("kind", PLANS)
def test_step_memory_matches_the_estimate(
    tmp_path: Path, vocabulary: int, quantization: Quantization, dtype: torch.dtype, kind: str
) -> None:
    adapter_plan = PLANS[kind]
    size = Size(256, 704, 8, 8, 4, vocabulary, batch=8, length=128)
    torch.manual_seed(0)
    base = built(size, device=torch.device("cpu"), dtype=dtype, quantization=quantization)
    examples, tokens = full_batch(size), size.batch * size.length
    texts = encode_all(examples, base.tokenizer, size.length)
    frames = random_frames(base, adapter_plan, 0) if adapter_plan.kind == "pq" else {}
    with inject(base, adapter_plan, frames, gated=False, seed=0) as adapter:
        foretold = step_memory(base, adapter, collate(texts, pad=pad_id(base.tokenizer)))
    for checkpointing, most in ((False, foretold.step), (True, foretold.recomputing_step)):
        plan = TrainingPlan(
            steps=1, batch_size=size.batch, max_length=size.length, gradient_checkpointing=checkpointing
        )
        with inject(base, adapter_plan, frames, gated=False, seed=0) as adapter:
            peak = peak_of(
                lambda: train_examples(base, adapter, examples, plan),  # noqa: B023
                tmp_path,
            )
        print(f"{checkpointing=}: {peak / most(tokens):.2f} of what was foretold")
        least = 0.5 if checkpointing and kind != "pq" else 0.8
        assert least < peak / most(tokens) < 1.1, checkpointing
