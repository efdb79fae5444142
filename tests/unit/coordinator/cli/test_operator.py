from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from schemas.messages.federations import ALL_ROLES
from schemas.strategies.registry import strategy_names
from tests.scene.coordinator import Served
from tests.scene.operator import Operator
from tests.scene.rounds import PLAN, deliver, running, values, wait_for


def test_operator_commands_run_a_whole_federation(tessera: Operator) -> None:
    created = tessera.json(
        "federation",
        "create",
        "--name",
        "clinics",
        "--strategy",
        "fedmosaic",
        "--option",
        "temperature=0.4",
        "--rounds",
        "3",
        "--min-clients",
        "2",
        "--rank",
        "4",
    )
    federation_id = created["id"]
    assert created["plan"]["rounds"]["total"] == 3
    assert (created["plan"]["adapter"]["kind"], created["plan"]["adapter"]["rank"]) == ("lora", 4)
    assert created["plan"]["strategy"]["options"]["temperature"] == 0.4
    token = tessera.json("enrolment", "create", federation_id, "hospital-a", "--organisation", "A")["token"]
    assert token.startswith("tsr1_")
    (unused,) = tessera.json("enrolment", "list", federation_id)
    assert (unused["client_name"], unused["organisation"]) == ("hospital-a", "A")
    assert "hospital-a" in tessera("enrolment", "list", federation_id)
    shapes = {role: [64, 64] for role in created["plan"]["adapter"]["roles"]}
    silo = tessera.served.enrol(federation_id, "hospital-b", shapes=shapes)
    assert federation_id in tessera("federation", "list")
    assert silo.client_id in tessera("client", "list", federation_id)
    assert tessera.json("federation", "start", federation_id)["state"] == "running"
    assert "open" in tessera("round", "list", federation_id)
    assert "round 1" in tessera("round", "show", federation_id, "1")
    assert tessera.json("federation", "pause", federation_id)["state"] == "paused"
    tessera("client", "revoke", federation_id, silo.client_id, "--yes")
    assert tessera.json("client", "list", federation_id)[0]["state"] == "revoked"
    assert "finished" in tessera("federation", "finish", federation_id, "--yes")
    assert "finished" in tessera("federation", "show", federation_id)


@pytest.mark.parametrize("strategy", strategy_names())
def test_strategies_need_no_option_but_their_name(tessera: Operator, strategy: str) -> None:
    created = tessera.json("federation", "create", "--name", strategy, "--strategy", strategy)
    assert created["plan"]["strategy"]["name"] == strategy


@pytest.mark.parametrize("strategy", ["fedmosaic", "flora"])
def test_recommended_plans_accept_a_model_of_8b(tessera: Operator, strategy: str) -> None:
    created = tessera.json("federation", "create", "--name", "x", "--strategy", strategy)
    shapes = {"q": (4096, 4096), "k": (1024, 4096), "v": (1024, 4096), "o": (4096, 4096)}
    shapes |= {"gate": (14336, 4096), "up": (14336, 4096), "down": (4096, 14336)}
    silo = tessera.served.enrol(created["id"], "large", hidden_size=4096, layers=32, shapes=shapes)
    assert silo.client_id in tessera("client", "list", created["id"])


def test_same_architecture_rank_can_be_zero(tessera: Operator) -> None:
    gate = ("--option", "mix=gate", "--same-architecture-rank", "0")
    created = tessera.json("federation", "create", "--name", "x", "--strategy", "fedmosaic", *gate)
    assert created["plan"]["adapter"]["same_architecture_rank"] == 0


def test_target_modules_are_given_by_block_and_role(tessera: Operator) -> None:
    create = ("federation", "create", "--name", "x", "--strategy", "fedmosaic", "--target-modules")
    assert tessera.json(*create, "b0.v,b3.down")["plan"]["adapter"]["target_modules"] == ["b0.v", "b3.down"]
    refused = tessera(*create, "b0.q", fails=True)  # not among the recommended roles
    assert "adapter.target_modules" in refused
    assert "b0.q is not a (block, role)" in refused


def test_a_pivot_selects_p_and_q(tessera: Operator) -> None:
    pivot = "llama-96x4-4e79db21c87f"
    created = tessera.json("federation", "create", "--name", "x", "--strategy", "fedmosaic", "--pivot", pivot)
    assert created["plan"]["alignment"]["pivot"] == pivot
    adapter = created["plan"]["adapter"]
    assert (adapter["kind"], adapter["rank"], adapter["same_architecture_rank"]) == ("pq", 32, 8)
    assert adapter["roles"] == ["v", "o", "gate", "up", "down"]


