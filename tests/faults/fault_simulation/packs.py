"""Alignment packs: simulated packs of agents, and invariants of the stored ones.

I18: a pack that was acknowledged is what everybody is served and uses, to the bit; only an operator replaces
one, with the pivot's all that were made on it end, and no update counts that was learnt under another.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import zstandard

from client_agent.alignment import pack_delivery, pack_exchange
from client_agent.alignment.pack import OFFSETS, Pack
from schemas.messages.alignment import AlignmentManifest, PackErrors
from schemas.wire.digests import digest_of
from tests.faults.fault_simulation import meaning
from tests.faults.fault_simulation.fault_rates import Plan
from tests.scene.coordinator import PROFILE

if TYPE_CHECKING:
    from tests.faults.fault_simulation.oracle import ReceivedRequest
    from tests.faults.fault_simulation.replicas import Answer
    from tests.faults.fault_simulation.world import World

PIVOT, LARGE = PROFILE["base_model"], "tiny-l-aaaaaaaaaaaa"
ANCHORS = {"anchors": [{"id": "a", "prompt": "2 + 2 =", "answer": " 4"}]}

PACK = pack_delivery.PACK
"""What an agent's pack is called on its disk."""

_MODULE = "b0.q"
_ENDED = "SELECT 1 FROM voided_packs WHERE base_model = ? AND digest = ?"
_NONE = ""  # in place of a digest: a pack ended, and there is no other yet
_PATH = re.compile(r"/alignments/([^/]+)$")
_STORED = (
    "SELECT p.base_model, p.digest, p.alignment_set, p.payload_id, p.stored_by, f.state"
    " FROM alignment_packs p JOIN federations f ON f.id = p.federation_id ORDER BY p.base_model"
)


def base_model_of(plan: Plan, index: int) -> str:
    """Return an agent's base model: with aligned base models they alternate."""
    return LARGE if plan.aligned and index % 2 else PIVOT


def is_delivery(method: str, target: str) -> bool:
    """Return whether a request uploads a pack."""
    return method == "PUT" and _PATH.search(target) is not None


def build_pack(plan: Plan, federation: str, base_model: str, name: str, of_pivot: Pack | None = None) -> Pack:
    """Return a pack that differs from all others; other packs are fitted to the pivot's."""
    noise = np.array([random.Random(name).gauss(0.0, 1.0) for _ in range(plan.rank)], np.float32)
    tensors: dict[str, Any] = {f"{_MODULE}.A": noise[:, None], f"{_MODULE}.B": noise[None, :]}
    if of_pivot is None:
        tensors |= {f"{_MODULE}.{part}": noise[None, :].astype(np.float16) for part in "zg"}
        tensors[OFFSETS] = np.zeros((1, 3), np.int32)
    manifest = AlignmentManifest(
        federation=federation,
        recipe={},
        base_model=base_model,
        alignment_set=digest_of(name.encode()) if of_pivot is None else of_pivot.manifest.alignment_set,
        selected=[_MODULE],
        errors={_MODULE: PackErrors(a=0.1, b_token=0.9, b_task=0.5)},
    )
    return Pack(tensors, manifest)


@dataclass(frozen=True)
class BaseModel:
    """Stands for a base model, which a silo makes packs with."""

    slug: str
    world: World
    index: int

    def build(self, federation: str, of_pivot: Pack | None = None) -> Pack:
        """Build a pack so slowly that another agent may store one first."""
        scheduler = self.world.scheduler
        scheduler.sleep(scheduler.dice.uniform(0.5, 5.0))
        self.world.count("packs made")
        name = f"pack {self.index} {scheduler.dice.random()}"
        return build_pack(self.world.plan, federation, self.slug, name, of_pivot)


def _pivot_pack(pivot: Any, *args: Any, **_: Any) -> Pack:
    *_, federation = args
    made_here: Pack = pivot.build(federation)
    return made_here


def _aligned_pack(base_model_here: Any, _: Any, of_pivot: Pack, *args: Any, **__: Any) -> Pack:
    *_, federation = args
    made_here: Pack = base_model_here.build(federation, of_pivot)
    return made_here


@contextmanager
def packs_without_models() -> Iterator[None]:
    """Replace the making of packs by one without a model; transfer is the product's."""
    with ExitStack() as stack:
        for name, work in (("pivot_pack", _pivot_pack), ("aligned_pack", _aligned_pack)):
            stack.enter_context(patch.object(pack_exchange, name, work))
        yield


