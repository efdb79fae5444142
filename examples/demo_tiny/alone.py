"""The two baselines without a federation: the same adapters alone, and an ordinary LoRA alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from client_agent.transport.admin_client import Answer
from examples.agents import Job, Program, run_jobs
from examples.demo_tiny.silos import SILOS, SiloSetup, write_config
from schemas.messages.recommendations import FEDMOSAIC, LORA
from studies.methods import merge_tables

PQ_RATE = 0.01
LORA_RATE = 0.003
"""The rates that suit the tiny models, so that no silo of the demo has to search for one."""

_AT_ONCE = 2

Report = Callable[[str, float], None]
"""Called with the current activity, and the share of the method that is done."""


def local_plan(rounds: int) -> Answer:
    """Return the plan that trains the federation's adapter alone."""
    return {
        "name": "local",
        "strategy": {"name": "fedavg"},
        "rounds": {"total": rounds},
        **FEDMOSAIC,
        "training": {"max_length": 64, "learning_rate": PQ_RATE},
    }


def local_lora_plan(rounds: int) -> Answer:
    """Return the plan that trains an ordinary LoRA alone."""
    named: Answer = {"name": "local_lora", "strategy": {"name": "fedavg"}, "rounds": {"total": rounds}}
    training: Answer = {"training.max_length": 64, "training.learning_rate": LORA_RATE}
    return merge_tables(LORA, {**named, **training})


def run_alone(
    tessera: Program,
    plan: Answer,
    data: Path,
    folder: Path,
    pack_of: Callable[[SiloSetup], Path | None],
    report: Report,
) -> dict[str, list[Answer]]:
    """Train every silo alone with `tessera agent train`, and return its scores per round.

    Raises:
        DemoFailed: a training failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plan_file = folder / "plan.json"
    plan_file.write_text(json.dumps(plan))
    jobs = [_job(silo, plan_file, data, folder, pack_of(silo)) for silo in SILOS]
    scores: dict[str, list[Answer]] = {}
    for job, printed in run_jobs(tessera, jobs, at_once=_AT_ONCE):
        scores[job.name] = json.loads(printed)
        report(f"{len(scores)} of {len(SILOS)} silos trained alone", len(scores) / len(SILOS))
    return scores


def _job(silo: SiloSetup, plan_file: Path, data: Path, folder: Path, pack: Path | None) -> Job:
    rows = folder / silo.name
    config = write_config(silo, data, rows, "http://127.0.0.1:1")
    arguments = ["train", "--json", "--config", str(config), "--plan", str(plan_file)]
    return Job(silo.name, [*arguments, "--pack", str(pack)] if pack is not None else arguments, rows)