@pytest.mark.parametrize("strategy", ["fedmosaic", "fedavg"])
def test_plans_without_a_pivot_use_lora(tessera: Operator, strategy: str) -> None:
    created_plan = tessera.json("federation", "create", "--name", "x", "--strategy", strategy)["plan"]
    assert created_plan["adapter"]["kind"] == "lora"
    assert (created_plan["adapter"]["rank"], created_plan["adapter"]["roles"]) == (16, list(ALL_ROLES))
    assert created_plan["alignment"] is None
    assert created_plan["training"]["learning_rate"] == "auto"


def test_mix_gate_is_refused_with_lora(tessera: Operator) -> None:
    create = ("federation", "create", "--name", "x", "--strategy", "fedmosaic", "--option")
    assert "a gate needs adapters in common frames" in tessera(*create, "mix=gate", fails=True)
    created_plan = tessera.json(*create, "mix=replace")["plan"]
    assert (created_plan["adapter"]["kind"], created_plan["strategy"]["options"]["mix"]) == (
        "lora",
        "replace",
    )


def test_options_override_fields_of_a_plan_file(tessera: Operator, tmp_path: Path) -> None:
    plan = {"name": "from a file", "strategy": {"name": "fedavg"}, "rounds": {"total": 9, "min_clients": 4}}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    created = tessera.json("federation", "create", "--plan", str(file), "--rounds", "2")
    assert created["name"] == "from a file"
    assert created["plan"]["rounds"]["total"] == 2
    assert created["plan"]["rounds"]["min_clients"] == 4


@pytest.mark.parametrize(
    ("plan", "options", "error"),
    [
        ('{"name": "x", "strategy": "fedmosaic"}', ("--option", "a=1"), "plan's strategy must be an object"),
        ('{"name": "x", "strategy": {"name": "fedavg"}, "rounds": 3}', ("--rounds", "3"), "plan's rounds"),
        ("name: x", (), "is not JSON"),
        ('{"name": "x", "training": {"learning_rate": NaN}}', (), "NaN is not a JSON number"),
        ('{"name": "x", "training": {"learning_rate": 1e999}}', (), "number 1e999 is too large"),
        ('{"name": "x", "rounds": {}, "rounds": {}}', (), "the key 'rounds' occurs twice"),
        ("[" * 100_000, (), "nested too deeply"),
        (
            '{"name": "x", "strategy": {"name": "fedmosaic"}}',
            ("--option", "temperature=NaN"),
            "NaN is not a JSON",
        ),
        (
            '{"name": "x", "strategy": {"name": "fedmosaic"}}',
            ("--option", 'a={"b": 1, "b": 2}'),
            "occurs twice",
        ),
        ('{"naem": "x", "strategy": {"name": "fedavg"}, "adapter": {"rank": 0}}', (), "adapter.rank: "),
        ('{"naem": "x", "strategy": {"name": "fedavg"}, "adapter": {"rank": 0}}', (), "naem: "),
    ],
)
def test_errors_in_a_plan_file_are_named(
    tessera: Operator, tmp_path: Path, plan: str, options: tuple[str, ...], error: str
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan)
    assert error in tessera("federation", "create", "--plan", str(file), *options, fails=True)


def test_tokens_are_created_listed_and_revoked(tessera: Operator) -> None:
    created = tessera.json("token", "create", "--role", "operator", "--name", "ops")
    assert tessera.json("federation", "list") == json.loads(
        tessera("federation", "list", "--json", token=created["token"])
    )
    assert created["id"] in tessera("token", "list")
    tessera("token", "revoke", created["id"], "--yes")
    assert "credential-invalid" in tessera("federation", "list", token=created["token"], fails=True)


def test_refusals_are_one_readable_line(tessera: Operator, tmp_path: Path) -> None:
    for arguments, expected in [
        (["federation", "show", "fed_none"], "[not-found]"),
        (["round", "show", f"fed_{0:024x}", "9"], f"/v1/federations/fed_{0:024x}/rounds/9 [not-found]"),
        (["federation", "create", "--name", "x", "--strategy", "nope"], "wrong: strategy.name"),
        (["federation", "create", "--name", "x", "--strategy", "fedavg", "--option", "x"], "KEY=VALUE"),
        (["federation", "create", "--plan", str(tmp_path / "none.json")], "none.json cannot be read"),
        (["federation", "create", "--plan", str(tmp_path)], "pass the plan as a JSON file"),
        (["token", "create", "--role", "king", "--name", "x"], "role"),
        (["federation", "list", "--url", "http://127.0.0.1:1"], "does not answer"),
        (["federation", "list", "--url", "not a url"], "http://"),
        (["federation", "list", "--url", "127.0.0.1:8000"], "is not a URL; use one like http://"),
    ]:
        printed = tessera(*arguments, fails=True)
        assert printed.startswith("error: ")
        assert expected in printed
        assert printed.count("\n") == 1


