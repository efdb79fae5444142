"""The federation: agents from the start, and a late one after round 1, everything over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from client_agent.transport.admin_client import Answer, Operator
from examples.agents import Agents, DemoFailed, has_polled, is_published, running_agents
from examples.demo.cast import FEDERATED, Cast
from examples.demo.narration import Narrator
from examples.demo.setting import FEDERATION, Setting


@dataclass(frozen=True, slots=True)
class FederatedResult:
    """The results of a federation from its API: scores by silo and round, relevance, bytes."""

    federation: str
    scores: dict[str, list[Answer]]
    silos: list[str]
    relevance: list[list[float]]
    bytes_up: float
    bytes_down: float


def create_federation(operator: Operator, cast: Cast) -> str:
    """Create the federation, and return its id."""
    return str(operator.post("/v1/federations", cast.plan(FEDERATED).model_dump(mode="json"))["id"])


def run_federation(setting: Setting, operator: Operator, federation: str) -> FederatedResult:
    """Run the agents to the end of the federation, and read what happened.

    Raises:
        DemoFailed: an agent stopped, or nothing happened for too long.
    """
    cast, narrator = setting.cast, setting.narrator
    path = f"/v1/federations/{federation}"
    total = cast.plan(FEDERATED).rounds.total

    def configure(name: str) -> Path:
        return cast.write_config(name, setting.data, setting.federated / name, operator.url)

    with (
        narrator.following(setting.federated, setting.names, total),
        running_agents(setting.tessera, operator, federation, setting.federated, configure) as agents,
    ):
        narrator.schedule.enter(FEDERATION)
        operator.post(f"{path}/start")
        narrator.step(f"federation: {', '.join(cast.founders)} load the model, and enrol")
        for name in cast.founders:
            agents.start(name)
        follow = partial(_follow, operator, path, cast, agents, narrator)
        if cast.latecomer is not None:
            agents.enrol(cast.latecomer)
            follow(lambda newest: bool(newest) and newest["counts"]["joined"] >= len(cast.founders))
            # The pause only makes sure that the latecomer is there when round 2 opens, and misses none of it.
            operator.post(f"{path}/pause")
            follow(lambda newest: is_published(newest, 1))
            narrator.step(f"federation: {cast.latecomer} joins after round 1")
            agents.start(cast.latecomer)
            agents.until(
                lambda: has_polled(operator, path, str(cast.latecomer)), f"{cast.latecomer} to ask for work"
            )
            operator.post(f"{path}/start")
        follow(lambda newest: is_published(newest, total))
        narrator.step("federation: every silo fetches and scores its final weights")
        agents.wait()
    return _result(operator, federation, cast)


def _follow(
    operator: Operator,
    path: str,
    cast: Cast,
    agents: Agents,
    narrator: Narrator,
    until: Callable[[Answer], bool],
) -> None:
    """Narrate the state of the newest round until a condition holds."""

    def look() -> bool:
        rounds = operator.get(f"{path}/rounds?limit=1")["items"]
        newest = rounds[0] if rounds else {}
        if newest:
            narrator.step(f"federation: {state_of(newest, cast)}")
        return until(newest)

    agents.until(look, "the rounds to be published")


def state_of(newest: Answer, cast: Cast) -> str:
    """Return the state of a round in words; a late silo is not expected in round 1."""
    number, counts, late = newest["round"], newest["counts"], cast.latecomer
    if newest["state"] == "published":
        return f"round {number} is published: {counts['arrived']} updates are mixed for each silo"
    expected = len(cast.helpdesks) - (number == 1 and late is not None)
    waiting = f" ({late} joins after it)" if number == 1 and late is not None else ""
    if counts["arrived"] == expected:
        return f"round {number}: all {expected} silos{waiting} have delivered; the updates are mixed"
    if not counts["arrived"]:
        return f"round {number}: {counts['joined']} of {expected} silos{waiting} train"
    return f"round {number}: {counts['arrived']} of {expected} silos{waiting} have delivered"


def _result(operator: Operator, federation: str, cast: Cast) -> FederatedResult:
    path = f"/v1/federations/{federation}"
    numbers = sorted(r["round"] for r in operator.every(f"{path}/rounds") if r["state"] == "published")
    rows = [c for number in numbers for c in operator.get(f"{path}/rounds/{number}")["clients"]]
    scores: dict[str, list[Answer]] = {desk.name: [] for desk in cast.helpdesks}
    for row in rows:
        if row["scores"]:
            scores[row["name"]].append(row["scores"])
    for desk in cast.helpdesks:
        if len(scores[desk.name]) != len(numbers) - desk.late:
            raise DemoFailed(f"{desk.name} missed a round, so nothing can be compared; run the demo again")
        if scores[desk.name][-1]["final"] is None:
            raise DemoFailed(
                f"the final weights of {desk.name} were not scored: see its agent.log; run again"
            )
    relevance = operator.get(f"{path}/rounds/{numbers[-1]}/relevance")
    names = {client["client_id"]: client["name"] for client in operator.every(f"{path}/clients")}
    return FederatedResult(
        federation=federation,
        scores=scores,
        silos=[names[client] for client in relevance["clients"]],
        relevance=relevance["relevance"],
        bytes_up=sum(row["bytes"]["up"] for row in rows) / len(rows),
        bytes_down=sum(row["bytes"]["down"] for row in rows) / len(rows),
    )
