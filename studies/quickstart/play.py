"""Run the federation of a quickstart: a coordinator, two agents, progress, a table of losses."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console
from rich.table import Table

from client_agent.errors import AgentError
from client_agent.transport.admin_client import Answer, Operator
from studies.coordinator_process import TESSERA, quiet_environment, running_coordinator
from studies.page_link import TOKEN_FILE, make_page_token, page_link
from studies.quickstart.folder import HELD_OUT, ROUNDS, SILOS, QuickstartFolder, plan

_LOOK_SECONDS: Final = 0.5
_GIVE_UP_SECONDS: Final = 900.0
_STOP_SECONDS: Final = 5.0
_ASKED: Final = "CIPHER gonm="
_ANSWER: Final = "idlp"


class QuickstartFailed(AgentError):
    """An agent stopped, or the federation made no progress; the message names the log file."""


class _Clock:
    """Prints news with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._last = ""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        if text == self._last:
            return
        self._last = text
        minutes, seconds = divmod(int(self.seconds), 60)
        print(f"[{minutes}:{seconds:02}] {text}", flush=True)


def play(folder: QuickstartFolder, *, keep: bool) -> None:
    """Run the federation, print its losses, and keep its page open if asked to.

    Raises:
        QuickstartFailed, AgentError: something did not work; the message names the log.
        KeyboardInterrupt: Ctrl-C ended the run; at its end, it only closes the page.
    """
    clock, path = _Clock(), folder.path
    if folder.earlier is not None:
        print(f"The folder of an earlier quickstart is now {folder.earlier}.")
    print(
        f"Two silos, {' and '.join(SILOS)}, teach a tiny language model a secret alphabet: {_ASKED} -> "
        f"{_ANSWER}.\nEach has 8 examples of its own, in which 3 of the 16 letters do not occur; the other "
        "has those.\nThe examples stay in each silo's folder: the silos exchange adapters, not text.\n"
        f"Everything is in {path}; three rounds take about a minute on two cores.\n",
        flush=True,
    )
    with ExitStack() as opened:
        clock.say("the coordinator starts")
        running = opened.enter_context(running_coordinator(path.absolute() / "coordinator"))
        operator = opened.enter_context(Operator(running.url, running.token))
        link = page_link(running.url, make_page_token(operator, path), path / TOKEN_FILE)
        federation = f"/v1/federations/{operator.post('/v1/federations', plan())['id']}"
        operator.post(f"{federation}/start")
        folder.write_silos(running.url)
        clock.say(f"watch the rounds in a browser: {link}")
        with _running_agents(folder, operator, federation) as agents:
            _follow(operator, federation, agents, folder, clock)
        _show(_clients(operator, federation), clock)
        _show_next(folder, running.url)
        if keep:
            print(f"\nThe page stays at {link} until Ctrl-C.", flush=True)
            with suppress(KeyboardInterrupt):
                while True:
                    time.sleep(3600)


