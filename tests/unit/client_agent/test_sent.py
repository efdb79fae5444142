"""`tessera agent sent` lists all bodies that left the silo, and saves those still stored."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from client_agent.daemon import run
from client_agent.errors import CoordinatorUnreachable
from client_agent.session import open_participant
from client_agent.settings import read_settings
from client_agent.transport.client import CoordinatorApi
from client_agent.transport.sent_log import SentLog, SentLogUnwritable
from schemas.messages.scores import Scores
from tests.scene.agent_commands import tessera
from tests.scene.agents import limited_sleep, start_alone
from tests.scene.coordinator import Served
from tests.scene.silo_config import config

PUT = "http://127.0.0.1:1/tessera/v1/federations/fed_1/rounds/{}/{}"


def listed(file: Path, *arguments: object) -> list[dict[str, Any]]:
    done = tessera("sent", "--config", file, "--json", *arguments)
    assert done.exit_code == 0, done.output
    entries: list[dict[str, Any]] = json.loads(done.stdout)
    return entries


@pytest.mark.slow
def test_sent_bodies_are_listed_and_saved(served: Served, tmp_path: Path) -> None:
    federation_id, token = start_alone(served)
    file = config(tmp_path, url=served.url)
    with open_participant(read_settings(file), (token, "aster")) as participant:
        run(participant, limited_sleep(500))
        updates = [folder.read("update.body") for folder in participant.workspace.rounds.newest_first()]
    entries = listed(file)
    kinds = [entry["kind"] for entry in entries if entry["kind"] != "progress"]
    assert kinds[:2] == ["enrolment", "join"]
    assert kinds.count("update") == 2
    assert "other" not in kinds
    assert token not in json.dumps(entries)
    sent = [entry for entry in entries if entry["kind"] == "update"]
    assert [entry["sha256"] for entry in sent] == [hashlib.sha256(body).hexdigest() for body in updates[::-1]]
    # What the coordinator counted is what the log says, body by body.
    for view in served.rounds(federation_id):
        round_reports = listed(file, "--round", view["round"])
        assert {entry["round"] for entry in round_reports} == {view["round"]}
        bodies = [e["bytes"] for e in round_reports if e["kind"] == "update"]
        assert sum(bodies) == view["bytes"]["up"]
        scores = next(entry for entry in round_reports if entry["kind"] == "scores")
        assert Scores.model_validate_json(scores["body"]).kept == view["clients"][0]["scores"]["kept"]
    target = tmp_path / "saved"
    listed(file, "--save", target)
    saved = {file.read_bytes() for file in target.iterdir()}
    assert set(updates) <= saved
    shown = tessera("sent", "--config", file)
    assert shown.exit_code == 0
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    # At the width of a terminal the route is whole, and so is the time.
    (update,) = (line for line in shown.stdout.splitlines() if "PUT …/rounds/1/update" in line)
    assert re.match(r" \d\d-\d\d \d\d:\d\d:\d\d ", update)


def recorded(log: SentLog, number: int, kind: str, body: bytes) -> None:
    log.record(httpx.Request("PUT", PUT.format(number, kind), content=body))


def test_sent_log_is_bounded_and_keeps_updates(tmp_path: Path) -> None:
    log = SentLog(tmp_path, file_bytes=2000)
    recorded(log, 1, "update", b"weights")
    for number in range(200):
        recorded(log, number, "progress", b'{"step": 1}')
    entries = list(log.entries())
    assert [entry.kind for entry in entries if entry.kind != "progress"] == ["update"]
    progress = [entry for entry in entries if entry.kind == "progress"]
    assert progress[-1].round == 199
    assert 10 < len(progress) < 60
    assert all(file.stat().st_size <= 2000 for file in (tmp_path / "sent").iterdir())
    assert entries[0].route == "/v1/federations/fed_1/rounds/1/update"


@pytest.mark.parametrize(
    ("route", "body", "kind"),
    [
        ("rounds/2/join", b"sketch", "join with a sketch"),
        ("rounds/2/join", b"", "join"),
        ("rounds/2/secure-sum/3/2", b"masked", "masked update"),
        ("rounds/2/secure-sum/3/0", b"{}", "step of the sum"),
        ("rounds/2/ready", b"{}", "ready for the sum"),
        ("alignments/tiny-s", b"pack", "alignment pack"),
        ("alignments/tiny-s/acceptance", b"{}", "alignment test"),
        ("something/new", b"{}", "other"),
    ],
)
def test_log_entry_names_the_kind_of_body(route: str, body: bytes, kind: str, tmp_path: Path) -> None:
    log = SentLog(tmp_path)
    log.record(httpx.Request("PUT", f"http://127.0.0.1:1/v1/federations/fed_1/{route}", content=body))
    (entry,) = log.entries()
    assert (entry.kind, entry.bytes, entry.body) == (kind, len(body), None)
    assert entry.sha256 == (hashlib.sha256(body).hexdigest() if body else None)


def test_line_that_a_crash_cut_is_skipped(tmp_path: Path) -> None:
    log = SentLog(tmp_path)
    recorded(log, 1, "update", b"weights")
    with (tmp_path / "sent" / "requests.jsonl").open("ab") as file:
        file.write(b'{"at": "2026-\n')
    recorded(log, 2, "update", b"weights")
    assert [entry.round for entry in log.entries()] == [1, 2]


def test_request_is_not_sent_without_a_log_entry(tmp_path: Path) -> None:
    (tmp_path / "sent").touch()  # a file where the log's folder belongs
    arrived: list[httpx.Request] = []
    transport = httpx.MockTransport(lambda request: arrived.append(request) or httpx.Response(200, json={}))
    with CoordinatorApi(
        "http://127.0.0.1:1", key=None, deadline_seconds=0, transport=transport, sent=SentLog(tmp_path)
    ) as api:
        api.call("GET", "/v1/hello")
        with pytest.raises(SentLogUnwritable, match="nothing is sent that is not in it"):
            api.call("PUT", "/v1/federations/fed_1/rounds/1/update", content=b"weights")
    assert [request.method for request in arrived] == ["GET"]


def test_failed_request_is_in_the_log(tmp_path: Path) -> None:
    log = SentLog(tmp_path)
    with (
        CoordinatorApi(
            "http://127.0.0.1:1", key=None, deadline_seconds=0, sleep=lambda _: None, sent=log
        ) as api,
        pytest.raises(CoordinatorUnreachable),
    ):
        api.call("PUT", "/v1/federations/fed_1/rounds/1/update", content=b"weights")
    assert {entry.bytes for entry in log.entries()} == {7}


def test_empty_sent_log_is_reported(tmp_path: Path) -> None:
    file = config(tmp_path)
    for arguments, answer in (
        ([], "nothing has been sent yet"),
        (["--round", "3"], "nothing was sent in round 3"),
    ):
        done = tessera("sent", "--config", file, *arguments)
        assert done.exit_code == 0
        assert answer in done.stderr