def test_missing_tokens_and_federations_name_the_next_step(
    serve: Callable[..., Served], database_url: str
) -> None:
    tessera = Operator(serve(database_url))
    assert "set TESSERA_TOKEN or --token" in tessera("federation", "list", token="", fails=True)
    assert tessera("federation", "list") == ""
    assert "`tessera federation create`" in tessera.warnings("federation", "list")


def test_reduced_weights_are_shown_with_the_reason(tessera: Operator) -> None:
    plan = {"strategy": {"name": "fedmosaic"}, "rounds": {"total": 2, "min_clients": 2}}
    federation_id, silos = running(tessera.served, **PLAN | plan | {"signature": {"dim": 2}})
    for silo, fill in zip(silos, (1.0, -30.0), strict=True):
        deliver(silo, 1, values(fill), signature=np.ones(2, np.float32))
    wait_for(tessera.served, federation_id, 1, "published")
    printed = tessera("round", "relevance", federation_id, "1")
    assert "large, opposed" in printed
    assert "silo-0" in printed
    assert tessera.json("round", "relevance", federation_id, "1")["served"] == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("watch", [("watch",), ("show", "--watch"), ("show", "1", "--watch")])
def test_watch_follows_rounds_to_their_end(
    tessera: Operator, monkeypatch: pytest.MonkeyPatch, watch: tuple[str, ...]
) -> None:
    federation_id = tessera.served.federation()
    path = f"/v1/federations/{federation_id}"
    tessera.served.admin.post(f"{path}/start")

    def finish(_: float) -> None:
        tessera.served.admin.post(f"{path}/finish")

    monkeypatch.setattr("coordinator.cli.rounds.time", SimpleNamespace(sleep=finish))  # after its first look
    command, *more = watch
    lines = tessera("round", command, federation_id, *more, "--json").splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["open", "abandoned"]
    assert "abandoned" in tessera("round", command, federation_id, *more)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_interrupted_watch_ends_with_a_sentence(
    tessera: Operator, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    federation_id = tessera.served.federation()

    def press(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("coordinator.cli.rounds.time", SimpleNamespace(sleep=press))
    message = tessera.interrupted("round", "watch", federation_id, *form)
    assert message == "interrupted; the round continues; repeat the command to follow it again\n"


def test_round_show_defaults_to_the_current_round(tessera: Operator) -> None:
    federation_id = tessera.served.federation()
    assert "No round yet; start the federation" in tessera("round", "show", federation_id, fails=True)
    tessera.served.start_federation(federation_id)
    assert tessera.json("round", "show", federation_id)["round"] == 1


def test_ready_is_silent_unless_the_coordinator_fails(tessera: Operator) -> None:
    assert tessera("ready") == ""
    assert "does not answer" in tessera("ready", "--url", "http://127.0.0.1:1", fails=True)


def test_help_imports_no_service_and_no_torch() -> None:
    program = (
        "import sys\n"
        "sys.argv = ['tessera', '--help']\n"
        "from schemas.command import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'fastapi', 'sqlalchemy', 'torch', 'transformers', 'numpy', 'uvicorn', 'httpx'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("serve", "migrate", "ready", "federation", "token", "enrolment", "client", "round", "agent"):
        assert name in done.stdout


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from schemas.command import main

    monkeypatch.setitem(sys.modules, "coordinator.server", None)
    blocked = _failing_import("sqlalchemy", "coordinator.server", "coordinator.errors")
    monkeypatch.setattr(sys, "meta_path", [blocked, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "coordinator.server")
    monkeypatch.setattr(sys, "argv", ["tessera", "migrate"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "pip install '.[coordinator]'" in capsys.readouterr().err


def _failing_import(missing: str, *importers: str) -> Any:
    """Return an import finder that raises as if the module `missing` were not installed."""

    class Finder:
        find: Callable[..., None]

        def find_spec(self, name: str, *_: object) -> None:
            if name in importers:
                raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    return Finder()
