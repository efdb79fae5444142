"""One ticket, answered by the bare model, by the silo alone and by the silo in the federation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from examples.agents import Job, run_jobs
from examples.demo.alone import ADAPTER, PLAN

_NEW_TOKENS = "48"
_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Answers:
    """A held-out ticket of a silo, the answer of its own scheme, and the answers by side."""

    silo: str
    ticket: str
    expected: str
    by_side: dict[str, str]


def ask(silo: str, data: Path, alone: Path, federated: Path) -> Answers:
    """Ask the first held-out ticket of a silo with `tessera agent generate`.

    Raises:
        DemoFailed: a command failed.
    """
    first = (data / silo / "test.jsonl").read_text().splitlines()[0]
    ticket, expected = (message["content"] for message in json.loads(first)["messages"])
    config = federated / silo / "silo.toml"
    common = ["generate", "--config", str(config), "--prompt", ticket, "--max-new-tokens", _NEW_TOKENS]
    adapter = ["--adapter", str(alone / silo / ADAPTER), "--plan", str(alone / PLAN)]
    options = {"bare": ["--base"], "alone": adapter, "federated": []}
    jobs = [Job(side, [*common, *extra], federated / silo) for side, extra in options.items()]
    by_side = {job.name: printed.strip() for job, printed in run_jobs(jobs, at_once=_AT_ONCE)}
    return Answers(silo, ticket, expected, by_side)
