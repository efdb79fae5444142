"""Exact sum of seven training agents after two losses and a coordinator restart.

A sum of N members survives N - t losses after its keys, t = floor(2N/3) + 1: with five members one, with
seven two. So seven agents take part; five of them to the end.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from client_agent.rounds.served_weights import read_weights
from client_agent.secure_sum.member import MemberSecrets
from client_agent.secure_sum.session_journal import SessionJournal
from client_agent.storage.round_folder import CLOSED, SUMMED
from client_agent.training.silo import Silo
from schemas.identity.keys import encode
from schemas.maths.start import from_start
from schemas.messages.rounds import FinishedBrief
from schemas.messages.secure_sum import SumTerms, UnmaskStep
from schemas.secure_sum.agreement import self_mask_key
from schemas.secure_sum.encoding import CLIP_UNIT, Modulus, largest_encoded
from schemas.secure_sum.masks import MaskKey, Masks
from schemas.secure_sum.segments import segments_of, values_of_segment
from schemas.secure_sum.shamir import combine, lagrange_weights
from schemas.secure_sum.terms import terms_hash
from tests.scene.coordinator import Served
from tests.scene.database import ask
from tests.scene.faults import Killed
from tests.scene.replica_processes import free_port
from tests.scene.rounds import wait_for
from tests.scene.secure_sums import shares_in
from tests.scene.tensors import zero_tensors
from tests.scene.thief import Thief, as_bytes, row_values, thief_at_every_commit
from tests.unit.client_agent.secure_sum.summed_agents import Agent, Agents, agents_of, plan, total_of
from tests.unit.client_agent.secure_sum.wires import Exchange, Wire

AGENTS, LOST_BEFORE_MASKED, LOST_BEFORE_CONFIRM = 7, "silo-2", "silo-5"


@dataclass
class Secrets:
    """The secrets of all members as they are drawn, for the test alone."""

    drawn: list[MemberSecrets] = field(default_factory=list)

    def record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        begin = SessionJournal.begin

        def recorded(
            journal: SessionJournal, terms: SumTerms, digest: str, secrets: MemberSecrets | None
        ) -> None:
            assert secrets is not None
            self.drawn.append(secrets)
            begin(journal, terms, digest, secrets)

        monkeypatch.setattr(SessionJournal, "begin", recorded)

    def forms(self) -> list[bytes]:
        """Return every secret as octets, base64url and hexadecimal."""
        raw = [raw for s in self.drawn for raw in (s.channel.raw, s.mask.raw, s.seed)]
        return [form for octets in raw for form in (octets, encode(octets).encode(), octets.hex().encode())]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_sum_survives_two_lost_agents_and_a_restart(
    fresh_database: Callable[[str], str],
    serve: Callable[..., Served],
    silo: Silo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, settings = (
        fresh_database("sqlite"),
        {"port": free_port(), "tick_seconds": 0.05, "retry_seconds": 0.1},
    )
    served, secrets, half_masked = serve(url, **settings), Secrets(), threading.Event()
    secrets.record(monkeypatch)

    def watch(exchange: Exchange) -> None:
        if exchange.method == "PUT" and exchange.step == 2:
            half_masked.set()

    wire = Wire(dies_before={LOST_BEFORE_MASKED: 2, LOST_BEFORE_CONFIRM: 3}, on_exchange=watch)
    with (
        thief_at_every_commit() as thief,
        agents_of(served, silo, tmp_path, plan(AGENTS, phase_seconds=10), AGENTS, wire.transport) as agents,
    ):
        thief.federation_id = agents.federation_id
        agents.start()
        agents.train()
        errors: dict[str, BaseException] = {}
        summing = threading.Thread(target=lambda: errors.update(agents.sum()))
        summing.start()
        assert half_masked.wait(120)
        served.stop()
        stolen_at_restart = list(map(as_bytes, row_values(url)))
        served = serve(url, **settings)
        summing.join(timeout=200)
        assert not summing.is_alive()
        assert {name: type(error) for name, error in errors.items()} == {
            LOST_BEFORE_MASKED: Killed,
            LOST_BEFORE_CONFIRM: Killed,
        }
        view = wait_for(served, agents.federation_id, 1, "published", 60)
        counted = [agent for agent in agents.agents if agent.name != LOST_BEFORE_MASKED]
        assert view["secure_sum"]["counted"] == len(counted) == 6
        assert [s["state"] for s in view["secure_sum"]["sessions"]] == ["done"]
        _check_exact(served, agents, counted)
        _check_no_secret_is_open(
            thief, wire, agents, served, secrets, [*stolen_at_restart, *map(as_bytes, row_values(url))]
        )
        _check_lost_agents_get_outcome(agents, wire)


def _check_exact(served: Served, agents: Agents, counted: list[Agent]) -> None:
    """Compare the total with the inputs in the agents' folders, and the published weights with the total."""
    total: np.ndarray = np.sum([agent.input() for agent in counted], axis=0)
    assert np.array_equal(total_of(served, agents.federation_id), total)
    assert not np.array_equal(total_of(served, agents.federation_id), total + counted[0].input())
    session = counted[0].participant.session
    brief = session.api.current_round(agents.federation_id)
    assert isinstance(brief, FinishedBrief)
    layout, federation_plan = counted[0].layout(), session.manifests.plan
    published = read_weights(session.api.weights(agents.federation_id, brief.round).body, layout)
    zeros = zero_tensors(layout)
    seed = federation_plan.training.seed
    start = {name: from_start(name, zeros.__getitem__, seed, layout) for name in layout}
    at = 0
    for segment in segments_of(federation_plan, layout):
        if segment.name in ("A", "B"):
            mean = (
                total[at : at + segment.values]
                * (segment.clip * CLIP_UNIT / largest_encoded(16))
                / len(counted)
            )
            expected = (values_of_segment(start, layout, segment.name).astype(np.float64) + mean).astype(
                "<f4"
            )
            assert np.array_equal(values_of_segment(published, layout, segment.name), expected)
        at += segment.values


