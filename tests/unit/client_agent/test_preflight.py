"""`tessera agent check` under a plan: its source, memory of a step, and unreadable texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_agent.daemon import run
from client_agent.identity.key_rotation import replace_key
from client_agent.identity.membership import enrol
from client_agent.preflight import findings
from client_agent.settings import read_settings
from client_agent.training.silo import open_silo
from client_agent.transport.client import CoordinatorApi
from schemas.maths.adapter import pq_layout, size
from schemas.messages.enrolment import Profile
from schemas.messages.federations import AdapterPlan
from tests.scene.agents import checked, enrolled, limited_sleep
from tests.scene.coordinator import PROFILE, Served
from tests.scene.disks import mounted
from tests.scene.silo_config import config
from tests.scene.tiny_models import save_model
from tests.unit.client_agent.model.test_few_bits import bytes_in

SMALL = {"steps": 1, "batch_size": 2, "max_length": 40, "gradient_checkpointing": True}


def details_by_subject(file: Path, plan: Path | None = None) -> dict[str, str]:
    return {finding.subject: finding.detail for finding in findings(file, plan)}


def test_step_memory_follows_the_given_plan(tmp_path: Path) -> None:
    file, plan = config(tmp_path), tmp_path / "plan.json"
    usual = details_by_subject(file)["memory"]
    assert "a step of 8 x 64 tokens (assumed; the federation's plan is known after enrolment)" in usual
    # The adapter that is assumed without a plan, which is not the recommended one.
    adapter = AdapterPlan().model_dump(mode="json")
    strategy = {"name": "fedavg"}
    plan.write_text(json.dumps({"name": "x", "strategy": strategy, "adapter": adapter, "training": SMALL}))
    small = details_by_subject(file, plan)["memory"]
    assert f"a step of 2 x 40 tokens ({plan})" in small
    assert "with checkpointing, as planned" in small
    trained = 3 * 4 * size(pq_layout(AdapterPlan().modules(), 32))  # gradients, Adam's moments
    for small_bytes, usual_bytes in zip(bytes_in(small)[1:], bytes_in(usual)[1:], strict=True):
        assert small_bytes - trained == pytest.approx((usual_bytes - trained) * 80 / 512, abs=0.06 * 2**20)


def test_lora_in_all_layers_needs_more_memory(tmp_path: Path) -> None:
    file, plan = config(tmp_path), tmp_path / "plan.json"
    usual = bytes_in(details_by_subject(file)["memory"])
    plan.write_text(json.dumps({"name": "x", "strategy": {"name": "fedavg"}, "adapter": {"kind": "lora"}}))
    lora = bytes_in(details_by_subject(file, plan)["memory"].replace("8 x 512", "8 x 64"))
    assert lora[1] > usual[1]


@pytest.mark.parametrize(
    ("layers", "mib", "expected"),
    [
        (1, 4096, "3 of 4 layers are computed once per text"),
        (3, 4096, "adapters begin in layer 1 of 4"),
        (1, 0, "prefix_cache_mib is 0"),
    ],
)
def test_memory_of_stored_layers_is_printed(tmp_path: Path, layers: int, mib: int, expected: str) -> None:
    file, plan = config(tmp_path), tmp_path / "plan.json"
    file.write_text(f"{file.read_text()}\nprefix_cache_mib = {mib}\n")
    adapter = {"kind": "lora", "layers": layers}
    plan.write_text(json.dumps({"name": "x", "strategy": {"name": "fedavg"}, "adapter": adapter}))
    assert expected in details_by_subject(file, plan)["frozen prefix"]


def test_invalid_plan_leaves_other_findings(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    details = details_by_subject(config(tmp_path), plan)
    assert "is not a federation plan" in details["memory"]
    assert details["model"].startswith("llama-96x4-")


@pytest.mark.slow
def test_enrolled_silo_is_checked_under_its_plan(
    tmp_path: Path, fresh_database: Callable[[str], str], serve: Callable[..., Served]
) -> None:
    served = serve(fresh_database("sqlite"), tick_seconds=0.05, retry_seconds=0.05)
    federation_id = served.federation(
        strategy={"name": "fedavg"}, rounds={"total": 1, "min_clients": 1}, training=SMALL
    )
    file = config(tmp_path, url=served.url)
    silo, folder = open_silo(read_settings(file)), read_settings(file).folder
    with ExitStack() as stack:
        participant = enrolled(served, federation_id, silo, folder, stack)
        assert "2 x 40 tokens (the federation's plan)" in details_by_subject(file)["memory"]
        served.start_federation(federation_id)
        assert "2 x 40 tokens (the federation's plan)" in details_by_subject(file)["memory"]
        run(participant, limited_sleep(500))
    # The federation is over and its coordinator gone: the rounds on disk still say it.
    served.stop()
    assert "2 x 40 tokens (the federation's plan)" in details_by_subject(file)["memory"]


@pytest.mark.parametrize("is_known", [False, True])
def test_interrupted_rotation_is_reported_with_a_remedy(
    tmp_path: Path, fresh_database: Callable[[str], str], serve: Callable[..., Served], is_known: bool
) -> None:
    served = serve(fresh_database("sqlite"))
    file = config(tmp_path, url=served.url)
    folder, token = read_settings(file).folder, served.enrolment_token(served.federation(), "aster")

    def connect(key: Ed25519PrivateKey | None) -> CoordinatorApi:
        return CoordinatorApi(served.url, key=key, deadline_seconds=0)

    with connect(None) as api:
        enrol(api, folder, token=token, name="aster", profile=Profile.model_validate(PROFILE))
    assert "rotate-key" not in details_by_subject(file)["identity"]
    old = (folder / "client.key").read_bytes()
    replace_key(connect, folder, at_once=True)
    (folder / "client.key").rename(folder / "next.key")
    if is_known:
        (folder / "client.key").write_bytes(old)
    else:
        (folder / "next.key").rename(folder / "client.key")
        (folder / "next.key").write_bytes(old)
    (identity_finding,) = (finding for finding in findings(file) if finding.subject == "identity")
    assert identity_finding.passed != is_known, "the old key is over"
    assert (
        "next.key is a new key not yet in use: `tessera agent rotate-key` completes the rotation"
        in identity_finding.detail
    )


def test_unreadably_long_texts_are_found_before_a_round(tmp_path: Path) -> None:
    model = save_model(tmp_path / "short", "gpt2", max_position_embeddings=8)
    details = details_by_subject(config(tmp_path, model=model))
    assert "reads 8 at most" in details["data"]
    assert "set training.max_length to 8 or less" in details["data"]


def test_answers_without_an_end_fail_the_check(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": c}]} for c in "bcdef"
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row | {"mood": "kind"}) + "\n" for row in rows))
    (tmp_path / "open.jinja").write_text("{% for m in messages %}{{ m.content }}<pad>{% endfor %}")
    data, template = str(tmp_path / "rows.jsonl"), str(tmp_path / "open.jinja")
    file = config(tmp_path, train=data, test=data, chat_template=template)
    checks = checked(file)
    assert not checks["end of answers"].passed
    assert "no answer ends with a token that stops generation" in checks["end of answers"].detail
    assert checks["data"].passed
    assert "; not used: mood; " in checks["data"].detail


def test_free_space_is_compared_with_rounds(tmp_path: Path) -> None:
    file = config(tmp_path)
    assert "and rounds need up to" in checked(file)["disk"].detail
    with mounted(tmp_path / "state", "size=64k"):
        finding = checked(file)["disk"]
    assert not finding.passed
    assert "free space, or set `folder` to another disk" in finding.detail
