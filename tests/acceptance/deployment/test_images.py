"""The parts of `make images-check` that need no root: order, settings of pip, what a container may do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.acceptance.deployment.composition import SERVICES
from tests.acceptance.deployment.images import builds, federation, runtime
from tests.acceptance.deployment.images.builds import Image, Storage
from tests.acceptance.deployment.images.runtime import Container, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A folder without networks, and images without files whose configuration is short."""
    config = {
        "Env": ["PATH=/opt/tessera/bin:/bin"],
        "WorkingDir": "/",
        "Entrypoint": ["tessera"],
        "Cmd": ["serve"],
    }
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("tessera:x:10001:10001::/var/lib/tessera:/usr/sbin/nologin\n")
    images = {service["image"]: Image(service["image"], config, tmp_path) for service in SERVICES.values()}
    stand_in = SimpleNamespace(folder=tmp_path, images=images, scratch=tmp_path / "scratch", seccomp=None)
    stand_in.volume = lambda name: tmp_path / "volumes" / name
    stand_in.hosts = lambda _: ""
    return cast(Machine, stand_in)


def test_services_are_ordered_after_their_dependencies() -> None:
    order = federation.in_order()
    assert sorted(order) == sorted(SERVICES)
    for name, service in SERVICES.items():
        assert all(order.index(needed) < order.index(name) for needed in service.get("depends_on", {}))


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_has_the_services_restrictions(
    service: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Container, "_filled_volume", lambda _, name, place: machine.volume(name))
    monkeypatch.setattr(runtime.shutil, "which", lambda _: "/usr/bin/tini-static")
    container = Container(machine, service, service)
    container.bundle.mkdir(parents=True)
    config = container.config()
    process = config["process"]
    assert config["root"]["readonly"]
    assert process["noNewPrivileges"]
    assert set(map(tuple, process["capabilities"].values())) == {()}
    assert f"{process['user']['uid']}:{process['user']['gid']}" == SERVICES[service]["user"]
    assert process["args"][:2] == ["/sbin/docker-init", "--"]
    mounts: dict[str, dict[str, Any]] = {mount["destination"]: mount for mount in config["mounts"]}
    assert "noexec" in mounts["/tmp"]["options"]
    for secret in SERVICES[service].get("secrets", []):
        assert mounts[f"/run/secrets/{secret}"]["options"] == ["rbind", "ro"]
    readonly = [
        volume.split(":")[1] for volume in SERVICES[service].get("volumes", []) if volume.endswith(":ro")
    ]
    assert all("ro" in mounts[place]["options"] for place in readonly)


def test_the_compositions_variables_override_the_images(machine: Machine) -> None:
    environment = Container(machine, "coordinator", "coordinator-1").environment
    assert environment["PATH"] == "/opt/tessera/bin:/bin"
    assert environment["HOME"] == "/var/lib/tessera"
    assert environment["TESSERA_PUBLIC_NAMES"] == "localhost,caddy,coordinator"
    assert "TESSERA_OIDC_ISSUER" not in environment, "the shell sets none"


def test_sizes_and_durations_are_read_as_compose_does() -> None:
    assert runtime.size("512m") == 512 * 2**20
    assert runtime.size("2g") == 2**31
    assert runtime.seconds("1m") == 60
    assert runtime.seconds("20s") == 20


def test_pips_indexes_and_certificates_reach_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index/simple").mkdir(parents=True)
    settings = {
        "cert": "/etc/ssl/one.pem",
        "extra-index-url": f"file://{tmp_path}/index/simple https://example.org/simple",
    }
    monkeypatch.setattr(builds, "pip_settings", lambda: settings)
    storage = Storage(tmp_path)
    volumes = storage.pip_volumes[1::2]
    assert f"{tmp_path}/index:{tmp_path}/index:ro" in volumes
    assert any(volume.endswith(":/etc/pip-certificates.pem:ro") for volume in volumes)
    conf = (tmp_path / "pip.conf").read_text()
    assert "cert = /etc/pip-certificates.pem\n" in conf
    assert f"extra-index-url = {settings['extra-index-url']}\n" in conf
    assert (tmp_path / "pip.conf").stat().st_mode & 0o077 == 0, "an index's URL may have a password"


def test_pips_environment_overrides_its_files() -> None:
    listed = (
        ":env:.cert='/two.pem'\n"
        "global.cert='/one.pem'\n"
        "global.constraint='/c.txt'\n"
        "global.find-links='/wheels\\n/more'\n"
    )
    settings = builds.parsed_settings(listed)
    assert settings["cert"] == "/two.pem"
    assert settings["find-links"] == "/wheels /more"
    assert "constraint" not in settings, "the lock files choose every release"
