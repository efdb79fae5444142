"""Measure scoring on a CPU in batches of several sizes, with stored layers below the adapters.

    python -m benchmarks.score_batches [--model runs/models/smollm2] [--tokens 8192,2048,512,256]
        [--layers 6] [--scored 48] [--repetitions 3] [--dtype bfloat16]

The sizes take turns on the same texts of about 60 tokens, whose options are one token each; the first turn,
which computes the stored layers, is not counted. Seconds are this process's processor time, user and system,
of the least turn.
"""

from __future__ import annotations

import argparse
import resource
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import torch
from rich.console import Console

from benchmarks import figures
from benchmarks.frozen_prefix import examples
from client_agent.adapters.inject import inject_lora
from client_agent.model import forward
from client_agent.model.loading import load_base_model
from client_agent.storage.prefix_store import PrefixStore
from client_agent.training.evaluate import evaluate
from schemas.messages.federations import AdapterPlan

_SPREAD = 0.02
_ROOM = 2**32


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="runs/models/smollm2")
    parser.add_argument("--tokens", default="8192,2048,512,256")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--scored", type=int, default=48)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = [int(size) for size in chosen.tokens.split(",")]
    texts = examples(chosen.scored)
    dtype = torch.float32 if chosen.dtype == "float32" else torch.bfloat16
    base = load_base_model(chosen.model, device=torch.device("cpu"), dtype=dtype)
    turns: dict[int, list[tuple[float, float, float]]] = {size: [] for size in sizes}
    plan = AdapterPlan(kind="lora", rank=8, layers=chosen.layers)
    with TemporaryDirectory() as folder, inject_lora(base, plan) as adapter:
        base.prefix.store = PrefixStore(Path(folder), _ROOM)
        base.prefix.split_at(base, base.layers - chosen.layers)
        for parameter in adapter.named_parameters().values():
            torch.nn.init.normal_(parameter, std=_SPREAD)
        evaluate(base, texts, max_length=128)
        for _ in range(chosen.repetitions):
            for size in sizes:
                with mock.patch.object(forward, "TOKENS_PER_PASS_ON_CPU", size):
                    user, system = _cpu()
                    loss = evaluate(base, texts, max_length=128).loss
                    user_after, system_after = _cpu()
                turns[size].append((user_after - user, system_after - system, loss))
    least = {size: min(laps, key=lambda lap: lap[0] + lap[1]) for size, laps in turns.items()}
    whole = sum(least[sizes[0]][:2])
    rows = [
        [size, user, system, whole / (user + system), loss] for size, (user, system, loss) in least.items()
    ]
    columns = ["tokens of a batch", "user s", "system s", f"times as fast as {sizes[0]}", "loss"]
    figures.show(Console(), f"{base.slug}, {chosen.scored} texts scored, {chosen.dtype}", columns, rows)


def _cpu() -> tuple[float, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime


if __name__ == "__main__":
    main()
