"""False counts of one member never open a lone user's update: five real agents over HTTP.

The liar commits to a count above its own in the group of the lone user, an expert's or `reject`. Either
the coordinator checks proofs, or it colludes and lets the liar pass. With the checks of both sides switched
off the attack succeeds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import safetensors.numpy
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_agent.identity.membership import read_key
from client_agent.secure_sum import member as members
from client_agent.secure_sum.progress import read_progress
from client_agent.storage.round_folder import INPUT
from client_agent.storage.tensor_metadata import metadata_of, save_tensors
from client_agent.training.silo import Silo
from coordinator.secure_sum import intake
from schemas.identity.keys import name_of
from schemas.maths.bank import REJECT
from schemas.messages.secure_sum import SumTerms
from schemas.secure_sum.count_proofs import proved_counts
from schemas.secure_sum.counts import groups_of
from schemas.secure_sum.encoding import largest_encoded
from tests.scene.coordinator import Served
from tests.scene.forged_counts import forged_counts
from tests.scene.waiting import wait_until
from tests.unit.client_agent.secure_sum.summed_agents import Agent, Agents, agents_of, total_of
from tests.unit.client_agent.secure_sum.test_bank_of_experts import bank_plan, choice

CLIENTS = 5
EXPERTS = [f"x{expert}" for expert in range(1, 7)]


@contextmanager
def false_counts(agent: Agent, lifted: Sequence[str], by: int) -> Iterator[None]:
    """Make an agent commit to more than its own counts in these groups."""
    alone = threading.Lock()
    liar = name_of(read_key(agent.participant.workspace.folder))

    def proved(
        terms: SumTerms,
        position: int,
        counts: Sequence[int],
        blindings: Sequence[int],
        key: Ed25519PrivateKey,
    ) -> bytes:
        names = [segment.name for segment in terms.segments]
        values = [count + by * (name in lifted) for name, count in zip(names, counts, strict=True)]
        with alone:  # a forgery patches what the other agents' threads call too
            if name_of(key) != liar:
                return proved_counts(terms, position, counts, blindings, key)
            return forged_counts(terms, position, values, blindings, key)

    with patch.object(members, "proved_counts", proved):
        yield


@contextmanager
def unchecked(*sides: str) -> Iterator[None]:
    """Switch off the checks of proofs of the coordinator, of members, or of both."""
    with ExitStack() as stack:
        if "coordinator" in sides:
            stack.enter_context(patch.object(intake, "check_counts"))
        if "members" in sides:
            stack.enter_context(patch.object(members, "verify_counts"))
        yield


def rewrite(agent: Agent, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    """Change the input of an agent in its folder, as if it had chosen otherwise."""
    content = agent.folder(1).read(INPUT)
    tensors, metadata = dict(safetensors.numpy.load(content)), metadata_of(content)
    change(tensors)
    agent.folder(1).write(INPUT, save_tensors(tensors, dict(metadata)))


def use(agent: Agent, expert: int) -> None:
    """Make an agent the only user of an expert."""
    (chosen,) = choice(agent, 1)[0]

    def change(tensors: dict[str, np.ndarray]) -> None:
        moved = {name: tensors[name] for name in tensors if _is_of(f"x{chosen}", name)}
        for name in [name for name in tensors if any(_is_of(group, name) for group in EXPERTS)]:
            tensors[name] = np.zeros_like(tensors[name])
        for name, values in moved.items():
            tensors[name.replace(f"x{chosen}", f"x{expert}", 1)] = values

    rewrite(agent, change)


def reject(agent: Agent) -> None:
    """Make an agent reject all experts: its change of the shared expert is its input of a birth."""

    def change(tensors: dict[str, np.ndarray]) -> None:
        for name in [name for name in tensors if name.startswith("new.")]:
            source = tensors.get(name.removeprefix("new."))
            tensors[name] = np.full_like(tensors[name], largest_encoded(16)) if source is None else source
        tensors[REJECT] = np.full_like(tensors[REJECT], largest_encoded(16))

    rewrite(agent, change)


def _is_of(group: str, name: str) -> bool:
    return name == group or name.startswith(f"{group}.")


def run_round_with_liar(agents: Agents, group: str) -> dict[str, Any]:
    """Play a round with a liar in which one honest agent is alone in a group; return the round's view."""
    agents.start()
    agents.train()
    liar, lone, *others = agents.agents
    for agent in (liar, *others):
        use(agent, 1)
    use(lone, 1 if group == REJECT else 2)
    if group == REJECT:
        reject(lone)
    # All members but none reject, or three use an expert: the least for a sum.
    with false_counts(liar, [group], CLIENTS - 1 if group == REJECT else 2):
        agents.sum()
    return wait_until(lambda: finished_view(agents), 60)