class Packs:
    """Watches the packs of a federation: their rows after every commit, and every answer about them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stored: dict[str, list[str]] = {}  # digests by base model, the newest last
        self._acknowledged: dict[str, float] = {}  # base models, and when first
        # By agent, base model, alignment set, and packs that ended before: what was made for a set that ended
        # may still be on its way.
        self._sent: dict[tuple[int, str, str, int], str] = {}
        self._ended = 0

    def look(self, connection: sqlite3.Connection) -> None:
        """Check the packs that a commit has stored."""
        if not self._world.plan.aligned:
            return
        rows = connection.execute(_STORED).fetchall()
        for base_model, digest, _, payload, stored_by, _ in rows:
            stored = self._stored.setdefault(base_model, [])
            if stored and stored[-1] == digest:
                continue
            if stored and stored[-1] != _NONE:
                self._ended += 1
                if stored_by is not None:
                    self._violated(f"the pack of {base_model} was replaced by a client")
            self._world.count("packs replaced" if stored else "packs stored")
            stored.append(digest)
            chunks = connection.execute(
                "SELECT data FROM payload_chunks WHERE payload_id = ? ORDER BY begin", (payload,)
            ).fetchall()
            if f"sha256:{sha256(b''.join(data for (data,) in chunks)).hexdigest()}" != digest:
                self._violated(f"the pack of {base_model} is not what its digest says")
        for base_model in self._stored.keys() - {row[0] for row in rows}:
            self._check_removed(connection, base_model)
        if len({row[2] for row in rows}) > 1:
            self._violated("packs were made on something else than each other")

    def _check_removed(self, connection: sqlite3.Connection, base_model: str) -> None:
        """Check that a missing pack was deleted by an order."""
        stored = self._stored[base_model]
        if stored[-1] == _NONE:
            return
        plan = self._world.plan
        may_end = plan.revoked or plan.packs_before or plan.replaces_pack
        if not may_end or connection.execute(_ENDED, (base_model, stored[-1])).fetchone() is None:
            self._violated("a pack is gone")
        self._world.count("packs ended")
        self._ended += 1
        self._acknowledged.pop(base_model, None)
        stored.append(_NONE)

    def sent(self, agent: int, method: str, target: str, body: bytes) -> None:
        """Record a sent pack, and check that it is the same after a restart."""
        match = _PATH.search(target)
        if method != "PUT" or match is None or agent >= self._world.plan.agents:
            return
        digest = digest_of(body)
        place = (agent, match.group(1), _set_of(body), self._ended)
        if self._sent.setdefault(place, digest) != digest:
            self._violated(f"agent {agent} made two packs of {match.group(1)}")

    def answered(self, request: ReceivedRequest, answer: Answer) -> None:
        """Check an answer about a pack."""
        match = _PATH.search(request.path)
        if match is None:
            return
        base_model = match.group(1)
        stored = self._stored.get(base_model, [])
        if request.method == "PUT":
            if answer.status == 409:
                self._world.count("packs refused")
            if answer.status in (200, 201):
                digest = digest_of(request.body)
                if stored[-1:] == [digest]:  # else it has ended while the answer was on its way
                    self._acknowledged.setdefault(base_model, self._world.scheduler.now)
                if digest not in stored or json.loads(bytes(answer.body))["digest"] != digest:
                    self._violated(f"another pack of {base_model} was acknowledged than is stored")
        elif answer.status == 404 and request.at > self._acknowledged.get(base_model, request.at):
            self._violated(f"the pack of {base_model} was acknowledged and is not there")
        elif answer.status == 200:
            possible = stored if self._ended else stored[-1:]
            if digest_of(bytes(answer.body)) not in possible:
                self._violated(f"another pack of {base_model} was served than is stored")

    def accepted(self, connection: sqlite3.Connection, client: str, number: int, body: bytes) -> None:
        """Check that an accepted update names the stored pack."""
        if not self._world.plan.aligned:
            return
        query = "SELECT base_model FROM clients WHERE id = ?"
        (base_model,) = connection.execute(query, (client,)).fetchone()
        under = meaning.pack_of(body, self._world.plan.rank)
        if [under] != self._stored.get(base_model, [])[-1:]:
            self._violated(f"{client}'s update of round {number} was learnt under another pack")

    def settle(self) -> None:
        """Check that all agents have the pack that is stored."""
        for agent in self._world.agents:
            for path in sorted(agent.folder.glob(f"*/{PACK}")):
                base_model = base_model_of(self._world.plan, agent.index)
                stored = self._stored.get(base_model, [])
                # Who takes part in no later round does not hear that its pack ended.
                if digest_of(path.read_bytes()) not in (stored if self._ended else stored[-1:]):
                    self._violated(f"{agent.name} has another pack of {base_model} than is stored")

    def _violated(self, event: str) -> None:
        self._world.violated("I18", event)


def _set_of(body: bytes) -> str:
    """Return the alignment set that a pack names in its manifest."""
    if body.startswith(zstandard.FRAME_HEADER):
        body = zstandard.ZstdDecompressor().decompressobj().decompress(body)
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    return str(json.loads(header["__metadata__"]["tessera"])["alignment_set"])
