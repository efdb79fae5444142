"""Measure a training step: PQ-LoRA against public peft's LoRA of the same rank around the same layers.

    python -m benchmarks.training_step [--size tiny|small|1b|7b] [--quantization none|nf4|int8] [--rank 32]
        [--gradient-checkpointing] [--device auto] [--repetitions 7] [--steps 5] [--out FILE.json]

Llama-shaped models with random weights, the agent's own training loop, full batches. The kinds of adapter
take turns, in another order each time; the ratio is the median over repetitions of the ratio of their median
steps. peft's LoRA around every layer, which is how it is commonly used, is measured for information. A step's
seconds are the clock's on a GPU, and on a CPU the processor time of this process on one thread, so that other
programs count for nothing. Peak memory is the GPU allocator's, or else the largest resident memory that a
sampler saw.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import psutil
import torch
from rich.console import Console
from rich.progress import track
from torch import nn

from benchmarks import figures
from benchmarks.figures import MIB
from benchmarks.random_llama import SIZES, Size, built, full_batch
from client_agent.adapters.base import Adapter, AdapterBase, replace_module
from client_agent.adapters.frames import random_frames, wrapped_layers
from client_agent.adapters.inject import inject_pq
from client_agent.model.examples import encode_for
from client_agent.model.loading import BaseModel
from client_agent.training.loop import Step, train
from schemas.messages.federations import ALL_ROLES, AdapterPlan, TrainingPlan

_RATE = 1e-4

PQ, SAME, EVERY = "PQ-LoRA", "peft LoRA, same layers", "peft LoRA, all layers"
GOAL = 1.1
_SAMPLE_SECONDS = 0.005


class PeftLora(AdapterBase):
    """LoRA as public peft injects it around the linear layers at `paths`, trained in float32."""

    def __init__(self, base: BaseModel, paths: list[str], plan: AdapterPlan) -> None:
        from peft import LoraConfig, inject_adapter_in_model  # seconds to import

        self._model = cast(nn.Module, base.model)
        self._inner = {path: self._model.get_submodule(path) for path in paths}
        alpha = cast(int, plan.scale * plan.rank)
        inject_adapter_in_model(LoraConfig(r=plan.rank, lora_alpha=alpha, target_modules=paths), self._model)
        self._parameters = {
            f"{path}.{side}": getattr(self._model.get_submodule(path), side)["default"].float().weight
            for path in paths
            for side in ("lora_A", "lora_B")
        }

    def named_parameters(self) -> dict[str, nn.Parameter]:
        return dict(self._parameters)

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        return [{"params": list(self._parameters.values()), "lr": learning_rate}]

    def remove(self) -> None:
        for path, inner in self._inner.items():
            replace_module(self._model, path, inner)
        self._inner.clear()
        del cast(Any, self._model).peft_config


class PeakMemory:
    """The peak memory inside its context, in bytes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._done = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self.bytes = 0

    def __enter__(self) -> Self:
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated(self._device)
        else:
            self._done.set()
            self._sampler.join()

    def _sample(self) -> None:
        process = psutil.Process()
        while not self._done.wait(_SAMPLE_SECONDS):
            self.bytes = max(self.bytes, process.memory_info().rss)


@dataclass(frozen=True, slots=True)
class Lap:
    """The turn of one kind of adapter: the seconds of its steps, and its peak memory."""

    seconds: list[float]
    peak_bytes: int

    @property
    def step(self) -> float:
        return statistics.median(self.seconds)


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training_step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--quantization", choices=["none", "nf4", "int8"], default="none")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<n>")
    parser.add_argument("--repetitions", type=int, default=7, help="turns of each kind of adapter")
    parser.add_argument("--steps", type=int, default=5, help="counted steps per turn, after a first one")
    parser.add_argument(
        "--out", type=Path, help="default: runs/benchmarks/training_step-<size>-<quantization>.json"
    )
    arguments = parser.parse_args()
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("there is no GPU here that torch can use: leave --device out to measure on the CPU")
    name = f"training_step-{arguments.size}-{arguments.quantization}.json"
    out = arguments.out or Path("runs/benchmarks") / name
    result = measure(
        SIZES[arguments.size],
        device=device_of(arguments.device),
        quantization=arguments.quantization,
        rank=arguments.rank,
        checkpointing=arguments.gradient_checkpointing,
        repetitions=arguments.repetitions,
        steps=arguments.steps,
    )
    figures.write(out, {"size": arguments.size, **result})
    console = Console()
    rows = [
        (
            name,
            1000 * row["seconds"],
            row["tokens_per_second"],
            row["peak_mib"],
            row["ratio"],
            row["trainable"],
        )
        for name, row in result["adapters"].items()
    ]
    title = f"{arguments.size}, {result['quantization']}, {result['dtype']} on {result['device']}"
    columns = ("adapter", "ms per step", "tokens/s", "peak MiB", "PQ-LoRA's step / its", "trainable")
    figures.show(console, title, columns, rows)
    ratio = result["adapters"][SAME]["ratio"]
    console.print(f"PQ-LoRA / peft LoRA around the same layers: {ratio:.3f} (goal {GOAL}); figures in {out}")


