"""The baseline: every silo trains an ordinary LoRA alone, on the same tickets, for the same steps."""

from __future__ import annotations

import json
from pathlib import Path

from client_agent.transport.admin_client import Answer
from examples.agents import Job, run_jobs
from examples.demo.cast import ALONE, CONFIG
from examples.demo.setting import TRAINING_ALONE, Setting

PLAN = "plan.json"
ADAPTER = "adapter.safetensors"
_AT_ONCE = 2


def run_alone(setting: Setting) -> dict[str, list[Answer]]:
    """Train with `tessera agent train`, and return the scores of every silo by round.

    The silos have the settings and the folders of the federation, so that a bare model that was scored there
    is not scored again.

    Raises:
        DemoFailed: a training failed.
    """
    folder, narrator = setting.alone, setting.narrator
    folder.mkdir(parents=True)
    plan = folder / PLAN
    plan.write_text(setting.cast.plan(ALONE).model_dump_json(indent=1))
    jobs = [_job(name, plan, setting.federated / name / CONFIG, folder / name) for name in setting.names]
    scores: dict[str, list[Answer]] = {}
    narrator.schedule.enter(TRAINING_ALONE)
    narrator.step("alone: the same silos train without a federation, two at a time")
    with narrator.following(folder, setting.names, setting.cast.plan(ALONE).rounds.total):
        for job, printed in run_jobs(setting.tessera, jobs, at_once=_AT_ONCE):
            scores[job.name] = json.loads(printed)
            narrator.step(f"alone: {len(scores)} of {len(jobs)} silos trained")
    return scores


def _job(name: str, plan: Path, config: Path, folder: Path) -> Job:
    folder.mkdir()
    out = folder / ADAPTER
    return Job(
        name, ["train", "--json", "--config", str(config), "--plan", str(plan), "--out", str(out)], folder
    )
