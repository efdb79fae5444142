"""The federations of the pictures: real agents on the tiny models, each a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from client_agent.model.loading import base_model_slug
from client_agent.transport.admin_client import Answer, Operator
from schemas.messages.recommendations import FEDMOSAIC
from studies.coordinator_process import TESSERA, quiet_environment

EXAMPLES = Path(__file__).resolve().parents[1]
PIVOT = EXAMPLES / "models" / "tiny-s"
SILOS = {
    "aster": "tiny-s",
    "birch": "tiny-s",
    "cedar": "tiny-l",
    "delta": "tiny-l",
    "elder": "tiny-s",
    "fjord": "tiny-s",
}
HELD = {"elder": 0.7, "fjord": 0.3}
"""The agents that are held, and the share of their steps at which they are."""
SHOWN_ROUND = 5
"""The round that the pictures show before its end."""

WATCHED = {"birch": 0.3, "elder": 0.7}
"""The agents that are held in the run that is watched from start to end, in round `WATCHED_ROUND`."""
WATCHED_ROUND = 3

_GIVE_UP_SECONDS = 1800.0
_TRAINING = {"max_length": 64, "learning_rate": 0.01}


class ScreenshotsFailed(Exception):
    """Something did not work; the message names the file to read."""


class Agents:
    """Agents of one federation; those that run at the end of the block are killed."""

    def __init__(self, operator: Operator, folder: Path) -> None:
        self.operator = operator
        self.path = ""
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def create(self, plan: Answer) -> str:
        """Create the federation of these agents and start it; return its id."""
        federation = str(self.operator.post("/v1/federations", plan)["id"])
        self.path = f"/v1/federations/{federation}"
        if "alignment" in plan:
            self.operator.put(f"{self.path}/anchors", json.loads((EXAMPLES / "anchors.json").read_bytes()))
        self.operator.post(f"{self.path}/start")
        return federation

    def start(self, name: str, model: str = "tiny-s", validation: int = 0) -> None:
        """Start an agent; its first `validation` test examples are validation examples."""
        home = self._folder / name
        home.mkdir(parents=True, exist_ok=True)
        data = EXAMPLES / "silos" / name
        examples = (data / "test.jsonl").read_text("utf-8").splitlines(keepends=True)
        lines = {
            "url": self.operator.url,
            "folder": "state",
            "model": str(EXAMPLES / "models" / model),
            "pivot_model": str(PIVOT),
            "train": str(data / "train.jsonl"),
            "test": "test.jsonl",
        }
        (home / "test.jsonl").write_text("".join(examples[validation:]), "utf-8")
        if validation:
            (home / "validation.jsonl").write_text("".join(examples[:validation]), "utf-8")
            lines["validation"] = "validation.jsonl"
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
        (home / "silo.toml").write_text(f'{text}metrics = ["exact_match"]\nthreads = 1\n', "utf-8")
        token = self.operator.post(f"{self.path}/enrolment-tokens", {"client_name": name})["token"]
        environment = quiet_environment(
            OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TESSERA_AGENT_TOKEN=str(token)
        )
        with (home / "agent.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*TESSERA, "agent", "run", "--config", str(home / "silo.toml"), "--name", name],
                stdout=log,
                stderr=log,
                env=environment,
            )

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _GIVE_UP_SECONDS
        while not condition():
            for name, process in self._processes.items():
                if process.poll():
                    raise ScreenshotsFailed(
                        f"the agent {name} failed: see {self._folder / name / 'agent.log'}"
                    )
            if time.monotonic() > deadline:
                raise ScreenshotsFailed(f"nothing moved for {_GIVE_UP_SECONDS:.0f} s: see {self._folder}")
            time.sleep(0.1)

    def wait_for_end(self) -> None:
        """Wait until the federation is finished and its agents have sent their last scores."""
        self.wait(lambda: all(process.poll() == 0 for process in self._processes.values()))

    def hold(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGSTOP)

    def release(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGCONT)

    def part(self, name: str, number: int) -> Answer | None:
        """Return a client's part in a round; None before it has joined."""
        newest = self.operator.get(f"{self.path}/rounds?limit=1")["items"]
        if not newest or newest[0]["round"] < number:
            return None
        clients = self.operator.get(f"{self.path}/rounds/{number}")["clients"]
        return next((client for client in clients if client["name"] == name), None)


