"""The Helm charts: their rendering, and the existence of the names and paths in them."""

from __future__ import annotations

import json
import tomllib
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from client_agent.settings import AgentSettings
from coordinator.health import router
from coordinator.settings import EXTERNAL, Settings
from coordinator.storage.object_store import SCHEMES
from tests.acceptance.deployment.composition import dockerfile
from tests.acceptance.deployment.queries import ALERTS
from tests.acceptance.deployment.rendered_charts import CHARTS, RELEASES, documents, golden, render
from tests.acceptance.docs.command_line import mistakes

KUBERNETES = ("1.27", "1.31", "1.34")
FOREIGN = {"ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator, which Kubernetes has no schemas of."""

OF_THE_COMMANDS = {"TESSERA_AGENT_NAME", "TESSERA_AGENT_TOKEN", "TESSERA_AGENT_LOG_LEVEL"}
OF_LIBRARIES = {"OPENBLAS_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE", "SSL_CERT_FILE", "AWS_ENDPOINT_URL"}
SECRETS = {name for name, field in Settings.model_fields.items() if "Secret" in str(field.annotation)}
OF_THE_CHART = SECRETS | {"database_url", "public_names", "trusted_proxies", "host", "port"}
"""Settings that are files of the secret, or have values of their own, or belong to the image."""


def pods(release: str) -> list[dict[str, Any]]:
    """The pod templates of a release."""
    return [
        document["spec"]["template"]["spec"]
        for document in documents(release)
        if "template" in document.get("spec", {})
    ]


def ways_out(release: str) -> list[dict[str, Any]]:
    """The rules of a release's network policy for its own connections."""
    (policy,) = [d for d in documents(release) if d["kind"] == "NetworkPolicy"]
    rules: list[dict[str, Any]] = policy["spec"]["egress"]
    return rules


def containers() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """All containers with their chart and their pod."""
    return [
        (RELEASES[release]["chart"], pod, container)
        for release in RELEASES
        for pod in pods(release)
        for container in pod["containers"]
    ]


@pytest.mark.parametrize("release", RELEASES)
def test_charts_render_as_the_golden_files(release: str) -> None:
    pytest.importorskip("helm_python", reason="`make charts` installs Helm's library")
    assert render(release) == golden(release).read_text("utf-8"), "look at it, and run `make charts`"


@pytest.mark.parametrize("release", RELEASES)
def test_helm_finds_no_fault(release: str) -> None:
    helm = pytest.importorskip("helm_python", reason="`make charts` installs Helm's library")
    facts = RELEASES[release]
    report = helm.lint(str(CHARTS / facts["chart"]), facts["values"], strict=True)
    assert not report["errors"]
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"keep_round": 3}},
        {"replica": 3},
        {"database": {"url": "postgresql://tessera:secret@db/tessera"}},
        {"secretName": ""},
        {"settings": {"payload_store": "file:///tmp/payloads"}},  # each pod would have its own
    ],
)
def test_helm_refuses_invalid_values(change: dict[str, Any]) -> None:
    helm = pytest.importorskip("helm_python", reason="`make charts` installs Helm's library")
    with helm.Chart.load(str(CHARTS / "tessera")) as chart, pytest.raises(helm.HelmError):
        chart.validate_schema(RELEASES["coordinator"]["values"] | change)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("release", RELEASES)
def test_manifests_follow_the_schemas_of_kubernetes(release: str, version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="`make charts` installs the schemas")
    checked = [document for document in documents(release) if document["kind"] not in FOREIGN]
    assert checked
    for document in checked:
        validator.validate(document, version, strict=True)  # raises at the first fault


def test_environment_variables_are_known() -> None:
    coordinators = {f"TESSERA_{name.upper()}" for name in {*Settings.model_fields, *EXTERNAL}}
    agents = {f"TESSERA_AGENT_{name.upper()}" for name in AgentSettings.model_fields}
    for chart, _, container in containers():
        allowed = coordinators if chart == "tessera" else agents | OF_THE_COMMANDS
        assert {variable["name"] for variable in container["env"]} <= allowed | OF_LIBRARIES | {"POD_IP"}


