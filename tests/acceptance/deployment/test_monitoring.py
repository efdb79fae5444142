"""The series in the dashboard and the alerts, which a coordinator has."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from coordinator.db.tables.experts import ExpertRow
from coordinator.errors import StorageFull
from schemas.messages.rounds import RoundState
from tests.acceptance.deployment.composition import COMPOSE, ROOT
from tests.acceptance.deployment.queries import (
    ALERTS,
    DASHBOARD,
    FOLDER,
    OF_PROMETHEUS,
    expressions,
    groupings,
    selections,
)
from tests.scene.coordinator import ADMIN_TOKEN, Served, start
from tests.scene.rounds import deliver, join, plan, put, running, values
from tests.scene.waiting import wait_until

Series = dict[str, list[dict[str, str]]]

OVERLAY: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.monitoring.yml").read_text("utf-8"))


@pytest.fixture(scope="module")
def busy(fresh_database: Callable[[str], str]) -> Iterator[Served]:
    """A coordinator with a published round, a stuck one, a refused update and an expert."""
    served = start(fresh_database("sqlite"), tick_seconds=0.05, stuck_seconds=0.001)
    federation_id, (first, second) = running(served, **plan(rounds={"total": 2}))
    assert put(first, 1, b"no update").status_code == 409
    for silo in (first, second):
        deliver(silo, 1, values(1.0))
    wait_until(lambda: served.round_state(federation_id, 2) == "open")
    join(first, 2)
    with served.database.write() as session:
        expert = {"expert": 0, "status": "active", "born": 1, "grace_until": 3, "prior": 1.0, "strikes": 0}
        session.add(ExpertRow(federation_id=federation_id, **expert))
    yield served
    served.stop()


@pytest.fixture(scope="module")
def series(busy: Served) -> Series:
    """The labels of every series, by the name of its samples."""
    shown: Series = {"up": [{}]}
    for family in text_string_to_metric_families(busy.admin.get("/metrics").text):
        for sample in family.samples:
            shown.setdefault(sample.name, []).append(dict(sample.labels))
    return shown


@pytest.mark.parametrize("place", expressions())
def test_queried_metrics_and_labels_exist(place: str, series: Series) -> None:
    chosen = selections(expressions()[place])
    assert chosen
    for selection in chosen:
        assert selection.name in series, place
        labels = {label for sample in series[selection.name] for label in sample} | OF_PROMETHEUS
        assert {label for label, _, _ in selection.matchers} <= labels
        assert groupings(expressions()[place]) <= labels
        assert ("job", "tessera", True) in selection.matchers


@pytest.mark.parametrize("place", [name for name in expressions() if name.startswith("panel")])
def test_queries_of_panels_select_series(place: str, series: Series) -> None:
    assert all(any(map(s.takes, series[s.name])) for s in selections(expressions()[place]))


def test_queried_label_values_exist() -> None:
    states, used = set(RoundState.__args__), set()  # type: ignore[attr-defined]
    for text in expressions().values():
        for selection in selections(text):
            for label, pattern, _ in selection.matchers:
                if label == "state":
                    used |= set(pattern.split("|"))
                elif label == "reason":
                    assert pattern.replace("\\", "") == StorageFull.slug
    assert used == {"published", "abandoned"} <= states


def test_quantile_thresholds_are_below_the_largest_bucket(series: Series) -> None:
    compared = 0
    for rule in ALERTS:
        expression = promql.parse(rule["expr"])
        if isinstance(expression, promql.BinaryExpr) and "histogram_quantile" in rule["expr"]:
            (name,) = {s.name for s in selections(rule["expr"])}
            bounds = {float(sample["le"]) for sample in series[name]} - {float("inf")}
            assert expression.rhs.val < max(bounds), rule["alert"]
            compared += 1
    assert compared == 2


def test_an_unknown_metric_is_detected(series: Series) -> None:
    (wrong,) = selections('sum by (reason) (rate(tessera_updates_total{stat!="x"}[5m]))')
    assert wrong.name not in series
    assert wrong.matchers == (("stat", "x", False),)
    assert groupings("sum by (why) (tessera_rounds)") == {"why"}
    with pytest.raises(ValueError, match=r"\w"):
        selections("sum by (reason (tessera_rounds)")


def test_legends_name_labels_that_remain() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= groupings(target["expr"])


def test_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_alerts_have_runbook_sections_and_existing_labels() -> None:
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text("utf-8")
    headings = re.findall(r"^### (\w+)$", page, re.MULTILINE)
    assert headings == [rule["alert"] for rule in ALERTS]
    for rule in ALERTS:
        assert rule["annotations"]["runbook"] == f"docs/how-to/monitor.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("warning", "critical")
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert used <= groupings(rule["expr"])


def test_the_chart_has_the_same_alerts() -> None:
    chart = ROOT / "deploy" / "charts" / "tessera" / "alerts.yml"
    assert chart.read_bytes() == (FOLDER / "alerts.yml").read_bytes(), "copy deploy/monitoring/alerts.yml"


def test_a_replica_is_scraped_by_its_address(fresh_database: Callable[[str], str]) -> None:
    served = start(fresh_database("sqlite"), public_names="tessera.example.org")
    try:
        address = served.url.removeprefix("http://")
        token = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        for host in (address, address.partition(":")[0]):
            assert served.http().get("/metrics", headers=token | {"Host": host}).status_code == 200
        assert served.http().get("/metrics", headers=token | {"Host": "10.0.0.9:8000"}).status_code == 421
        assert served.http().get("/v1/hello", headers={"Host": address}).status_code == 421
    finally:
        served.stop()


def test_a_paused_federations_round_is_not_stuck(busy: Served) -> None:
    federation_id, _ = running(busy)
    before = busy.counted('tessera_rounds_stuck{state="open"}')
    assert before >= 1
    assert busy.admin.post(f"/v1/federations/{federation_id}/pause").status_code == 200
    assert busy.counted('tessera_rounds_stuck{state="open"}') == before - 1


def test_prometheus_scrapes_the_service_with_its_token() -> None:
    (scrape,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    assert scrape["job_name"] == "tessera"
    (discovery,) = scrape["dns_sd_configs"]
    assert discovery["names"][0] in COMPOSE["services"]
    token = Path(scrape["authorization"]["credentials_file"])
    assert token.parent == Path("/run/secrets")
    assert token.name in OVERLAY["services"]["prometheus"]["secrets"]
    assert "inside" in OVERLAY["services"]["prometheus"]["networks"]


def test_the_overlay_is_restricted_like_the_composition() -> None:
    check = Path(sys.executable).with_name("check-jsonschema")
    command = [check, "--builtin-schema", "vendor.compose-spec", ROOT / "docker-compose.monitoring.yml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    for service in OVERLAY["services"].values():
        assert int(service["user"].partition(":")[0]) > 0
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
        assert set(service["secrets"]) <= set(OVERLAY["secrets"])
        assert set(service["networks"]) <= set(OVERLAY["networks"]) | set(COMPOSE["networks"])
        for mount in service["volumes"]:
            source = mount.partition(":")[0]
            assert source in OVERLAY["volumes"] or (ROOT / source).exists()
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")


@pytest.mark.system
def test_alerts_fire_on_their_test_series(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    assert promtool, "Debian: apt-get install prometheus"
    for file in ("alerts.yml", "alerts_test.yml"):
        shutil.copy(FOLDER / file, tmp_path)
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = yaml.safe_load((FOLDER / "alerts_test.yml").read_text("utf-8"))["tests"]
    fired = {c["alertname"] for test in tested for c in test["alert_rule_test"] if c.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in ALERTS}
