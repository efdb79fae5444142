"""Measure the dashboard page: bytes, requests, and the time to the first view of a large federation.

`python -m benchmarks.page` writes a federation of 50 clients and 200 rounds into a SQLite database, serves it
and opens it in Chromium. The rows are synthetic: nothing is trained.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page, Response, sync_playwright
from sqlalchemy import insert

from client_agent.transport.admin_client import Operator
from coordinator.db.engine import Database
from coordinator.db.tables.federations import (
    ClientRow,
    FederationRow,
    ParticipationRow,
    RelevanceRow,
    RoundRow,
    ScoresRow,
    UpdateRow,
)
from studies.coordinator_process import RunningCoordinator, running_coordinator

_DIGEST = f"sha256:{'0' * 64}"
_PROFILE = {
    "architecture": "LlamaForCausalLM",
    "base_model": "smollm2-135m-3f0c9a1b2c3d",
    "hidden_size": 576,
    "layers": 30,
    "agent_version": "0.1.0",
    "protocol_version": 2,
}


@dataclass(frozen=True, slots=True)
class View:
    """The cost of one opening of the page."""

    seconds: float
    requests: int
    bytes: int


def main() -> int:
    """Measure the page; 1 without Chromium."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("there is no chromium; on Debian: apt-get install chromium")
    with (
        large_federation(arguments.clients, arguments.rounds) as (running, federation),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        bare = open_page(browser, running, "")
        views = [open_page(browser, running, f"#/{federation}") for _ in range(arguments.repeats)]
        poll = refresh_page(browser, running, f"#/{federation}")
        browser.close()
    print(f"{arguments.clients} clients, {arguments.rounds} rounds, median of {arguments.repeats}")
    print(f"page and its files: {bare.requests} requests, {bare.bytes / 1024:.1f} KiB")
    seconds = statistics.median(view.seconds for view in views)
    print(
        f"first view: {seconds:.2f} s, {views[0].requests} requests, {views[0].bytes / 1024:.0f} KiB\n"
        f"each refresh after it: {poll.requests} requests, {poll.bytes / 1024:.0f} KiB"
    )
    return 0


@contextmanager
def large_federation(clients: int, rounds: int) -> Iterator[tuple[RunningCoordinator, str]]:
    """Serve a finished history of rounds; the last round is collecting, and two of its clients are late."""
    with tempfile.TemporaryDirectory() as folder, running_coordinator(Path(folder)) as running:
        with Operator(running.url, running.token) as operator:
            plan = {
                "name": "fifty hospitals of a country with a long name",
                "strategy": {"name": "fedmosaic"},
                "adapter": {"kind": "lora", "rank": 16},
                "rounds": {"total": rounds + 20, "min_clients": clients - 5, "collect_seconds": 86400},
            }
            federation = str(operator.post("/v1/federations", plan)["id"])
        database = Database(f"sqlite:///{Path(folder) / 'tessera.db'}")
        try:
            fill(database, federation, clients, rounds)
        finally:
            database.close()
        yield running, federation


def fill(database: Database, federation: str, clients: int, rounds: int) -> None:
    """Store clients, rounds, participations, scores and one relevance matrix."""
    now, generator = datetime.now(UTC), np.random.default_rng(0)
    ids = [f"cl_{index:024x}" for index in range(clients)]
    with database.write() as session:
        row = session.get_one(FederationRow, federation)
        row.state = "running"
        session.execute(insert(ClientRow), [_client(federation, id_, i, now) for i, id_ in enumerate(ids)])
        start = 2.5 + generator.normal(0, 0.3, clients)
        for number in range(1, rounds + 1):
            is_last = number == rounds
            opened = now - timedelta(minutes=20 * (rounds - number) + 5)
            session.execute(insert(RoundRow), [_round(federation, number, opened, is_last=is_last)])
            present = ids[2:] if is_last else ids
            parts = [_participation(number, id_, opened, "arrived") for id_ in present]
            if is_last:
                parts.append(_participation(number, ids[0], opened, "joined"))
            session.execute(insert(ParticipationRow), parts)
            session.execute(insert(UpdateRow), [_update(federation, number, id_, opened) for id_ in present])
            if not is_last:
                losses = start - 0.9 * (1 - np.exp(-number / 60)) + generator.normal(0, 0.01, clients)
                pairs = zip(ids, losses, strict=True)
                session.execute(
                    insert(ScoresRow), [_scores(number, id_, float(loss), opened) for id_, loss in pairs]
                )
        weights = generator.dirichlet(np.full(clients, 0.3), clients)
        session.execute(
            insert(RelevanceRow),
            [_relevance(rounds - 1, id_, i, weights[i]) for i, id_ in enumerate(ids)],
        )


def _client(federation: str, id_: str, index: int, now: datetime) -> dict[str, object]:
    name = f"hospital-{index + 1}" if index else "university-hospital-of-the-northern-lowlands-neurology"
    return {
        "id": id_,
        "federation_id": federation,
        "name": name,
        "organisation": None,
        "base_model": _PROFILE["base_model"],
        "profile": _PROFILE,
        "state": "enrolled",
        "credential_hash": id_,
        "enrolled_at": now - timedelta(days=4),
        "last_seen_at": now - timedelta(minutes=3 if index != 1 else 600),
        "bytes_up": 200 * 2**20,
        "bytes_down": 210 * 2**20,
    }


def _round(federation: str, number: int, opened: datetime, *, is_last: bool) -> dict[str, object]:
    ended = None if is_last else opened + timedelta(minutes=4)
    return {
        "id": number,
        "federation_id": federation,
        "number": number,
        "state": "collecting" if is_last else "published",
        "version": 1,
        "opened_at": opened,
        "collecting_at": opened + timedelta(seconds=20),
        "deadline": opened + timedelta(days=1),
        "closing_at": ended,
        "aggregating_at": ended,
        "ended_at": ended,
    }


def _participation(number: int, id_: str, opened: datetime, state: str) -> dict[str, object]:
    return {
        "round_id": number,
        "client_id": id_,
        "state": state,
        "joined_at": opened + timedelta(seconds=10),
        "base_digest": _DIGEST,
        "bytes_up": 2**20,
        "bytes_down": 2**20 + 4096,
        "is_waited_for": True,
    }


def _update(federation: str, number: int, id_: str, opened: datetime) -> dict[str, object]:
    return {
        "federation_id": federation,
        "round_id": number,
        "round_number": number,
        "client_id": id_,
        "digest": _DIGEST,
        "bytes": 2**20,
        "state_begin": 0,
        "layout": [],
        "norm": 1.5,
        "clipped": False,
        "examples": 64,
        "received_at": opened + timedelta(minutes=3),
    }


def _scores(number: int, id_: str, loss: float, opened: datetime) -> dict[str, object]:
    def scores(value: float) -> dict[str, object]:
        named = {"loss": value, "perplexity": float(np.exp(value)), "option_accuracy": float(np.exp(-value))}
        return {name: {"value": score, "count": 96} for name, score in named.items()}

    both = {"served": scores(loss + 0.02), "trained": scores(loss), "kept": "trained", "final": None}
    return {"round_id": number, "client_id": id_, "scores": both, "received_at": opened}


def _relevance(number: int, id_: str, ordinal: int, weights: NDArray[np.float64]) -> dict[str, object]:
    content = weights.astype("<f8").tobytes()
    return {
        "round_id": number,
        "client_id": id_,
        "ordinal": ordinal,
        "relevance": content,
        "similarity": content,
        "entropy": 1.0,
        "served": content,
        "agreement": content,
        "held": bytes(len(weights)),
    }


def open_page(browser: Browser, running: RunningCoordinator, fragment: str) -> View:
    """Open the page in a new context; with a fragment, sign in and wait for its view."""
    with _opened(browser, running, fragment) as (_, responses, seconds):
        return _view(responses, seconds)


def refresh_page(browser: Browser, running: RunningCoordinator, fragment: str) -> View:
    """Return the cost of one refresh of an open page."""
    with _opened(browser, running, fragment) as (page, responses, _):
        page.get_by_text("in all rounds").first.wait_for()  # the earlier rounds are loaded
        updated = page.locator("#updated").inner_text()
        responses.clear()
        began = time.monotonic()
        page.get_by_text("as of").filter(has_not_text=updated).wait_for()
        return _view(responses, time.monotonic() - began)


def _view(responses: list[Response], seconds: float) -> View:
    return View(seconds, len(responses), sum(map(_received, [*responses])))


def _received(response: Response) -> int:
    """Return the bytes of a body as it was sent, compressed or not."""
    response.finished()
    return int(response.request.sizes()["responseBodySize"])


@contextmanager
def _opened(
    browser: Browser, running: RunningCoordinator, fragment: str
) -> Iterator[tuple[Page, list[Response], float]]:
    context = browser.new_context()
    page = context.new_page()
    responses: list[Response] = []
    page.on("response", lambda response: responses.append(response))
    page.goto(f"{running.url}/{fragment}")
    page.locator("#entry").wait_for()
    began = time.monotonic()
    if fragment:
        page.get_by_label("Token").fill(running.token)
        began = time.monotonic()
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.locator("#view[aria-busy=false]").wait_for()
    yield page, responses, time.monotonic() - began
    context.close()


if __name__ == "__main__":
    sys.exit(main())