def test_a_chart_takes_every_setting_of_the_coordinator() -> None:
    schema = json.loads((CHARTS / "tessera" / "values.schema.json").read_text("utf-8"))
    assert set(schema["properties"]["settings"]["properties"]) == set(Settings.model_fields) - OF_THE_CHART
    for release, facts in RELEASES.items():
        if facts["chart"] == "tessera":
            (pod, *_) = pods(release)
            values = {v["name"]: v["value"] for v in pod["containers"][0]["env"] if "value" in v}
            settings = {
                name: values[f"TESSERA_{name.upper()}"]
                for name in Settings.model_fields
                if f"TESSERA_{name.upper()}" in values
            }
            address = settings["public_names"].replace("$(POD_IP)", "10.0.0.7")
            read = Settings(**settings | {"public_names": address})
            assert read.goes_by("10.0.0.7:8000")  # as Prometheus calls it
            assert read.upload_bytes_per_second == facts["values"].get("settings", {}).get(
                "upload_bytes_per_second", 1_000_000
            )


def test_commands_of_containers_exist() -> None:
    stages = {"tessera": dockerfile()["coordinator"], "tessera-agent": dockerfile()["agent"]}
    for chart, _, container in containers():
        argv = [*stages[chart].argv("ENTRYPOINT"), *container["args"]]
        assert not list(mistakes(" ".join(argv)))
        probe = container.get("readinessProbe", {})
        if "exec" in probe:
            assert not list(mistakes(" ".join(probe["exec"]["command"])))


def test_paths_of_probes_and_scrapes_exist() -> None:
    paths = {route.path for route in router.routes}
    for _, _, container in containers():
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if "httpGet" in container.get(probe, {}):
                assert container[probe]["httpGet"]["path"] in paths
    (monitor,) = [d for d in documents("coordinator-monitored") if d["kind"] == "ServiceMonitor"]
    assert monitor["spec"]["endpoints"][0]["path"] in paths


def test_alerts_are_those_of_the_release() -> None:
    (rules,) = [d for d in documents("coordinator-monitored") if d["kind"] == "PrometheusRule"]
    (group,) = rules["spec"]["groups"]
    assert len(group["rules"]) == len(ALERTS)
    for rule, original in zip(group["rules"], ALERTS, strict=True):
        assert rule["expr"] == original["expr"].replace('job="tessera"', 'job="coordinator-monitored"')
        assert rule["annotations"] == original["annotations"]


def test_a_payload_store_has_secret_and_network_rule() -> None:
    values = RELEASES["coordinator-with-store"]["values"]
    pod, _ = pods("coordinator-with-store")
    (container,) = pod["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": values["payloadStoreSecretName"]}}]
    variables = {v["name"]: v["value"] for v in container["env"] if "value" in v}
    assert variables["TESSERA_PAYLOAD_STORE"].partition("://")[0] in SCHEMES
    peers = values["networkPolicy"]["payloadStoreTo"]
    port = urlsplit(variables["AWS_ENDPOINT_URL"]).port
    assert {"ports": [{"protocol": "TCP", "port": port}], "to": peers} in ways_out("coordinator-with-store")


def test_network_rules_without_a_store_allow_the_database() -> None:
    ports = [port["port"] for rule in ways_out("coordinator") for port in rule["ports"]]
    assert ports == [53, 53, 5432]


def test_pods_are_unprivileged_with_mounted_folders() -> None:
    for _, pod, container in containers():
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["automountServiceAccountToken"] is False
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert not context["allowPrivilegeEscalation"]
        mounts = {mount["name"]: PurePosixPath(mount["mountPath"]) for mount in container["volumeMounts"]}
        assert set(mounts) <= {volume["name"] for volume in pod["volumes"]} | {"state"}
        assert PurePosixPath("/tmp") in mounts.values()
        values = {v["name"]: v["value"] for v in container["env"] if "value" in v}
        for name in ("TESSERA_SECRETS_DIR", "TESSERA_AGENT_FOLDER", "HF_HOME", "SSL_CERT_FILE"):
            place = PurePosixPath(values.get(name, "/tmp"))
            assert any(place.is_relative_to(mount) for mount in mounts.values()), place


def test_an_agents_folders_are_those_of_the_image() -> None:
    image = dockerfile()["agent"].environment
    (pod,) = pods("agent")
    values = {v["name"]: v["value"] for v in pod["containers"][0]["env"] if "value" in v}
    for name in ("TESSERA_AGENT_FOLDER", "HF_HOME"):
        assert values[name] == image[name]


@pytest.mark.parametrize("release", [name for name in RELEASES if RELEASES[name]["chart"] == "tessera-agent"])
def test_the_silo_file_of_a_release_is_valid(release: str) -> None:
    (file,) = [d["data"]["silo.toml"] for d in documents(release) if d["kind"] == "ConfigMap"]
    assert AgentSettings(**tomllib.loads(file)).model.startswith("/models/")
    values = yaml.safe_load((CHARTS / "tessera-agent" / "values.yaml").read_text("utf-8"))
    assert "folder" not in tomllib.loads(values["silo"])
