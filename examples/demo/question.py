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
    common = ["generate", "--json", "--config", str(config), "--prompt", ticket]
    common += ["--max-new-tokens", _NEW_TOKENS]
    adapter = ["--adapter", str(alone / silo / ADAPTER), "--plan", str(alone / PLAN)]
    jobs = [
        Job("federated", [*common, "--compare"], federated / silo),
        Job("alone", [*common, *adapter], federated / silo),
    ]
    texts = {job.name: _texts(printed) for job, printed in run_jobs(jobs, at_once=_AT_ONCE)}
    (bare, with_weights), (trained_alone,) = texts["federated"], texts["alone"]
    return Answers(silo, ticket, expected, {"bare": bare, "alone": trained_alone, "federated": with_weights})


def _texts(printed: str) -> list[str]:
    return [answer["text"].strip() for answer in json.loads(printed)["answers"]]
