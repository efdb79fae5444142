"""Invariants of each answer of a replica, and of the settled state.

I1 an acknowledged update is counted once or listed as rejected; I3 and I10 a repeated request gets the same
answer; I5 a token makes one member; I6 who was shut out is not let in; I11 nobody reads what is another's.
"""

from __future__ import annotations

import json
import re
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zstandard

from coordinator.errors import ReferenceMismatch
from coordinator.storage import garbage_collection
from schemas.wire.compress import is_frame
from schemas.wire.digests import digest_of
from tests.faults.fault_simulation import settled
from tests.faults.fault_simulation.bank import BankSeen
from tests.faults.fault_simulation.ledger import Ledger
from tests.faults.fault_simulation.meaning import Meaning, read_body
from tests.faults.fault_simulation.packs import Packs
from tests.faults.fault_simulation.private import StepsBegun
from tests.faults.fault_simulation.replicas import Answer
from tests.faults.fault_simulation.storage import observer
from tests.faults.fault_simulation.sum_messages import SumsSent
from tests.faults.fault_simulation.sums import Sums
from tests.faults.fault_simulation.thinning import PruningWatch
from tests.faults.fault_simulation.waits import LOOK_SECONDS

if TYPE_CHECKING:
    from tests.faults.fault_simulation.network import Sent
    from tests.faults.fault_simulation.world import World

