"""Run a federation of two silos from end to end with the commands of the product, and time each part.

    python -m benchmarks.whole_federation [--size tiny|small|1b|7b] [--quantization none|nf4|int8]
        [--device auto] [--rounds 2] [--steps 4]

The model has random weights and one token per character. Both silos enrol, train and receive their final
weights; one of them exports its adapter, and answers a prompt from the export. Prints one line of JSON with
the seconds of each part, the last mean loss and the answer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from benchmarks.random_llama import LARGE, SIZES, full_batch, saved
from benchmarks.training_step import device_of
from client_agent.transport.admin_client import Operator
from schemas.messages.recommendations import recommended
from studies.coordinator_process import TESSERA, quiet_environment, running_coordinator

SILOS = ("first", "second")
_STRATEGY = "fedavg"
_EXAMPLES, _TESTS = 32, 8
_PROMPT = "abc def ="


class Failed(Exception):
    """A command failed; the message ends with its output."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--quantization", choices=["none", "nf4", "int8"], default="none")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    chosen = parser.parse_args()
    device = device_of(chosen.device)
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = federation(
                Path(folder), chosen.size, chosen.quantization, device, chosen.rounds, chosen.steps
            )
        except Failed as error:
            print(error, file=sys.stderr)
            raise SystemExit(1) from error
    print(json.dumps(result))


def federation(
    folder: Path, size: str, quantization: str, device: torch.device, rounds: int, steps: int
) -> dict[str, Any]:
    """Run the federation in a folder.

    Raises:
        Failed: a command of an agent ended with an error.
    """
    seconds: dict[str, float] = {}
    began = time.monotonic()

    def timed(part: str) -> None:
        nonlocal began
        seconds[part], began = time.monotonic() - began, time.monotonic()

    torch.manual_seed(0)
    saved(SIZES[size], folder / "model", device=device)
    timed("model")
    with (
        running_coordinator(folder / "coordinator") as running,
        Operator(running.url, running.token) as operator,
    ):
        path = f"/v1/federations/{operator.post('/v1/federations', plan(size, rounds, steps))['id']}"
        operator.post(f"{path}/start")
        for seed, silo in enumerate(SILOS):
            write_silo(folder / silo, running.url, size, quantization, device, seed)
            token = str(operator.post(f"{path}/enrolment-tokens", {"client_name": silo})["token"])
            finish([start(folder / silo, "enrol", "--name", silo, token=token)])
        timed("enrol")
        finish([start(folder / silo, "run") for silo in SILOS])
        timed("rounds")
        newest = operator.get(f"{path}/rounds/{rounds}")
    first = folder / SILOS[0]
    finish([start(first, "export", "--out", str(first / "export"))])
    timed("export")
    answer = finish(
        [
            start(
                first,
                "generate",
                "--adapter",
                str(first / "export"),
                "--prompt",
                _PROMPT,
                "--max-new-tokens",
                "8",
            )
        ]
    )[0]
    timed("generate")
    losses = [client["scores"]["trained"]["loss"]["value"] for client in newest["clients"]]
    return {"seconds": seconds, "loss": sum(losses) / len(losses), "answer": answer.strip()}


def plan(size: str, rounds: int, steps: int) -> dict[str, Any]:
    """Return the strategy's recommended plan with a few steps."""
    training = {
        "steps": steps,
        "batch_size": 4,
        "learning_rate": 1e-3,
        "max_length": SIZES[size].length,
        "gradient_checkpointing": size in LARGE,
    }
    return {
        **recommended(_STRATEGY, aligned=False),
        "name": "whole federation",
        "strategy": {"name": _STRATEGY},
        "rounds": {"total": rounds, "min_clients": len(SILOS)},
        "training": training,
        "scores": {"examples": _TESTS},
    }


def write_silo(folder: Path, url: str, size: str, quantization: str, device: torch.device, seed: int) -> None:
    """Write the data and silo.toml of a silo."""
    folder.mkdir()
    shape = SIZES[size]
    texts = [text for draw in range(_EXAMPLES) for text in full_batch(shape, seed=100 * seed + draw)[:1]]
    rows = [json.dumps({"prompt": text.prompt, "completion": text.completion}) + "\n" for text in texts]
    (folder / "train.jsonl").write_text("".join(rows[_TESTS:]), "utf-8")
    (folder / "test.jsonl").write_text("".join(rows[:_TESTS]), "utf-8")
    (folder / "silo.toml").write_text(
        f'url = "{url}"\nfolder = "state"\nmodel = "../model"\ntrain = "train.jsonl"\ntest = "test.jsonl"\n'
        f'validation_share = 0.0\ndevice = "{device.type}"\nquantization = "{quantization}"\n',
        "utf-8",
    )


def start(folder: Path, *arguments: str, token: str | None = None) -> subprocess.Popen[str]:
    """Start a command of the agent of a silo."""
    environment = quiet_environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    if token is not None:
        environment["TESSERA_AGENT_TOKEN"] = token
    return subprocess.Popen(
        [*TESSERA, "agent", arguments[0], "--config", str(folder / "silo.toml"), *arguments[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finish(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Wait for commands, and return what they print; the first one that fails ends the others.

    Raises:
        Failed: a command ended with an error.
    """
    with ThreadPoolExecutor(len(processes)) as readers:
        readings = {readers.submit(process.communicate): process for process in processes}
        try:
            for reading in as_completed(readings):
                process, (_, complaints) = readings[reading], reading.result()
                if process.returncode:
                    raise Failed(f"{process.args!r}: {complaints[-2000:]}")
        finally:
            # A silo whose peer is gone would wait for it for ever.
            for process in processes:
                process.kill()
        return [reading.result()[0] for reading in readings]


if __name__ == "__main__":
    main()
