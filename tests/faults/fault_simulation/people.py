"""Actors of the fault simulation: operator, equivocating member, curious member, historian."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx

from client_agent.errors import AgentError
from client_agent.identity.agent_folder import read_membership
from schemas.messages.updates import UpdateManifest
from schemas.wire.digests import digest_of
from schemas.wire.envelope import pack
from tests.faults.fault_simulation.agents import Agent, trained_values
from tests.faults.fault_simulation.fault_rates import LAST_ROUND
from tests.faults.fault_simulation.network import Network
from tests.faults.fault_simulation.packs import ANCHORS, PACK, PIVOT, build_pack
from tests.faults.fault_simulation.private import EXAMPLES
from tests.faults.fault_simulation.replicas import AUTHORITY, LEASE_SECONDS
from tests.faults.fault_simulation.scheduler import Flag, Process
from tests.faults.fault_simulation.written_plan import written_plan
from tests.scene.coordinator import ADMIN_TOKEN
from tests.scene.rounds import upload_headers

if TYPE_CHECKING:
    from tests.faults.fault_simulation.world import World

_ANOTHER = 1_000_000  # an attempt at training that no agent makes


class Operator(Process):
    """Creates the federation, hands out tokens, starts it; then pauses, revokes or finishes as drawn."""

    def __init__(self, world: World) -> None:
        super().__init__("operator")
        self._world = world
        self.has_begun = False
        self.federation = ""
        self._was_notified = Flag(world.scheduler)
        self._last_client: str | None = None
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        self._http = httpx.Client(
            base_url=f"http://{AUTHORITY}",
            headers=headers,
            transport=Network(world, world.plan.agents, calm=True),
        )
        world.scheduler.spawn(self, self._work)

    def _ask(self, method: str, path: str, json: Any = None, body: bytes | None = None) -> httpx.Response:
        headers = upload_headers(body, "zstd") if body is not None else None
        while True:
            try:
                answer = self._http.request(method, path, json=json, content=body, headers=headers)
                if answer.status_code < 500:
                    return answer
            except httpx.TransportError:
                pass
            self._world.scheduler.sleep(1.0)

    def _work(self) -> None:
        world, plan = self._world, self._world.plan
        federation_id = self.federation = str(
            self._ask("POST", "/v1/federations", written_plan(world.plan)).json()["id"]
        )
        if plan.aligned:
            self._ask("PUT", f"/v1/federations/{federation_id}/anchors", ANCHORS)
        for number in range(plan.packs_before if plan.aligned else 0):
            self._put_pack(f"operator's {number}")
        for index in range(plan.agents):
            token = self._ask(
                "POST", f"/v1/federations/{federation_id}/enrolment-tokens", {"client_name": f"c{index}"}
            )
            world.agents.append(Agent(world, index, token.json()["token"]))
        world.begin_faults()
        dice = world.scheduler.dice
        if plan.thief:
            victim = world.agents[dice.randrange(plan.agents)]
            world.agents.append(Agent(world, victim.index, victim.token, thief=True))
        world.scheduler.sleep(dice.uniform(0.0, 4.0))
        self._ask("POST", f"/v1/federations/{federation_id}/start")
        self.has_begun = True
        for _ in range(plan.revoked):
            self._later(self._revoke_a_member)
        for _ in range(plan.rotations):
            self._later(self._rotate_a_members_key)
        if plan.pause:
            self._later(self._pause)
        if plan.aligned and plan.replaces_pack:
            self._later(lambda: self._put_pack("operator's last"))
        if plan.summed is not None:
            world.scheduler.spawn(self, self._start_after_failed_sums)
        if plan.finish_early:
            self._later(lambda: self._ask("POST", f"/v1/federations/{federation_id}/finish"))

    def _later(self, work: Callable[[], object]) -> None:
        delay = self._world.scheduler.dice.uniform(0.0, self._world.rates.until)

        def run() -> None:
            work()

        self._world.scheduler.spawn(self, run, delay=delay)

    def _put_pack(self, name: str) -> None:
        """Store a pack of the pivot in place of the one before, with which all that were made on it end."""
        pack = build_pack(self._world.plan, self.federation, PIVOT, name)
        self._ask("PUT", f"/v1/federations/{self.federation}/alignments/{PIVOT}", body=pack.to_body())

    def notice(self, client: str) -> None:
        """Record the client whose request has just reached a replica."""
        self._last_client = client
        self._was_notified.set()

    def _revoke_a_member(self) -> None:
        """Revoke a member that delivers, joins or waits for the sum, or else a random one."""
        world = self._world
        self._was_notified.clear()
        self._was_notified.wait(60.0)
        if world.plan.revoked_while == "ready":  # soon after it was ready, when others are waited for
            world.scheduler.sleep(world.scheduler.dice.uniform(0.2, 3.0))
        members = [agent.client for agent in world.agents if agent.client and not agent.thief]
        client = self._last_client or (world.scheduler.dice.choice(members) if members else None)
        if client is not None:
            self._ask("DELETE", f"/v1/federations/{self.federation}/clients/{client}")

    def _rotate_a_members_key(self) -> None:
        """Stop a member's agent, replace its key, and start it again."""
        world = self._world
        members = [agent for agent in world.agents if agent.alive and agent.client and not agent.thief]
        if members:
            world.stop_to_replace_key(world.scheduler.dice.choice(members))

    def _pause(self) -> None:
        self._ask("POST", f"/v1/federations/{self.federation}/pause")
        self._world.scheduler.sleep(self._world.scheduler.dice.uniform(1.0, 30.0))
        self._ask("POST", f"/v1/federations/{self.federation}/start")
        self._start_if_paused_late()

    def _start_after_failed_sums(self) -> None:
        """Start the federation again when it has paused itself, as a round could not be summed."""
        world = self._world
        while not world.oracle.ledger.is_finished:
            world.scheduler.sleep(world.scheduler.dice.uniform(4.0, 12.0))
            if world.oracle.ledger.is_paused:
                world.count("started after a failed sum")
                self._ask("POST", f"/v1/federations/{self.federation}/start")

    def _start_if_paused_late(self) -> None:
        """Start the federation again if a delayed replica has paused it after a later start."""
        world = self._world
        while world.scheduler.now < world.faults_ended_at + LEASE_SECONDS:
            world.scheduler.sleep(LEASE_SECONDS)
            shown = self._ask("GET", f"/v1/federations/{self.federation}").json()
            if shown["state"] == "paused":
                world.count("paused late")
                self._ask("POST", f"/v1/federations/{self.federation}/start")


