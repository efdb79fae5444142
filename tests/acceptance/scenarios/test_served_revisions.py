"""An agent in a process of its own exports its revisions, and the resolver of vLLM finds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from client_agent.revisions.served_folder import ServedFolder, parsed_label
from client_agent.revisions.vllm_resolver import TesseraResolver
from tests.scene.agent_processes import MODELS, prepare_agent, tessera
from tests.scene.coordinator import Served
from tests.scene.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

ROUNDS = 6
EXPORT = """
[export]
after_round = "peft"
readers = "group"
run = ["sh", "-c", "echo $TESSERA_REVISION_NAME >> hook.log"]
"""


def test_server_follows_revisions_over_rounds(
    fresh_database: Callable[[str], str], serve: Callable[..., Served], tmp_path: Path
) -> None:
    coordinator = serve(fresh_database("sqlite"), tick_seconds=0.05, retry_seconds=0.2)
    federation_id = coordinator.federation(
        strategy={"name": "fedavg"},
        adapter={"kind": "lora", "rank": 4, "scale": 8.0, "roles": ["q", "v"]},
        rounds={"total": ROUNDS, "min_clients": 1, "collect_seconds": 300},
        training={"steps": 4, "max_length": 64, "learning_rate": 0.01},
        scores={"examples": 32},
    )
    coordinator.admin.post(f"/v1/federations/{federation_id}/start")
    token = coordinator.enrolment_token(federation_id, "aster")
    agent = prepare_agent(tmp_path, "aster", coordinator.url, token)
    config = agent.folder / "silo.toml"
    config.write_text(config.read_text() + EXPORT.replace("hook.log", str(agent.folder / "hook.log")))
    served = ServedFolder(agent.folder / "tessera-served")
    resolver, base = TesseraResolver((served,)), str(MODELS["S"])

    def current() -> int:
        return (parsed_label(served.current() or "") or ("", 0))[1]

    def resolved(name: str) -> Path | None:
        request = resolver.resolve(base, name)
        return request.path if request is not None else None

    agent.start()
    wait_until(lambda: current() >= 3, seconds=300)
    third = {path.name: path.read_bytes() for path in (served.path / "aster@3").iterdir()}
    assert resolved("aster@3") == served.path / "aster@3"
    # While the agent runs.
    done = tessera("agent", "rollback", 2, "--config", config)
    assert done.returncode == 0, done.stderr
    assert "aster@2 is served (round 2)" in done.stdout
    assert resolved("aster") == served.path / "aster@2"
    agent.wait(seconds=600)
    # The rounds, and the final weights.
    assert served.labels() == [f"aster@{number}" for number in range(1, ROUNDS + 2)]
    assert current() == 2
    assert {path.name: path.read_bytes() for path in (served.path / "aster@3").iterdir()} == third
    rows = json.loads(tessera("agent", "history", "--config", config, "--json").stdout)
    assert [row["number"] for row in rows] == list(range(ROUNDS + 1, 0, -1))
    assert rows[0]["variant"] == "final"
    assert rows[-2]["marks"] == ["served", "pinned", "exported"]
    newest = f"aster@{ROUNDS + 1}"
    done = tessera("agent", "rollback", "newest", "--config", config)
    assert f"{newest} is served (round {ROUNDS}); before: aster@2" in done.stdout
    assert resolved("aster") == served.path / newest
    moves = (agent.folder / "hook.log").read_text().splitlines()
    assert moves[:3] == ["aster@1", "aster@2", "aster@3"]
    assert moves[-2:] == ["aster@2", newest]
    for file in (served.path / newest).iterdir():
        assert file.stat().st_mode & 0o777 == 0o640
    # A replaced file and another base model are refused.
    assert resolver.resolve(str(MODELS["L"]), "aster") is None
    (served.path / newest / "adapter_model.safetensors").write_bytes(third["adapter_model.safetensors"])
    assert resolved("aster") is None
    assert resolved("aster@3") == served.path / "aster@3"