def finished_view(agents: Agents) -> dict[str, Any] | None:
    shown = agents.served.admin.get(f"/v1/federations/{agents.federation_id}/rounds/1").json()
    return dict(shown) if shown["state"] in ("published", "abandoned") else None


@contextmanager
def bank_agents(served: Served, silo: Silo, folder: Path) -> Iterator[Agents]:
    plan = bank_plan(1, experts=len(EXPERTS), explore_rounds=0, birth_patience=1)
    plan["privacy"]["secure_sum"] |= {"phase_seconds": 20, "attempts": 1}
    with agents_of(served, silo, folder, plan, CLIENTS) as agents:
        yield agents


def opened(agents: Agents, group: str) -> bool:
    """Whether the round's total has the lone agent's input of a group, and nobody else's."""
    terms = [
        SumTerms.model_validate_json(file.read_bytes())
        for file in agents.agents[1].folder(1).path.glob("terms-*.json")
    ]
    summed = [term for term in terms if term.kind == "sum"]
    if not summed or group not in groups_of(summed[0].segments):
        return False
    total, begin = total_of(agents.served, agents.federation_id), 0
    tensors = safetensors.numpy.load(agents.agents[1].folder(1).read(INPUT))
    for segment in summed[0].segments:
        values, begin = total[begin : begin + segment.values], begin + segment.values
        if segment.group == group and not np.array_equal(values, tensors[segment.name]):
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("group", ["x2", REJECT])
def test_liar_is_refused_by_the_coordinator(served: Served, silo: Silo, tmp_path: Path, group: str) -> None:
    with bank_agents(served, silo, tmp_path) as agents:
        view = run_round_with_liar(agents, group)
        assert not opened(agents, group)
    assert view["state"] == "published"
    assert view["secure_sum"]["counted"] == CLIENTS - 1


@pytest.mark.slow
@pytest.mark.parametrize("group", ["x2", REJECT])
def test_liar_is_refused_by_members(served: Served, silo: Silo, tmp_path: Path, group: str) -> None:
    """The coordinator colludes: members void the counts, and nothing is opened."""
    with bank_agents(served, silo, tmp_path) as agents, unchecked("coordinator"):
        view = run_round_with_liar(agents, group)
        assert not opened(agents, group)
        progress = [read_progress(agent.folder(1)) for agent in agents.agents[1:]]
    assert all(report is not None and "each count is 0 or 1" in (report.reason or "") for report in progress)
    assert (view["state"], view["reason"]) == ("abandoned", "secure-sum-failed")
    assert [session["state"] for session in view["secure_sum"]["sessions"]] == ["aborted"]


@pytest.mark.slow
@pytest.mark.parametrize("group", ["x2", REJECT])
def test_liar_succeeds_when_checks_are_off(served: Served, silo: Silo, tmp_path: Path, group: str) -> None:
    with bank_agents(served, silo, tmp_path) as agents, unchecked("coordinator", "members"):
        view = run_round_with_liar(agents, group)
        assert opened(agents, group)
    assert view["state"] == "published"