@contextmanager
def _running_agents(
    folder: QuickstartFolder, operator: Operator, federation: str
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Start one agent per silo, each a process that logs to agent.log in its folder; end them at the end."""
    agents: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for silo in SILOS:
            token = operator.post(f"{federation}/enrolment-tokens", {"client_name": silo})["token"]
            environment = quiet_environment(
                OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TESSERA_AGENT_TOKEN=str(token)
            )
            with _log_of(folder, silo).open("wb") as log:
                agents[silo] = subprocess.Popen(
                    [*TESSERA, "agent", "run", "--config", str(folder.silo_file(silo)), "--name", silo],
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is this process's to answer
                )
        yield agents
    finally:
        for process in agents.values():
            process.terminate()
        for process in agents.values():
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _follow(
    operator: Operator,
    federation: str,
    agents: dict[str, subprocess.Popen[bytes]],
    folder: QuickstartFolder,
    clock: _Clock,
) -> None:
    """Print the state of the newest round until all agents have ended.

    Raises:
        QuickstartFailed: an agent failed, or the agents take too long.
    """
    while any(process.poll() is None for process in agents.values()):
        for silo, process in agents.items():
            if process.poll() not in (None, 0):
                raise _failure(f"the agent of {silo} stopped", _log_of(folder, silo))
        if clock.seconds > _GIVE_UP_SECONDS:
            raise _failure("the federation did not end within 15 minutes", _log_of(folder, SILOS[0]))
        for line in _news(operator, federation):
            clock.say(line)
        time.sleep(_LOOK_SECONDS)
    for silo, process in agents.items():
        if process.returncode != 0:
            raise _failure(f"the agent of {silo} stopped", _log_of(folder, silo))


def _news(operator: Operator, federation: str) -> Iterator[str]:
    try:
        rounds = operator.get(f"{federation}/rounds?limit=1")["items"]
        number = rounds[0]["round"]
        view = operator.get(f"{federation}/rounds/{number}")
    except httpx.HTTPError:  # the coordinator is busy; the next look asks again
        return
    if number == 1 and not view["clients"]:
        yield "two agents load PyTorch and the model, and enrol"
        return
    if view["state"] == "published":
        last = number == ROUNDS
        yield f"round {number} of {ROUNDS} is published" + ("; the silos score final weights" if last else "")
        return
    shares = ", ".join(f"{client['name']} {_doing(client)}" for client in view["clients"])
    missing = [silo for silo in SILOS if silo not in {client["name"] for client in view["clients"]}]
    waiting = f"{shares and ', '}{' and '.join(missing)} not there yet" if missing else ""
    yield f"round {number} of {ROUNDS}: {shares}{waiting}"


def _doing(client: Answer) -> str:
    return "trains" if client["state"] == "joined" else "has delivered its update"


def _clients(operator: Operator, federation: str) -> dict[str, list[Answer]]:
    """Return the scores of each silo, round by round."""
    scores: dict[str, list[Answer]] = {silo: [] for silo in SILOS}
    for number in range(1, ROUNDS + 1):
        for client in operator.get(f"{federation}/rounds/{number}")["clients"]:
            if client["scores"]:
                scores[client["name"]].append(client["scores"])
    return scores


def _show(scores: dict[str, list[Answer]], clock: _Clock) -> None:
    """Print the losses of each silo's base model, of its last round and of its final weights."""
    table = Table("silo", title=f"Loss on {HELD_OUT} held-out examples per silo (lower is better)")
    for column in ("base model", "served", "trained", "final", "right, trained", "right, final"):
        table.add_column(column, justify="right")
    lower = 0
    for silo, rounds in scores.items():
        if not rounds or rounds[-1]["final"] is None:
            raise QuickstartFailed(f"{silo} reported no scores of its final weights; see {silo}/agent.log")
        last = rounds[-1]
        sets = (rounds[0]["served"], last["served"], last["trained"], last["final"])
        losses = [scored["loss"]["value"] for scored in sets]
        lower += losses[-1] < losses[-2]
        shown = [f"{loss:.3f}" for loss in losses]
        table.add_row(silo, *shown, _right(last["trained"]), _right(last["final"]))
    print()
    Console().print(table)
    print(
        f"`served` is the mixture that round {ROUNDS} began with, `trained` is after training on the silo's "
        "own\nexamples, and `final` is the mixture of both silos' last adapters: its loss is lower than "
        f"`trained`\nin {lower} of {len(scores)} silos. The run took {clock.seconds:.0f} s."
    )


def _right(scores: Answer) -> str:
    match = scores["exact_match"]
    return f"{round(match['value'] * match['count'])} of {match['count']}"


def _show_next(folder: QuickstartFolder, url: str) -> None:
    """Print the commands that use what the run left behind."""
    silo, path = SILOS[0], folder.path
    config = folder.silo_file(silo)
    database = f"sqlite:///{path.absolute() / 'coordinator' / 'tessera.db'}"
    port = httpx.URL(url).port
    print(
        "\nGo on:\n"
        f'  tessera agent generate --config {config} --prompt "{_ASKED}"   # {_ANSWER} is right\n'
        f"  tessera agent status --config {config}\n"
        f"  tessera agent export --for peft --config {config} --out {path / f'{silo}-peft'}\n"
        f"  TESSERA_DATABASE_URL={database} tessera serve --port {port}   # the page again\n"
        "  tessera agent init --help   # a silo with a model and data of your own",
        flush=True,
    )


def _log_of(folder: QuickstartFolder, silo: str) -> Path:
    return folder.path / silo / "agent.log"


def _failure(problem: str, log: Path) -> QuickstartFailed:
    lines = log.read_text("utf-8", "replace").splitlines() if log.is_file() else []
    last = lines[-1] if lines else "it logged nothing"
    return QuickstartFailed(f"{problem} ({last}); see {log}")