def measure(
    size: Size,
    *,
    device: torch.device,
    quantization: Any,
    rank: int,
    checkpointing: bool,
    repetitions: int,
    steps: int,
) -> dict[str, Any]:
    """Train every kind of adapter `repetitions` times `steps` steps in turn; return medians."""
    if device.type == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" or quantization != "none" else torch.float32
    machine = {**figures.machine(), "torch": torch.__version__}
    base = built(size, device=device, dtype=dtype, quantization=quantization)
    makers = _makers(base, AdapterPlan(rank=rank))
    plan = TrainingPlan(
        steps=steps + 1,
        batch_size=size.batch,
        max_length=size.length,
        gradient_checkpointing=checkpointing,
        learning_rate=_RATE,
    )
    laps: dict[str, list[Lap]] = {name: [] for name in makers}
    trainable: dict[str, int] = {}
    for turn in track(range(repetitions), description="measuring"):
        names = list(makers)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            with makers[name]() as adapter:
                trainable[name] = sum(p.numel() for p in adapter.named_parameters().values())
                laps[name].append(measure_steps(base, adapter, size, plan))
    return {
        "machine": machine,
        "device": _name(device),
        "dtype": str(dtype).removeprefix("torch."),
        "quantization": quantization,
        "rank": rank,
        "gradient_checkpointing": checkpointing,
        "batch": [size.batch, size.length],
        "parameters": _parameters(size),
        "base_model_mib": base.model.get_memory_footprint() / MIB,
        "adapters": {name: _row(laps[name], laps[PQ], size, trainable[name]) for name in makers},
    }


def _makers(base: BaseModel, plan: AdapterPlan) -> dict[str, Callable[[], Adapter]]:
    frames = random_frames(base, plan, 0)
    ends = wrapped_layers(base, plan)
    same = [base.parts.path(layer, role) for layer in ends for role in ALL_ROLES]
    every = [base.parts.path(layer, role) for layer in range(base.layers) for role in ALL_ROLES]
    return {
        PQ: lambda: inject_pq(base, plan, frames, gated=False),
        SAME: lambda: cast(Adapter, PeftLora(base, same, plan)),
        EVERY: lambda: cast(Adapter, PeftLora(base, every, plan)),
    }


def measure_steps(base: BaseModel, adapter: Adapter, size: Size, plan: TrainingPlan) -> Lap:
    """Train; the first step, which allocates memory and selects kernels, does not count."""
    on_gpu = base.device.type == "cuda"
    ends: list[float] = []

    def note(step: Step) -> None:
        if on_gpu:
            torch.cuda.synchronize(base.device)
        ends.append(time.perf_counter() if on_gpu else time.process_time())

    with PeakMemory(base.device) as peak:
        train(
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
    return Lap([after - before for before, after in pairwise(ends)], peak.bytes)


def _row(laps: list[Lap], pq_laps: list[Lap], size: Size, trainable: int) -> dict[str, Any]:
    seconds = statistics.median(second for lap in laps for second in lap.seconds)
    ratios = [pq.step / lap.step for pq, lap in zip(pq_laps, laps, strict=True)]
    return {
        "seconds": seconds,
        "seconds_each": [lap.seconds for lap in laps],
        "tokens_per_second": size.batch * size.length / seconds,
        "peak_mib": max(lap.peak_bytes for lap in laps) / MIB,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "trainable": trainable,
    }


def _parameters(size: Size) -> int:
    """Count the base model's parameters, whatever their precision."""
    attention = size.width * (size.width + size.kv_heads * (size.width // size.heads)) * 2
    layer = attention + 3 * size.width * size.inner + 2 * size.width
    return size.layers * layer + size.width + (1 if size.tied else 2) * size.vocabulary * size.width


def device_of(name: str) -> torch.device:
    """Return the device of a name; `auto` is the GPU if there is one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text("utf-8").splitlines() if facts.is_file() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{model or platform.machine()}, one thread"


if __name__ == "__main__":
    main()
