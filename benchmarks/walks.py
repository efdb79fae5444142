"""Files of the project whose functions run for one update, one aggregation and one round of an agent.

    python -m benchmarks.walks [--list]

A coordinator and an agent on the tiny model run two rounds in this process; the second is counted. A file
that is only imported, or only defines data, is not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from unittest.mock import patch

from client_agent import AgentSettings, open_participant
from client_agent.model.loading import base_model_slug
from client_agent.rounds.participant import Participant
from client_agent.rounds.steps import take_part
from client_agent.transport.admin_client import Operator
from client_agent.transport.client import CoordinatorApi
from client_agent.transport.responses import NoOpenRound
from coordinator import Settings, create_app
from coordinator.observability import logs
from coordinator.server import Server
from schemas.messages.rounds import RoundBrief
from schemas.messages.updates import Receipt

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "examples" / "models" / "tiny-s"
SILO = ROOT / "examples" / "silos" / "aster"
PACKAGES = ("coordinator", "client_agent", "schemas")
_TOKEN = "a-token-of-this-benchmark"
_WAIT_SECONDS = 0.05


class Walks:
    """Collects the files in which functions are called, by the walk that is under way."""

    def __init__(self) -> None:
        self.files: dict[str, set[str]] = {"update": set(), "aggregation": set(), "agent's round": set()}
        self.is_counting = False
        self.is_pushing = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; this is a profiling function (`sys.setprofile`)."""
        if not self.is_counting or event != "call":
            return
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in PACKAGES:
            return
        walk = self._walk()
        if walk is not None:
            self.files[walk].add(str(path.relative_to(ROOT)))

    def _walk(self) -> str | None:
        thread = threading.current_thread()
        if thread is threading.main_thread():
            return "agent's round"
        if thread.name == "ticker-aggregation":
            return "aggregation"
        return "update" if self.is_pushing and not thread.name.startswith("ticker") else None

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count from here to the end of the block, and updates while one is delivered."""
        push = CoordinatorApi.push_update

        def deliver(api: CoordinatorApi, federation_id: str, round_number: int, body: bytes) -> Receipt:
            self.is_pushing = True
            try:
                return push(api, federation_id, round_number, body)
            finally:
                self.is_pushing = False

        with patch.object(CoordinatorApi, "push_update", deliver):
            self.is_counting = True
            yield
            self.is_counting = False


def main() -> None:
    """Run two rounds, and print how many files each walk entered in the second."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walks", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the files, too")
    arguments = parser.parse_args()
    for walk, files in walk_files().items():
        print(f"{len(files):>4}  {walk}")
        if arguments.list:
            print("".join(f"      {file}\n" for file in sorted(files)), end="")


def walk_files() -> dict[str, set[str]]:
    """Run two rounds, and return the files that each walk entered in the second."""
    logs.configure("error", "json")
    walks = Walks()
    threading.setprofile(walks)
    try:
        with tempfile.TemporaryDirectory() as folder, _served(Path(folder)) as url:
            _run(walks, url, Path(folder))
    finally:
        threading.setprofile(None)
    return walks.files


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    settings = Settings(
        database_url=f"sqlite:///{folder}/tessera.db",
        port=0,
        admin_token=_TOKEN,
        tick_seconds=_WAIT_SECONDS,
        retry_seconds=_WAIT_SECONDS,
        polls_per_second=100,
    )
    server = Server(create_app(settings), settings)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        threading.Event().wait(_WAIT_SECONDS)
    try:
        yield server.url
    finally:
        server.handle_exit(15, None)
        thread.join()


def _run(walks: Walks, url: str, folder: Path) -> None:
    with Operator(url, _TOKEN) as operator:
        plan = {
            "name": "walks",
            "strategy": {"name": "fedmosaic"},
            "rounds": {"total": 3, "min_clients": 1},
            "adapter": {"kind": "pq", "rank": 4, "roles": ["v"]},
            "alignment": {"pivot": base_model_slug(str(MODEL)), "frames": "random"},
            "training": {"steps": 1, "max_length": 32, "learning_rate": 0.01},
            "signature": {"probe_examples": 2},
        }
        path = f"/v1/federations/{operator.post('/v1/federations', plan)['id']}"
        token = str(operator.post(f"{path}/enrolment-tokens", {"client_name": "aster"})["token"])
        operator.post(f"{path}/start")
        settings = AgentSettings.model_validate(
            {
                "url": url,
                "folder": folder / "agent",
                "model": str(MODEL),
                "train": str(SILO / "train.jsonl"),
                "test": str(SILO / "test.jsonl"),
                "threads": 1,
            }
        )
        with open_participant(settings, (token, "aster")) as participant:
            take_part(participant, _next_round(participant, 1))
            brief = _next_round(participant, 2)
            sys.setprofile(walks)
            with walks.counting():
                take_part(participant, brief)
                sys.setprofile(None)
                _next_round(participant, 3)


def _next_round(participant: Participant, round_number: int) -> RoundBrief:
    while True:
        answer = participant.session.api.current_round(participant.session.federation_id)
        if isinstance(answer, RoundBrief) and answer.round == round_number:
            return answer
        if not isinstance(answer, NoOpenRound | RoundBrief):
            raise RuntimeError(f"the federation ended before round {round_number}")
        threading.Event().wait(_WAIT_SECONDS)


if __name__ == "__main__":
    main()