def clinics(agents: Agents) -> str:
    """Run two base models to the middle of a round; return the federation's id."""
    federation = agents.create(
        {
            "name": "clinics of the north",
            "strategy": {"name": "fedmosaic"},
            "rounds": {"total": 8, "min_clients": len(SILOS), "collect_seconds": 3600},
            **FEDMOSAIC,
            "training": _TRAINING | {"steps": 60},  # long enough to be held amid them
            "signature": {"probe_examples": 12},
            "alignment": {"pivot": base_model_slug(str(PIVOT))},
        }
    )
    for count, name in enumerate(("aster", "cedar"), start=1):  # one of each base model makes its pack
        agents.start(name, SILOS[name])
        agents.wait(partial(_has_packs, agents, count))
    for name in SILOS:
        if name not in ("aster", "cedar"):
            agents.start(name, SILOS[name])
    _hold_in_round(agents, SHOWN_ROUND, HELD, set(SILOS) - set(HELD))
    return federation


def ward(agents: Agents) -> str:
    """Create and start a federation that has no client yet; return its id."""
    return agents.create(
        {
            "name": "wards of the east",
            "strategy": {"name": "fedmosaic"},
            "adapter": {"kind": "lora", "rank": 8},
            "rounds": {"total": 5, "min_clients": 3},
            "training": _TRAINING | {"steps": 80},
            "signature": {"probe_examples": 12},
        }
    )


def ward_in_round(agents: Agents) -> None:
    """Enrol three silos, and hold two of them in the middle of a round."""
    for silo in ("aster", *WATCHED):
        agents.start(silo)
    _hold_in_round(agents, WATCHED_ROUND, WATCHED, {"aster"})


def ward_further(agents: Agents) -> None:
    """Train a little with both held agents, so that their newest reports are of now."""
    for name, share in WATCHED.items():
        _advance(agents, name, WATCHED_ROUND, share + 0.1)


def ward_to_the_end(agents: Agents) -> None:
    for name in WATCHED:
        agents.release(name)
    agents.wait_for_end()


def helpdesk(agents: Agents, name: str, strategy: str) -> str:
    """Run three silos on one base model to the end; return the federation's id."""
    federation = agents.create(
        {
            "name": name,
            "strategy": {"name": strategy},
            "adapter": {"kind": "lora", "rank": 8},
            "rounds": {"total": 5, "min_clients": 3},
            "training": _TRAINING,
            "signature": {"probe_examples": 12},
        }
    )
    for silo in ("aster", "birch", "elder"):
        agents.start(silo)
    agents.wait_for_end()
    return federation


def bank(agents: Agents) -> str:
    """Run a bank of experts of six silos to the end; return the federation's id."""
    federation = agents.create(
        {
            "name": "wards",
            "strategy": {"name": "fed_vemoe", "options": {"experts": 2, "explore_rounds": 2}},
            "adapter": {"kind": "lora", "rank": 4, "roles": ["v"]},
            "rounds": {"total": 5, "min_clients": len(SILOS)},
            "privacy": {"secure_sum": {"masking": "pairwise", "minimum": 5, "k_min": 3}},
            "training": _TRAINING | {"steps": 10},
        }
    )
    for silo in SILOS:
        agents.start(silo, validation=32)
    agents.wait_for_end()
    return federation


def _has_packs(agents: Agents, count: int) -> bool:
    return len(agents.operator.get(f"{agents.path}/alignments")["items"]) >= count


def _hold_in_round(agents: Agents, number: int, held: Mapping[str, float], others: Collection[str]) -> None:
    """Wait until the others have delivered in a round, and each held agent has trained its share of it."""
    waiting = set(held)

    def all_held() -> bool:
        for name in list(waiting):
            if agents.part(name, number) is not None:
                agents.hold(name)
                waiting.remove(name)
        return not waiting

    def have_arrived() -> bool:
        parts = [agents.part(name, number) for name in others]
        return all(part is not None and part["state"] == "arrived" for part in parts)

    agents.wait(all_held)
    agents.wait(have_arrived)
    for name, share in held.items():
        _advance(agents, name, number, share)


def _advance(agents: Agents, name: str, number: int, share: float) -> None:
    """Train in short turns with a held agent, until it has reported this share of its steps."""

    def is_far_enough() -> bool:
        part = agents.part(name, number)
        if part is None or part["state"] != "joined":
            raise ScreenshotsFailed(f"{name} delivered before it was held; run it again")
        if part["progress"] is not None and part["progress"]["step"] >= share * part["progress"]["steps"]:
            return True
        agents.release(name)
        time.sleep(0.1)
        agents.hold(name)
        time.sleep(0.5)
        return False

    agents.wait(is_far_enough)
