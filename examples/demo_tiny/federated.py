"""One federated method: six agents from the start, a seventh after round 4, everything over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from client_agent.model.loading import base_model_slug
from client_agent.transport.admin_client import Answer, Operator
from examples.agents import Agents, DemoFailed, Program, has_polled, is_published, running_agents
from examples.demo_tiny.alone import PQ_RATE, Report
from examples.demo_tiny.silos import (
    EXAMPLES,
    FOUNDERS,
    LATECOMER,
    PIVOT,
    SILOS,
    write_config,
)
from schemas.messages.recommendations import FEDMOSAIC

JOINS_AFTER = 4


@dataclass(slots=True)
class FederatedResult:
    """The results of a federation from its status endpoints."""

    federation: str
    rounds: list[Answer]
    relevance: Answer
    packs: list[Answer]
    clients: dict[str, str]
    by_silo: dict[str, list[Answer]] = field(default_factory=dict)


def plan_of(name: str, strategy: str, frames: str, rounds: int) -> Answer:
    """Return a federation's plan: only the fields that differ from the defaults."""
    return {
        "name": name,
        "strategy": {"name": strategy},
        "rounds": {"total": rounds, "min_clients": len(FOUNDERS), "collect_seconds": 600},
        **FEDMOSAIC,
        "training": {"max_length": 64, "learning_rate": PQ_RATE},
        "signature": {"probe_examples": 12},
        "alignment": {"pivot": base_model_slug(str(PIVOT)), "frames": frames},
    }


def run_federation(
    tessera: Program, operator: Operator, plan: Answer, data: Path, folder: Path, report: Report
) -> FederatedResult:
    """Create a federation, run its agents to the end, and read what happened.

    Raises:
        DemoFailed: an agent stopped, or nothing moved for too long.
    """
    federation = operator.post("/v1/federations", plan)["id"]
    path = f"/v1/federations/{federation}"
    operator.put(f"{path}/anchors", json.loads((EXAMPLES / "anchors.json").read_bytes()))

    def configure(name: str) -> Path:
        silo = next(silo for silo in SILOS if silo.name == name)
        return write_config(silo, data, folder / name, operator.url)

    with running_agents(tessera, operator, federation, folder, configure) as agents:
        operator.post(f"{path}/start")
        _align(operator, path, agents, report)
        rounds = plan["rounds"]["total"]
        follow = partial(_follow, operator, path, agents, report, rounds=rounds)
        for silo in FOUNDERS:
            agents.start(silo.name)
        agents.enrol(LATECOMER.name)
        follow(until=_published(JOINS_AFTER - 1))
        # The pause only makes sure that the latecomer is up when round 5 opens, and misses none of it.
        operator.post(f"{path}/pause")
        follow(until=_published(JOINS_AFTER))
        agents.start(LATECOMER.name)
        agents.until(lambda: has_polled(operator, path, LATECOMER.name), f"{LATECOMER.name} to ask for work")
        operator.post(f"{path}/start")
        follow(until=_published(rounds))
        agents.wait()
    return _result(operator, federation)


def _align(operator: Operator, path: str, agents: Agents, report: Report) -> None:
    """Make one alignment pack per base model, the pivot's first: the others then find it stored."""
    for count, architecture in enumerate(("S", "L"), start=1):
        agents.start(next(silo.name for silo in FOUNDERS if silo.architecture == architecture))
        report(f"aligning base model {architecture}", 0.0)
        agents.until(
            lambda: len(operator.get(f"{path}/alignments")["items"]) >= count,  # noqa: B023
            f"{count} alignment packs",
        )


def _follow(
    operator: Operator,
    path: str,
    agents: Agents,
    report: Report,
    *,
    rounds: int,
    until: Callable[[Answer], bool],
) -> None:
    """Show the status of the current round until a condition holds."""

    def look() -> bool:
        views = operator.get(f"{path}/rounds?limit=1")["items"]
        newest = views[0] if views else {}
        if newest:
            counts, scores = newest["counts"], newest["scores"]
            loss = f", loss {scores['mean']['loss']['value']:.2f}" if scores else ""
            delivered = f"{counts['arrived']} of {counts['joined']} delivered"
            done = (newest["round"] - 1 + counts["arrived"] / max(1, counts["joined"])) / rounds
            report(f"round {newest['round']} {newest['state']}, {delivered}{loss}", done)
        return until(newest)

    agents.until(look, "the rounds to be published")


def _published(number: int) -> Callable[[Answer], bool]:
    return lambda newest: is_published(newest, number)


def _result(operator: Operator, federation: str) -> FederatedResult:
    path = f"/v1/federations/{federation}"
    names = {client["client_id"]: client["name"] for client in operator.every(f"{path}/clients")}
    numbers = sorted(r["round"] for r in operator.every(f"{path}/rounds") if r["state"] == "published")
    rounds = [operator.get(f"{path}/rounds/{number}") for number in numbers]
    result = FederatedResult(
        federation,
        rounds,
        operator.get(f"{path}/rounds/{numbers[-1]}/relevance"),
        operator.get(f"{path}/alignments")["items"],
        names,
    )
    for silo in SILOS:
        rows = [c for r in rounds for c in r["clients"] if names[c["client_id"]] == silo.name]
        result.by_silo[silo.name] = [c for c in rows if c["scores"]]
        expected = len(numbers) - (JOINS_AFTER if silo.late else 0)
        if len(result.by_silo[silo.name]) != expected:
            raise DemoFailed(f"{silo.name} missed a round, so methods cannot be compared; run it again")
        if result.by_silo[silo.name][-1]["scores"]["final"] is None:
            raise DemoFailed(
                f"the final weights of {silo.name} were not scored: see its agent.log; run it again"
            )
    return result