_KEY = re.compile(r'keyid="([^"]+)"')
_NONCE = re.compile(r'nonce="([^"]+)"')
_PUBLIC = frozenset({"/v1/hello"})  # it needs no identity: an agent asks for the version before all else
_ROUND = re.compile(r"/rounds/(\d+)/(\w+)$")
_SUM_STEP = re.compile(r"/rounds/(\d+)/secure-sum/\d+/(\d)$")
_ABOUT = re.compile(r"/clients/([^/]+)")
_OWNER = re.compile(rb'"client\\*":\s*\\*"([^"\\]*)')
_REPEATABLE = ("join", "update", "ready", "weights")
_OWN_STATUSES = frozenset({0, 500})
_MISMATCH, _NO_CONTENT = ReferenceMismatch.status, 204
_SOON_SECONDS = 3 * LOOK_SECONDS


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as it reached a replica."""

    method: str
    path: str
    body: bytes
    key: str | None
    nonce: str | None
    was_revoked: bool
    was_over: bool
    accept: str
    at: float


class Oracle:
    """Watches every answer; the ledger watches every commit."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ledger = Ledger(world)
        self.meaning = Meaning(world)
        self.packs = Packs(world)
        self.pruning = PruningWatch(world)
        self.sums = Sums(world)
        self.bank = BankSeen(world)
        self.sums_sent = SumsSent(world)
        self.steps_begun = StepsBegun(world)
        self.acknowledged: dict[tuple[str, int], str] = {}
        self._pushed: dict[tuple[int, int], str] = {}
        self._updates: dict[str, bytes] = {}
        self._mismatched: set[tuple[str, int]] = set()  # clients' rounds whose coded update was refused
        self._first_answers: dict[tuple[str, str, str], bytes] = {}
        self._tokens: dict[str, str] = {}
        self._nonces: set[tuple[str, str]] = set()
        self._over: set[str] = set()  # keys that were replaced without overlap

    def open(self) -> None:
        """Open all watches of a schedule."""
        self.ledger.open(observer())

    def close(self) -> None:
        """Close all watches of a schedule."""
        self.ledger.close()

    @property
    def revoked(self) -> set[str]:
        """The revoked clients."""
        return self.ledger.revoked

    @property
    def newest_round(self) -> int:
        """The number of the federation's newest round."""
        return self.ledger.newest_round

    def look(self, actor: str) -> None:
        """Check a commit of `actor`."""
        self.ledger.look(actor)

    def received(self, sent: Sent) -> ReceivedRequest:
        """Note a request that reached a replica."""
        signature_input = sent.headers.get("signature-input", "")
        key, nonce = _KEY.search(signature_input), _NONCE.search(signature_input)
        client = self.ledger.client_of(key.group(1)) if key else None
        request = ReceivedRequest(
            sent.method,
            sent.target,
            sent.body,
            key.group(1) if key else None,
            nonce.group(1) if nonce else None,
            client in self.revoked,
            key is not None and self._is_over(key.group(1)),
            sent.headers.get("accept", ""),
            self._world.scheduler.now,
        )
        match = _ROUND.search(sent.target) or _SUM_STEP.search(sent.target)
        awaited = (str(self.newest_round), self._world.plan.revoked_while)
        if match is not None and client is not None and sent.method != "GET" and match.groups() == awaited:
            self._world.operator.notice(client)
        return request

    def sent(self, agent: int, sent: Sent) -> None:
        """Record a sent update or pack, whether it arrives or not."""
        self.packs.sent(agent, sent.method, sent.target, sent.body)
        self.sums_sent.sent(agent, sent)
        match = _ROUND.search(sent.target)
        if sent.method != "PUT" or match is None or match.group(2) != "update":
            return
        body = sent.body
        digest, number = digest_of(body), int(match.group(1))
        if digest not in self._updates:
            self._updates[digest] = body
            self.meaning.sent(agent, number, body)
        is_liar = self._world.plan.two_mouthed and agent == 0
        first = self._pushed.setdefault((agent, number), digest)
        if first != digest and not is_liar and not self._refers_to_another(agent, number, first, body):
            self._world.violated(
                "an agent sends what it made once", f"two updates of agent {agent} in {number}"
            )
        self._pushed[agent, number] = digest

    def _is_over(self, key: str) -> bool:
        return key in self._over or self.ledger.is_over(key)

    def _refers_to_another(self, agent: int, number: int, first: str, body: bytes) -> bool:
        """Whether a body is another as the coordinator did not hold what the first was the difference to."""
        rank = self._world.plan.rank
        before, now = (read_body(update, rank).recipe for update in (self._updates[first], body))
        is_another = before is not None and (now is None or now.against != before.against)
        return is_another and (self._client_of(agent), number) in self._mismatched

    def _client_of(self, agent: int) -> str | None:
        return next(
            (client_id for client_id, index in self._world.index_of_clients().items() if index == agent), None
        )

    def answered(self, request: ReceivedRequest, answer: Answer) -> None:
        """Check an answer as it leaves a replica."""
        if answer.status in _OWN_STATUSES:
            self._world.violated("requests do not fail for no reason", f"{request.method} {request.path}")
        client = self.ledger.client_of(request.key) if request.key else None
        if answer.is_half:
            self._world.count("replies ended")
            if request.key is None or (client not in self.revoked and not self._is_over(request.key)):
                self._world.violated("replies end for who was shut out only", f"{request.path} of {client}")
            return
        self.packs.answered(request, answer)
        match = _ROUND.search(request.path)
        if answer.status == _MISMATCH and match is not None and client is not None:
            self._mismatched.add((client, int(match.group(1))))
            self._world.count("references mismatched")
        if client is not None:
            self.pruning.answered(client, request, answer)
        if not 200 <= answer.status < 300:
            return
        self._world.count("answers")
        if request.path.partition("?")[0] in _PUBLIC:
            return
        if request.was_revoked:
            self._world.violated(
                "I6", f"{client} was answered {request.method} {request.path} after it was revoked"
            )
        if request.was_over:
            self._world.violated(
                "a key that is over is nobody's", f"{client} was answered {request.path} with it"
            )
        if request.path == "/v1/enrolments":
            self._enrolled(request)
        if request.path == "/v1/me/key" and request.key is not None and self._world.plan.at_once:
            self._over.add(request.key)
        if client is None or request.key is None:
            return
        if request.nonce is not None and (request.method != "GET" or request.path.endswith("/weights")):
            if (request.key, request.nonce) in self._nonces:
                self._world.violated("a signed request counts once", f"{request.path} was answered twice")
            self._nonces.add((request.key, request.nonce))
        if answer.status == _NO_CONTENT and request.path.endswith("/rounds/current"):
            self._check_wakeup(client, request)
        self._check_owner(client, request, answer)
        self._check_repeated(client, request, answer)

    def _enrolled(self, request: ReceivedRequest) -> None:
        enrolment = json.loads(request.body)
        if self._tokens.setdefault(enrolment["token"], enrolment["public_key"]) != enrolment["public_key"]:
            self._world.violated("I5", "two keys became members with one token")

    def _check_wakeup(self, client: str, request: ReceivedRequest) -> None:
        """I17: a client that waits for a round learns of it soon, whichever replica opened it."""
        number = self.ledger.awaits(client)
        if not self._world.rates.is_prompt or self._world.plan.pause or number is None:
            return
        opened = self.ledger.opened[number]
        if request.at < opened < self._world.scheduler.now - _SOON_SECONDS:
            self._world.violated("I17", f"{client} waited and was not told of round {number}")

    def _check_owner(self, client: str, request: ReceivedRequest, answer: Answer) -> None:
        about = _ABOUT.search(request.path)
        if (about and about.group(1) != client) or request.path.endswith("/clients"):
            self._world.violated("I11", f"{client} was answered {request.method} {request.path}")
        if request.path.endswith("/weights") and answer.status == 200:
            owner = _owner(bytes(answer.body))
            if owner != client and not (owner == "" and "against=" in request.accept):
                self._world.violated("I11", f"{client} was served {owner}'s weights")

    def _check_repeated(self, client: str, request: ReceivedRequest, answer: Answer) -> None:
        match = _ROUND.search(request.path)
        if match is None or match.group(2) not in _REPEATABLE or answer.status == 206:
            return
        number, kind = int(match.group(1)), match.group(2)
        body = bytes(answer.body)
        asking = digest_of(request.body) if kind == "update" else request.accept
        if self._first_answers.setdefault((client, request.path, asking), body) != body:
            self._world.violated("I10" if kind != "weights" else "I3", f"{request.path} of {client} changed")
        if kind == "update":
            digest = json.loads(body)["digest"]
            if digest != asking:
                self._world.violated("I10", f"{client} got a receipt for other bytes")
            if self.acknowledged.setdefault((client, number), digest) != digest:
                self._world.violated("I1", f"two updates of {client} were acknowledged in round {number}")

    def body(self, digest: str) -> bytes:
        """The bytes of an update that was sent."""
        return self._updates[digest]

    def receipted(self, agent: int, client: str, number: int) -> bytes | None:
        """The bytes that an agent has sent last for a round, if they were acknowledged."""
        digest = self.acknowledged.get((client, number))
        is_last = digest is not None and self._pushed.get((agent, number)) == digest
        return self._updates[digest] if digest is not None and is_last else None

    def settle(self, *, is_over: bool) -> None:
        """Check the invariants of the settled state."""
        world = self._world
        if not is_over:
            waiting = sorted({agent.name.partition(".")[0] for agent in world.agents} - world.done)
            world.violated("I12", f"still waiting for {waiting or 'the operator'}")
            world.scheduler.raise_failure()
        database = world.replicas[0].database
        self.pruning.settle(database)
        world.scheduler.raise_failure()
        while collected := garbage_collection.collect(database, grace=settled.AT_ONCE):
            world.scheduler.say(f"collected {collected}")
        connection: sqlite3.Connection = self.ledger.connection
        settled.check(world, connection)
        self.packs.settle()
        self.bank.settle()
        self.steps_begun.settle(connection)
        world.scheduler.say(f"settled {settled.summary(connection)}")
        world.scheduler.raise_failure()


def _owner(body: bytes) -> str | None:
    """Return the client of weights; coded weights are compressed, and small."""
    head = zstandard.ZstdDecompressor().decompressobj().decompress(body) if is_frame(body) else body[:4096]
    owner = _OWNER.search(head)
    return owner.group(1).decode() if owner is not None else None
