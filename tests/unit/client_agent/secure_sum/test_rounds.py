"""Rounds of a federation that sums, with agents that train, against a real coordinator."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_agent import daemon
from client_agent.adapters.base import Adapter
from client_agent.errors import Stopped, SumRefused
from client_agent.rounds import steps as round_steps
from client_agent.rounds.adapter_in_place import put_in_place
from client_agent.rounds.final_weights import finish
from client_agent.rounds.part import Part, Setting
from client_agent.rounds.participant import Participant
from client_agent.rounds.steps import resume, take_part
from client_agent.settings import read_settings
from client_agent.status import read_status
from client_agent.storage.round_folder import (
    CLOSED,
    INPUT,
    READY,
    RECEIPT,
    SCORES_SENT,
    SKETCH,
    SUMMED,
    TRAINED,
    UPDATE,
    WEIGHTS,
    RoundFolder,
)
from client_agent.training.silo import Silo
from schemas.identity.keys import decode, encode
from schemas.messages.rounds import FinishedBrief, RoundBrief
from schemas.secure_sum.terms import signed_terms
from tests.scene.coordinator import SIGNING_KEY, Served
from tests.scene.faults import Killed
from tests.scene.rounds import wait_for
from tests.scene.silo_config import config
from tests.scene.sum_members import SERVER_KEY
from tests.scene.threads import run_at_once
from tests.unit.client_agent.secure_sum.summed_agents import Agent, agents_of, plan, total_of
from tests.unit.client_agent.secure_sum.wires import Exchange, Wire

STEPS = (WEIGHTS, TRAINED, INPUT, READY, SUMMED, SCORES_SENT)


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["pairwise", "none"])
@pytest.mark.parametrize("strategy", ["fedavg", "ffa_lora", "fedsa_lora"])
def test_round_publishes_the_exact_sum(
    masking: str, strategy: str, served: Served, silo: Silo, tmp_path: Path
) -> None:
    wire = Wire()
    changed_plan = plan(3, masking=masking) | {"strategy": {"name": strategy}}
    changed_plan["privacy"]["roster_policy"] = "tofu" if strategy == "ffa_lora" else "server"
    with agents_of(served, silo, tmp_path, changed_plan, 3, wire.transport) as agents:
        agents.start()
        agents.train()
        assert not agents.sum()
        view = wait_for(served, agents.federation_id, 1, "published")
        assert np.array_equal(
            total_of(served, agents.federation_id), np.sum([a.input() for a in agents.agents], axis=0)
        )
        assert view["secure_sum"]["counted"] == 3
        for agent in agents.agents:
            assert all(agent.folder().has(name) for name in STEPS)
            assert not any(agent.folder().has(name) for name in (SKETCH, UPDATE, RECEIPT))
    assert not wire.of("PUT", "/update")
    assert not wire.of("PUT", "/scores"), "the losses are part of the sum"
    losses = [json.loads(a.folder().read(SCORES_SENT))["trained"]["loss"]["value"] for a in agents.agents]
    assert view["secure_sum"]["losses"]["trained"]["value"] == pytest.approx(np.mean(losses), abs=1e-2)


@pytest.mark.slow
def test_clients_send_own_scores_if_the_plan_asks(served: Served, silo: Silo, tmp_path: Path) -> None:
    with agents_of(served, silo, tmp_path, plan(3, scores="own", weigh_up_to=12), 3) as agents:
        agents.start()
        agents.train()
        assert not agents.sum()
        view = wait_for(served, agents.federation_id, 1, "published")
        assert all(client["scores"] is not None for client in view["clients"])


@pytest.mark.slow
def test_agents_run_to_the_end_without_final_scores(
    served: Served, silo: Silo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole agents, round after round: the daemon's own loop."""
    _serialise_adapters(monkeypatch)
    wire = Wire()
    with agents_of(served, silo, tmp_path, plan(3, total=2, phase_seconds=60), 3, wire.transport) as agents:
        agents.start()
        loops = {agent.name: partial(daemon.run, agent.participant) for agent in agents.agents}
        assert not run_at_once(loops, 240)
        assert wait_for(served, agents.federation_id, 2, "published")["secure_sum"]["counted"] == 3
    assert not wire.of("PUT", "/scores")


def _serialise_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep only one agent's adapter at a time in the shared model."""
    turn = threading.RLock()

    @contextmanager
    def alone(setting: Setting, parts: Sequence[Part], *, gated: bool) -> Iterator[Adapter]:
        with turn, put_in_place(setting, parts, gated=gated) as adapter:
            yield adapter

    def finish_alone(participant: Participant, brief: FinishedBrief) -> None:
        with turn:
            finish(participant, brief)

    monkeypatch.setattr(round_steps, "put_in_place", alone)
    monkeypatch.setattr(daemon, "finish", finish_alone)


