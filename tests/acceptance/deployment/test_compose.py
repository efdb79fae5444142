"""The content of docker-compose.yml."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from client_agent.model.loading import base_model_slug
from coordinator.settings import PREFIX, Settings
from schemas.messages.alignment import PACK_BYTES
from schemas.messages.federations import FederationPlan, LimitsPlan
from schemas.messages.recommendations import FEDMOSAIC, recommended
from tests.acceptance.deployment.composition import (
    BUILT_SERVICES,
    COMPOSE,
    ROOT,
    SERVICES,
    environment_of,
    mounts_of,
    stage_of,
)

ONE_SHOTS = {"migrate", "trust", "setup"}


def test_the_file_follows_the_compose_specification() -> None:
    check = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run(
        [check, "--builtin-schema", "vendor.compose-spec", ROOT / "docker-compose.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_unprivileged_with_a_read_only_root(name: str) -> None:
    service = SERVICES[name]
    user, group = map(int, service["user"].split(":"))
    assert user > 0
    assert group > 0
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "/tmp" in {path.partition(":")[0] for path in service["tmpfs"]}


@pytest.mark.parametrize("name", BUILT_SERVICES)
def test_a_service_runs_as_its_images_user(name: str) -> None:
    assert SERVICES[name]["user"] == stage_of(name).last("USER")


@pytest.mark.parametrize("name", SERVICES)
def test_services_have_limits_for_resources_and_logs(name: str) -> None:
    assert set(SERVICES[name]["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert {"max-size", "max-file"} <= set(SERVICES[name]["logging"]["options"])


@pytest.mark.parametrize("name", SERVICES)
def test_restart_and_health_check_follow_the_service_kind(name: str) -> None:
    service = SERVICES[name]
    if name in ONE_SHOTS:
        assert service["restart"] == "no"
        assert service["healthcheck"] == {"disable": True}
    elif "agents" in service.get("profiles", []):
        assert service["restart"] == "on-failure"  # a finished federation is no failure
        assert stage_of(name).health_argv
    else:
        assert service["restart"] == "unless-stopped"
        assert "healthcheck" in service or stage_of(name).health_argv


def test_services_start_after_their_dependencies() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if needed in ONE_SHOTS else "service_healthy"
            assert how == {"condition": expected}, f"{name} needs {needed}"
    assert set(SERVICES["coordinator"]["depends_on"]) == {"postgres", "migrate"}
    assert set(SERVICES["aster"]["depends_on"]) == {"setup"}


def test_the_proxy_alone_is_reachable_from_outside() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["caddy"]
    outside = {name for name, service in SERVICES.items() if "outside" in service.get("networks", [])}
    assert outside == {"caddy", "aster", "cedar"}
    assert all(SERVICES[name]["networks"] == ["outside"] for name in ("aster", "cedar"))
    inner = {name for name, network in COMPOSE["networks"].items() if (network or {}).get("internal")}
    assert inner == {"database", "inside"}
    assert {n for n, s in SERVICES.items() if "database" in s.get("networks", [])} == {
        "postgres",
        "migrate",
        "coordinator",
    }


def test_the_coordinator_is_replicable() -> None:
    """Each needs a name and a port of its own, and nothing on a disk."""
    assert SERVICES["coordinator"]["deploy"]["replicas"] == 2
    assert not {"container_name", "ports"} & set(SERVICES["coordinator"])
    assert "volumes" not in SERVICES["coordinator"]


def test_secrets_are_files_of_the_services_concerned() -> None:
    secrets_of = {name: set(service.get("secrets", [])) for name, service in SERVICES.items()}
    admin, database = "tessera_admin_token", "tessera_database_password"
    assert {name for name, secrets in secrets_of.items() if admin in secrets} == {"coordinator", "setup"}
    assert {name for name, secrets in secrets_of.items() if database in secrets} == {
        "postgres",
        "migrate",
        "coordinator",
    }
    superuser = "tessera_superuser_password"
    assert {name for name, secrets in secrets_of.items() if superuser in secrets} == {"postgres"}
    for name, service in SERVICES.items():
        for variable in service.get("environment", {}):
            secret = re.search(r"(PASSWORD|TOKEN)$", variable)
            assert secret is None, f"{name} has {variable} in its environment, which everybody can inspect"


def test_the_coordinator_is_no_database_superuser() -> None:
    postgres = SERVICES["postgres"]
    assert "POSTGRES_USER" not in postgres["environment"], "the superuser is the image's own"
    assert postgres["environment"]["POSTGRES_PASSWORD_FILE"].endswith("/tessera_superuser_password")
    assert "./deploy/postgres:/docker-entrypoint-initdb.d:ro" in postgres["volumes"]
    assert environment_of("coordinator")["TESSERA_DATABASE_URL"].startswith("postgresql://tessera@")


def test_an_agent_has_its_own_enrolment_token_only() -> None:
    for name in ("aster", "cedar"):
        mounts = mounts_of(name)
        assert mounts["/run/enrolment"] == f"enrolment-{name}"
        assert [volume for volume in mounts.values() if volume.startswith("enrolment")] == [
            f"enrolment-{name}"
        ]


def test_services_use_https_urls() -> None:
    for name in BUILT_SERVICES:
        for variable in ("TESSERA_URL", "TESSERA_AGENT_URL"):
            assert environment_of(name).get(variable, "https://").startswith("https://"), name


def test_the_authoritys_keys_are_mounted_without_network() -> None:
    services = {name for name in BUILT_SERVICES if "certificates" in mounts_of(name).values()}
    assert services == {"caddy", "trust"}
    assert SERVICES["trust"]["network_mode"] == "none"
    assert "secrets" not in SERVICES["trust"]


def test_empty_variables_have_their_defaults() -> None:
    """Compose hands on what .env leaves empty: the coordinator passes over it, and Caddy would not."""
    assert Settings.model_config["env_ignore_empty"]
    caddyfile = (ROOT / "deploy" / "Caddyfile").read_text("utf-8")
    for name, value in SERVICES["caddy"]["environment"].items():
        match = re.fullmatch(rf"\$\{{{name}:-(\w+)\}}", value)
        assert match is not None, name
        assert f"{{${name}:{match[1]}}}" in caddyfile


def test_the_coordinators_threads_equal_its_processors() -> None:
    coordinator = SERVICES["coordinator"]
    threads = coordinator["environment"]["OPENBLAS_NUM_THREADS"]
    assert threads == coordinator["deploy"]["resources"]["limits"]["cpus"]


def test_mounted_sources_exist() -> None:
    for name in BUILT_SERVICES:
        for source in mounts_of(name).values():
            if source.startswith("./") and not source.startswith("./secrets/"):
                assert (ROOT / source).is_dir(), source
            elif not source.startswith("./"):
                assert source in COMPOSE["volumes"]


def test_the_coordinators_variables_are_its_settings() -> None:
    variables = {f"{PREFIX}{option}".upper() for option in Settings.model_fields} | {"TESSERA_SECRETS_DIR"}
    for name in ("migrate", "coordinator"):
        named = {v for v in SERVICES[name]["environment"] if v.startswith(PREFIX)}
        assert named <= variables
    # Of the rest, these are the image's or the file's own business, and one is for SQLite alone.
    named |= {f"{PREFIX}{name}" for name in ("HOST", "PORT", "STORAGE_RESERVE_MIB")}
    named |= {f"{PREFIX}{name}" for name in ("ADMIN_TOKEN", "DATABASE_PASSWORD", "SIGNING_KEY")}  # files
    assert named == variables


def test_the_proxy_accepts_the_largest_body() -> None:
    caddyfile = (ROOT / "deploy" / "Caddyfile").read_text("utf-8")
    match = re.search(r"max_size \{\$TESSERA_MAX_BODY:(\d+)MiB\}", caddyfile)
    assert match is not None
    recommended_plans = (
        recommended(strategy, aligned=aligned).get("limits", {})
        for strategy in ("fedmosaic", "fedavg")
        for aligned in (False, True)
    )
    largest = max(LimitsPlan.model_validate(limits).max_update_bytes for limits in recommended_plans)
    assert int(match[1]) * 2**20 >= max(PACK_BYTES, largest)


def test_the_spool_holds_two_of_the_largest_updates() -> None:
    coordinator = SERVICES["coordinator"]
    (spool,) = (re.fullmatch(r"/tmp:size=\$\{TESSERA_SPOOL:-(\d+)m\}", path) for path in coordinator["tmpfs"])
    assert spool is not None
    limits = LimitsPlan.model_validate(recommended("fedmosaic", aligned=False)["limits"])
    assert int(spool[1]) * 2**20 >= 2 * limits.max_update_bytes


@pytest.mark.skipif(shutil.which("caddy") is None, reason="Caddy is not installed")
def test_the_proxys_configuration_is_valid() -> None:
    done = subprocess.run(
        ["caddy", "validate", "--adapter", "caddyfile", "--config", ROOT / "deploy" / "Caddyfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_example_plan_fits_the_example_models() -> None:
    plan = FederationPlan.model_validate_json((ROOT / "deploy" / "try_out.json").read_bytes())
    assert plan.alignment is not None
    pivot = environment_of("aster")["TESSERA_AGENT_PIVOT_MODEL"].removeprefix("/")
    assert plan.alignment.pivot == base_model_slug(str(ROOT / pivot))
    for name in ("aster", "cedar"):
        for variable in ("MODEL", "PIVOT_MODEL", "TRAIN", "TEST"):
            path = environment_of(name)[f"TESSERA_AGENT_{variable}"]
            assert (ROOT / path.removeprefix("/")).exists()


def test_secrets_are_made_once_with_mode_0700(tmp_path: Path) -> None:
    script = tmp_path / "deploy" / "make_secrets.sh"
    script.parent.mkdir()
    script.write_bytes((ROOT / "deploy" / "make_secrets.sh").read_bytes())
    subprocess.run(["sh", str(script)], check=True, capture_output=True)
    folder = tmp_path / "secrets"
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(files) == {*COMPOSE["secrets"], "grafana_password"}
    assert all(len(re.fullmatch(r"[\w-]+", secret)[0]) == 43 for secret in files.values())  # type: ignore[index]
    assert len(set(files.values())) == len(files)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o444}
    subprocess.run(["sh", str(script)], check=True, capture_output=True)
    assert {path.name: path.read_text() for path in folder.iterdir()} == files


def test_secrets_are_ignored_by_git_and_docker() -> None:
    ignored = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert {os.path.dirname(secret["file"]) for secret in COMPOSE["secrets"].values()} == {"./secrets"}
    assert "secrets/" in ignored
    allowed = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert not any(line.startswith("!secrets") for line in allowed)


def test_the_example_plan_repeats_no_defaults() -> None:
    """A default that it repeats would hide the default's change; what is recommended it takes over."""
    expected = json.loads((ROOT / "deploy" / "try_out.json").read_text("utf-8"))
    assert expected["adapter"] == FEDMOSAIC["adapter"]
    defaults = FederationPlan(name="x", strategy={"name": "fedmosaic"}).model_dump(mode="json")
    assert expected["strategy"] == {"name": "fedmosaic"}
    for part in ("rounds", "training", "signature"):
        repeated = {key for key, value in expected[part].items() if defaults[part][key] == value}
        assert repeated <= {"min_clients"}  # two agents, whatever the default is
