"""Measure a training step with a LoRA around every layer: the agent's loop, and TRL's SFTTrainer.

    python -m benchmarks.step_ways --way agent|compiled|trl|liger [--size tiny|small|1b|7b]
        [--quantization none|nf4|int8] [--attention sdpa|eager|flash_attention_2] [--rank 32]
        [--gradient-checkpointing] [--device auto] [--steps 10]

All ways have the same model with random weights, the same LoRA, texts, precision and learning rate.
`compiled` is the agent's loop with every layer compiled by torch; `trl` is TRL's SFTTrainer, and `liger`
the same with the fused loss of liger-kernel. A process measures one way, so that its memory is that way's,
and prints one line of JSON: the median milliseconds of a step, tokens per second, the peak memory and the
mean loss. The first steps, which compile and allocate, are not counted. Exit status 3: a library of the way
is not installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, cast

import torch
from torch import nn

from benchmarks.random_llama import SIZES, Size, built, full_batch
from benchmarks.training_step import MIB, PeakMemory, device_of
from client_agent.adapters.inject import inject_lora
from client_agent.model.examples import encode_for
from client_agent.model.loading import BaseModel
from client_agent.training.loop import Step, train
from schemas.messages.federations import AdapterPlan, TrainingPlan

MISSING = 3
"""The exit status if a library of the way is not installed."""

LIBRARIES = {"agent": (), "compiled": (), "trl": ("trl",), "liger": ("trl", "liger_kernel")}
_UNCOUNTED = 2
_RATE = 1e-4
_PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True, slots=True)
class Steps:
    """The times at which steps ended, in seconds, the mean loss, and the peak memory in bytes."""

    ends: Sequence[float]
    loss: float
    peak_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--way", choices=LIBRARIES, required=True)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--quantization", choices=["none", "nf4", "int8"], default="none")
    parser.add_argument("--attention", choices=["sdpa", "eager", "flash_attention_2"], default="sdpa")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=10)
    chosen = parser.parse_args()
    missing = [library for library in LIBRARIES[chosen.way] if find_spec(library) is None]
    if missing:
        print(f"{' and '.join(missing)} is not installed", file=sys.stderr)
        raise SystemExit(MISSING)
    size = SIZES[chosen.size]
    plan = TrainingPlan(
        steps=chosen.steps + _UNCOUNTED,
        batch_size=size.batch,
        max_length=size.length,
        learning_rate=_RATE,
        gradient_checkpointing=chosen.gradient_checkpointing,
    )
    device = device_of(chosen.device)
    print(
        json.dumps(
            measure(chosen.way, size, plan, device, chosen.quantization, chosen.attention, chosen.rank)
        )
    )


def measure(
    way: str,
    size: Size,
    plan: TrainingPlan,
    device: torch.device,
    quantization: Any,
    attention: str,
    rank: int,
) -> dict[str, float]:
    """Train one way, and return the figures of its counted steps."""
    if device.type == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    # bfloat16 on a GPU and for few bits, as an agent has it.
    dtype = torch.bfloat16 if device.type == "cuda" or quantization != "none" else torch.float32
    base = built(size, device=device, dtype=dtype, quantization=quantization)
    cast(Any, base.model).set_attn_implementation(attention)
    adapter = AdapterPlan(kind="lora", rank=rank, layers=None)
    if way in ("trl", "liger"):
        steps = trl_steps(base, size, plan, adapter, fused_loss=way == "liger")
    else:
        steps = agent_steps(base, size, plan, adapter, compiled=way == "compiled")
    seconds = statistics.median(after - before for before, after in pairwise(steps.ends[_UNCOUNTED - 1 :]))
    return {
        "ms": 1000 * seconds,
        "tokens_per_second": size.batch * size.length / seconds,
        "peak_mib": steps.peak_bytes / MIB,
        "loss": steps.loss,
    }


def agent_steps(
    base: BaseModel, size: Size, plan: TrainingPlan, adapter_plan: AdapterPlan, *, compiled: bool
) -> Steps:
    """Train by the agent's loop."""
    ends: list[float] = []

    def note(_: Step) -> None:
        ends.append(_now(base.device))

    with PeakMemory(base.device) as peak, inject_lora(base, adapter_plan) as adapter:
        if compiled:
            for layer in cast(nn.ModuleList, base.model.get_submodule(base.parts.layers)):
                layer.compile()
        outcome = train(
            base,
            adapter,
            encode_for(base, full_batch(size), plan.max_length),
            plan,
            learning_rate=_RATE,
            seed=0,
            round_number=1,
            total_rounds=1,
            on_step=note,
        )
    return Steps(ends, sum(outcome.losses) / len(outcome.losses), peak.bytes)


def trl_steps(
    base: BaseModel, size: Size, plan: TrainingPlan, adapter_plan: AdapterPlan, *, fused_loss: bool
) -> Steps:
    """Train by TRL's SFTTrainer on the same tokens."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    ends: list[float] = []

    class Ends(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(_now(base.device))

    texts = encode_for(base, full_batch(size), plan.max_length)
    rows = [{"input_ids": [*text.ids], "completion_mask": [*map(int, text.answer)]} for text in texts]
    with PeakMemory(base.device) as peak, tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model=base.model,
            args=SFTConfig(
                output_dir=folder,
                max_steps=plan.steps,
                per_device_train_batch_size=plan.batch_size,
                max_length=plan.max_length,
                learning_rate=_RATE,
                lr_scheduler_type="constant",
                activation_checkpointing=plan.gradient_checkpointing,
                bf16=base.device.type == "cuda",
                use_cpu=base.device.type == "cpu",
                use_liger_kernel=fused_loss,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                logging_steps=plan.steps,
            ),
            train_dataset=Dataset.from_list(rows),
            processing_class=base.tokenizer,
            peft_config=LoraConfig(
                r=adapter_plan.rank,
                lora_alpha=int(adapter_plan.scale * adapter_plan.rank),
                target_modules=_PROJECTIONS,
                task_type="CAUSAL_LM",
            ),
            callbacks=[Ends()],
        )
        trained = trainer.train()
    return Steps(ends, float(trained.training_loss), peak.bytes)


def _now(device: torch.device) -> float:
    """Return the clock's seconds on a GPU, whose work is awaited; this process's processor time on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


if __name__ == "__main__":
    main()