def _check_no_secret_is_open(
    thief: Thief, wire: Wire, agents: Agents, served: Served, secrets: Secrets, stolen: list[bytes]
) -> None:
    """Scan every committed state of the database, and every body of every request and answer."""
    assert thief.commits > 20
    assert len(secrets.drawn) == AGENTS
    traffic = [body for exchange in wire.exchanges for body in (exchange.sent, exchange.received)]
    visible = b"\0".join([*traffic, *stolen, *thief.messages.values()])
    terms = _terms(served)
    modulus = Modulus(terms.modulus)
    inputs = [agent.input() for agent in agents.agents]
    packed = [
        form
        for values in inputs
        for form in (modulus.pack(values.astype(modulus.word)), values.astype("<i4").tobytes())
    ]
    assert not [secret for secret in (*secrets.forms(), *packed) if secret in visible]
    unmasked = _sent(wire, agents, terms, 4)
    shares = shares_in({n: UnmaskStep.model_validate_json(body) for n, body in unmasked.items()})
    assert shares == thief.shares(next(iter(thief.sessions())))
    for owner in range(len(terms.members)):
        assert not {(owner, "b"), (owner, "s")} <= shares.keys(), "both secrets of a member are open"
    by_client = {agent.client: agent for agent in agents.agents}
    masked = _sent(wire, agents, terms, 2)
    assert len(masked) == 6
    for position, vector in masked.items():
        holders = sorted(shares[position, "b"])[: terms.threshold]
        seed = combine(
            {holder: shares[position, "b"][holder] for holder in holders}, lagrange_weights(holders)
        )
        words = modulus.unpack(vector).copy()
        Masks([MaskKey(self_mask_key(seed, terms_hash(terms)), is_subtracted=True)], modulus.word).add_to(
            words
        )
        own = by_client[terms.members[position].client].input()
        assert np.mean(modulus.signed(words) == own) < 0.01, "pair masks are left on every value"
    assert ask(served.database_url, "SELECT count(*) FROM sum_messages") == [(0,)]


def _check_lost_agents_get_outcome(agents: Agents, wire: Wire) -> None:
    """Who was lost comes back: counted if its masked vector was, left out if not; no secret stays."""
    wire.dies_before = {}
    lost = {agent.name: agent for agent in agents.agents}
    lost[LOST_BEFORE_MASKED].sum()
    lost[LOST_BEFORE_CONFIRM].sum()
    closed = json.loads(lost[LOST_BEFORE_MASKED].folder().read(CLOSED))
    assert closed == {"reason": "left-out-of-sum"}
    assert lost[LOST_BEFORE_CONFIRM].folder().has(SUMMED)
    for agent in agents.agents:
        assert not list(agent.folder().path.rglob("put-*"))
        assert '"secrets":null' in next(agent.folder().path.rglob("session.json")).read_text()


def _sent(wire: Wire, agents: Agents, terms: SumTerms, step: int) -> dict[int, bytes]:
    """Return the bodies of a step by position; a repeated request has the same one."""
    position = {member.client: place for place, member in enumerate(terms.members)}
    names = {agent.name: position[agent.client] for agent in agents.agents}
    bodies: dict[int, set[bytes]] = {}
    for exchange in wire.exchanges:
        if exchange.method == "PUT" and exchange.step == step:
            bodies.setdefault(names[exchange.agent], set()).add(exchange.sent)
    assert all(len(sent) == 1 for sent in bodies.values())
    return {place: sent.pop() for place, sent in bodies.items()}


def _terms(served: Served) -> SumTerms:
    ((stored,),) = ask(served.database_url, "SELECT terms FROM sum_sessions")
    return SumTerms.model_validate_json(stored)
