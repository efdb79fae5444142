"""The network between agents and replicas: messages lost, late, doubled or cut, and lost answers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from coordinator.rounds.long_poll import seconds_of
from tests.faults.fault_simulation.packs import is_delivery
from tests.faults.fault_simulation.replicas import Answer, Replica
from tests.faults.fault_simulation.scheduler import Flag

if TYPE_CHECKING:
    from tests.faults.fault_simulation.world import World

_TIMEOUT_SECONDS = 12.0


class Body(httpx.SyncByteStream):
    """A body as it arrives: whole, or its beginning before the connection breaks."""

    def __init__(self, content: bytes, end: int | None) -> None:
        self._content = content
        self._end = end

    def __iter__(self) -> Iterator[bytes]:
        yield self._content[: self._end]
        if self._end is not None:
            raise httpx.ReadError("the connection broke")


@dataclass(frozen=True)
class Sent:
    """A request as sent; its client may sign it again while it is in transit, or sent twice."""

    method: str
    target: str
    headers: httpx.Headers
    body: bytes


class Exchange:
    """A request in transit, and its result."""

    def __init__(self, flag: Flag) -> None:
        self.over = flag
        self.answer: Answer | None = None


class Network(httpx.BaseTransport):
    """An agent's connection to all replicas, through a load balancer without health checks."""

    def __init__(self, world: World, number: int, *, calm: bool = False) -> None:
        self._world = world
        self._number = number
        self._calm = calm
        self._dice = random.Random(f"network {world.seed} {number}")

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and wait for its answer as long as an agent does."""
        world, dice = self._world, self._dice
        sent = Sent(
            request.method,
            request.url.raw_path.decode("ascii"),
            httpx.Headers(request.headers),
            request.read(),
        )
        is_summing = sent.method == "PUT" and "/secure-sum/" in sent.target
        world.oracle.sent(self._number, sent)
        world.point("send")
        if is_summing:
            world.die_in_sum("send")
        place = dice.randrange(world.plan.replicas)
        if world.is_cut_off(self._number, place) or not world.replicas[place].alive:
            raise httpx.ConnectError("nobody there")
        rates = world.rates if world.has_faults and not self._calm else None
        if rates and dice.random() < rates.lost_request:
            world.scheduler.sleep(dice.uniform(0.0, _TIMEOUT_SECONDS))
            raise httpx.ReadError("lost on the way there")
        delay = dice.uniform(0.001, 0.05)
        if rates and dice.random() < rates.late:
            delay = dice.uniform(0.0, 2 * _TIMEOUT_SECONDS)
        if is_summing:
            delay += self._held_up()
        exchange = self._deliver(sent, place, delay)
        if rates and dice.random() < rates.twice:
            second = dice.randrange(world.plan.replicas)
            again = self._deliver(sent, second, dice.uniform(0.0, 0.1) + dice.choice([0.0, delay, 10.0]))
            exchange = dice.choice([exchange, exchange, again])
        exchange.over.wait(_TIMEOUT_SECONDS + seconds_of(sent.headers.get("prefer")))
        if rates and dice.random() < rates.lost_reply:
            raise httpx.ReadError("lost on the way back")
        world.point("received")
        if is_summing:
            world.die_in_sum("received")
        return self._response(exchange, dice.random() < rates.cut if rates else False)

    def _held_up(self) -> float:
        """Draw the delay of a message of a sum, sometimes until after its phase."""
        world, drawn = self._world, self._world.plan.summed
        if drawn is None or not world.is_due_in_sum("is late", self._number, world.rates.sum_late):
            return 0.0
        return self._dice.uniform(0.5, 1.5) * drawn.phase_seconds

    def _deliver(self, sent: Sent, place: int, delay: float) -> Exchange:
        exchange = Exchange(Flag(self._world.scheduler))
        replica = self._world.replicas[place]
        if not replica.alive:
            exchange.over.set()
            return exchange
        self._world.scheduler.spawn(replica, self._serve(sent, replica, exchange), delay=delay)
        return exchange

    def _serve(self, sent: Sent, replica: Replica, exchange: Exchange) -> Callable[[], None]:
        def serve() -> None:
            world = self._world
            request = world.oracle.received(sent)
            world.scheduler.current().is_rare = is_delivery(sent.method, sent.target)
            try:
                answer = replica.answer(sent)
                world.scheduler.say(
                    f"{replica.name} {sent.method} {sent.target} {answer.status} {_slug(answer)}"
                )
                world.oracle.answered(request, answer)
                world.oracle.sums_sent.lie(sent, answer, self._dice)
                world.oracle.sums_sent.record(self._number, sent, answer)
                exchange.answer = answer
            except Exception as error:  # after the reply began: a server could only cut the connection
                failure = f"{sent.method} {sent.target}: {type(error).__name__}: {error}"
                world.violated("requests do not fail for no reason", failure)
            finally:
                exchange.over.set()

        return serve

    def _response(self, exchange: Exchange, cut: bool) -> httpx.Response:
        answer = exchange.answer
        if not exchange.over.is_set():
            raise httpx.ReadTimeout("no answer")
        if answer is None:
            raise httpx.ReadError("the replica died")
        content = bytes(answer.body)
        end = len(content) if answer.is_half else None
        end = self._dice.randrange(len(content)) if cut and content else end
        return httpx.Response(answer.status, headers=answer.headers, stream=Body(content, end))


def _slug(answer: Answer) -> str:
    if answer.status < 400:
        return ""
    try:
        return str(json.loads(bytes(answer.body))["type"]).rpartition(":")[2]
    except (ValueError, KeyError):
        return "?"