class _CrashingFolder:
    """Ends an agent's process once at each step's file, before or after it is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        self.left = [(name, when) for name in STEPS for when in ("before", "after")]
        self.home = home
        write = RoundFolder.write

        def crashing(folder: RoundFolder, name: str, content: bytes) -> None:
            if self.home in folder.path.parents and (name, "before") in self.left:
                self.left.remove((name, "before"))
                raise Killed
            write(folder, name, content)
            if self.home in folder.path.parents and (name, "after") in self.left:
                self.left.remove((name, "after"))
                raise Killed

        monkeypatch.setattr(RoundFolder, "write", crashing)


@pytest.mark.slow
def test_agent_killed_at_any_step_sums_stored_input(
    served: Served, silo: Silo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire()
    with agents_of(served, silo, tmp_path, plan(3, phase_seconds=60), 3, wire.transport) as agents:
        agents.start()
        victim, others = agents.agents[0], agents.agents[1:]
        for agent in others:
            agent.train()
        waiting = threading.Thread(target=agents.sum, args=(others,), daemon=True)
        waiting.start()
        crashes = _CrashingFolder(monkeypatch, victim.participant.workspace.folder)
        session, kills = victim.participant.session, 0
        while not victim.folder().finished or crashes.left:
            try:
                resume(victim.participant)
                answer = session.api.current_round(session.federation_id)
                if isinstance(answer, RoundBrief):
                    take_part(victim.participant, answer)
            except Killed:
                kills += 1
        waiting.join(timeout=60)
        assert not waiting.is_alive()
        assert kills == len(STEPS) * 2
        wait_for(served, agents.federation_id, 1, "published")
        assert np.array_equal(
            total_of(served, agents.federation_id), np.sum([a.input() for a in agents.agents], axis=0)
        )
    sent = [e for e in wire.exchanges if e.agent == "silo-0" and e.method == "PUT" and e.step is not None]
    for step in range(5):
        assert len({e.sent for e in sent if e.step == step}) == 1


@pytest.mark.slow
def test_dropped_member_continues_with_the_next_round(served: Served, silo: Silo, tmp_path: Path) -> None:
    wire = Wire(dies_before={"silo-0": 2})
    with agents_of(served, silo, tmp_path, plan(4, phase_seconds=4), 4, wire.transport) as agents:
        agents.start()
        agents.train()
        assert {name: type(error) for name, error in agents.sum().items()} == {"silo-0": Killed}
        view = wait_for(served, agents.federation_id, 1, "published")
        lost, counted = agents.agents[0], agents.agents[1:]
        assert np.array_equal(
            total_of(served, agents.federation_id), np.sum([a.input() for a in counted], axis=0)
        )
        assert {c["name"]: c["state"] for c in view["clients"]}["silo-0"] == "dropped"
        wire.dies_before = {}
        lost.sum()
        assert json.loads(lost.folder().read(CLOSED)) == {"reason": "left-out-of-sum"}
        assert not lost.folder().has(SUMMED)
        assert not list(lost.folder().path.rglob("put-*"))


def _change_terms(change: dict[str, object]) -> Callable[[Exchange], bytes]:
    """Change the terms of a session, signed with the coordinator's own key."""
    key = Ed25519PrivateKey.from_private_bytes(decode(SIGNING_KEY))
    assert encode(key.public_key().public_bytes_raw()) == encode(SERVER_KEY.public_bytes_raw())

    def lie(exchange: Exchange) -> bytes:
        if not exchange.path.endswith("/secure-sum") or not exchange.received:
            return exchange.received
        status = json.loads(exchange.received)
        if status["terms"] is not None:
            fields = {name: value for name, value in status["terms"].items() if name != "signature"}
            status["terms"] = signed_terms(fields | change, key).model_dump(mode="json")
        return json.dumps(status).encode()

    return lie


def test_agent_refuses_a_coordinator_that_lies(served: Served, silo: Silo, tmp_path: Path) -> None:
    reason = "`weights` of the terms"
    wire = Wire(change=_change_terms({"weights": f"sha256:{'0' * 64}"}))
    with agents_of(served, silo, tmp_path, plan(3), 3, wire.transport) as agents:
        agents.start()
        agents.train()
        victim = agents.agents[0]
        with pytest.raises(SumRefused, match=reason):
            victim.sum()
        assert not [e for e in wire.exchanges if e.method == "PUT" and e.step is not None]
        assert len(list((victim.participant.workspace.home / "evidence").iterdir())) == 1
        assert reason in _status(victim, served, tmp_path)


def test_status_tells_the_step_of_the_sum(served: Served, silo: Silo, tmp_path: Path) -> None:
    wire = Wire(dies_before={f"silo-{n}": 1 for n in range(3)})
    with agents_of(served, silo, tmp_path, plan(3, phase_seconds=60), 3, wire.transport) as agents:
        agents.start()
        victim = agents.agents[0]
        victim.train()
        assert "ready for the sum" in _status(victim, served, tmp_path)
        agents.agents[1].train()
        agents.agents[2].train()
        assert len(agents.sum()) == 3
        state = _status(victim, served, tmp_path)
        assert "session 1 of the sum, step shares, 3 members" in state


def test_stop_ends_the_wait_for_the_sum(served: Served, silo: Silo, tmp_path: Path) -> None:
    with agents_of(served, silo, tmp_path, plan(3), 3) as agents:
        agents.start()
        agents.agents[0].train()
        agents.agents[0].stop.set()
        with pytest.raises(Stopped):
            agents.agents[0].sum()


def _status(agent: Agent, served: Served, folder: Path) -> str:
    file = config(folder, url=served.url)
    home = str(agent.participant.workspace.folder)
    file.write_text(file.read_text().replace("folder = 'state'", f"folder = '{home}'"))
    return read_status(read_settings(file)).rounds[0].state