class _KeyHolder(Process):
    """An actor that has an agent's key, beside the agent."""

    def __init__(self, world: World, name: str, index: int) -> None:
        super().__init__(name)
        self.world = world
        self.index = index

    def repeat(self, work: Callable[[Agent], None], *, for_good: bool = False) -> None:
        """Repeat an action while there are faults, or until the end."""
        scheduler = self.world.scheduler
        while for_good or self.world.faults_begin_at is None or self.world.has_faults:
            scheduler.sleep(scheduler.dice.uniform(1.0, 3.0 if for_good else 10.0))
            agent = self.world.agents[self.index] if len(self.world.agents) > self.index else None
            if agent is None or agent.api is None or agent.client is None:
                continue
            try:
                work(agent)
            except (AgentError, httpx.TransportError):
                continue


class EquivocatingMember(_KeyHolder):
    """Delivers other bytes than its agent does, for the same rounds."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "two-mouthed", 0)
        if world.plan.two_mouthed:
            world.scheduler.spawn(self, lambda: self.repeat(self._deliver))

    def _deliver(self, agent: Agent) -> None:
        world, api = self.world, agent.api
        number = world.oracle.newest_round
        if api is None or not 0 < number <= LAST_ROUND:
            return
        federation_id = read_membership(agent.folder).federation_id
        joined = api.join(federation_id, number, None)
        rank = world.plan.rank
        flat = trained_values(world.plan, number, self.index, _ANOTHER)
        tensors = {"b0.q.P": flat[: rank * rank].reshape(rank, rank), "b0.q.Q": flat[rank * rank :]}
        manifest = UpdateManifest(
            federation=federation_id,
            recipe={},
            round=number,
            client=str(agent.client),
            base=joined.weights.digest,
            pack=self._pack(agent),
            examples=len(EXAMPLES),
        )
        api.push_update(federation_id, number, pack(tensors, manifest))

    def _pack(self, agent: Agent) -> str | None:
        """Name the pack that its agent has, or one that there is not."""
        path = next(agent.folder.glob(f"*/{PACK}"), None)
        if path is None:
            return None
        is_known = self.world.scheduler.dice.random() < 0.5
        return digest_of(path.read_bytes() if is_known else b"a pack of its own")


class CuriousMember(_KeyHolder):
    """Requests data of other clients."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "curious", 1)
        if world.plan.curious:
            world.scheduler.spawn(self, lambda: self.repeat(self._request_foreign_data))

    def _request_foreign_data(self, agent: Agent) -> None:
        others = [peer.client for peer in self.world.agents if peer.client and peer.client != agent.client]
        if not others or agent.api is None:
            return
        dice = self.world.scheduler.dice
        federation_id = read_membership(agent.folder).federation_id
        about = f"/v1/federations/{federation_id}/clients/{dice.choice(others)}"
        method, path = dice.choice(
            [
                ("GET", about),
                ("GET", f"{about}/adapter"),
                ("DELETE", about),
                ("GET", f"/v1/federations/{federation_id}/clients"),
            ]
        )
        agent.api.call(method, path)


class Historian(_KeyHolder):
    """Requests data of past rounds with each agent's key, and repeats past updates."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "historian", 0)
        if world.plan.keep_rounds is not None:
            world.scheduler.spawn(self, lambda: self.repeat(self._request_past_round, for_good=True))

    def _request_past_round(self, agent: Agent) -> None:
        world, api, client = self.world, agent.api, agent.client
        dice, own_index = world.scheduler.dice, self.index
        self.index = dice.randrange(world.plan.agents)  # the next one
        if api is None or client is None or world.oracle.newest_round == 0:
            return
        number = dice.randint(1, world.oracle.newest_round)
        federation_id = read_membership(agent.folder).federation_id
        kind = dice.choice(["weights", "adapter", "update"])
        body = world.oracle.receipted(own_index, client, number) if kind == "update" else None
        if kind == "weights":
            api.weights(federation_id, number)
        elif kind == "adapter":
            api.call("GET", f"/v1/federations/{federation_id}/clients/{client}/adapter?round={number}")
        elif body is not None:
            api.push_update(federation_id, number, body)
