"""The lock files of requirements/: exact, hashed, without an index, and within pyproject.toml."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.acceptance.deployment.composition import ROOT
from tests.acceptance.deployment.lock_files import pins

FOLDER = ROOT / "requirements"
FILES = sorted(file for file in FOLDER.glob("*.txt") if file.name != "all.txt")  # it is made of others
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
EXTRAS_OF = {
    "dev.txt": set(EXTRAS) - {"fuzz", "charts"},
    "coordinator.txt": {"coordinator", "postgres", "otel", "object-store"},
    "agent.txt": {"agent"},
    "fuzz.txt": {"fuzz"},
    "charts.txt": {"charts"},
}
PLATFORMS = [
    {"sys_platform": platform, "platform_system": system, "platform_machine": machine, "os_name": os_name}
    for platform, system, machine, os_name in (
        ("linux", "Linux", "x86_64", "posix"),
        ("linux", "Linux", "aarch64", "posix"),
        ("darwin", "Darwin", "arm64", "posix"),
    )
]
ENVIRONMENTS = [
    {**platform, "python_version": python, "python_full_version": f"{python}.4", "extra": ""}
    for platform in PLATFORMS
    for python in ("3.11", "3.12", "3.13")
]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_requirements_are_exact_and_hashed(file: Path) -> None:
    read = pins(file)
    assert read
    for pin in read:
        assert pin.version
        assert pin.hashes, pin.name
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", entry) for entry in pin.hashes), pin.name


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_lock_files_name_no_index(file: Path) -> None:
    text = file.read_text("utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*(-i|-f|--\w*index\S*|--find-links|--trusted-host)\b", text, re.MULTILINE)


@pytest.mark.parametrize("name", EXTRAS_OF)
@pytest.mark.parametrize(
    "environment", ENVIRONMENTS, ids=lambda e: f"{e['sys_platform']}-{e['python_version']}"
)
def test_dependencies_are_locked_in_range(name: str, environment: dict[str, str]) -> None:
    requirements = [
        *PROJECT["project"]["dependencies"],
        *(line for e in EXTRAS_OF[name] for line in EXTRAS[e]),
    ]
    locked = {pin.name: pin.version for pin in pins(FOLDER / name) if pin.holds_in(environment)}
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            version = locked[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement}, not {version}: `make lock`"


def test_the_build_system_is_locked_in_range() -> None:
    (requirement,) = map(Requirement, PROJECT["build-system"]["requires"])
    for name in ("build.txt", "dev.txt"):
        (locked,) = [pin for pin in pins(FOLDER / name) if pin.name == requirement.name]
        assert requirement.specifier.contains(locked.version)


@pytest.mark.parametrize(
    "environment", ENVIRONMENTS, ids=lambda e: f"{e['sys_platform']}-{e['python_version']}"
)
def test_lock_files_agree_on_versions(environment: dict[str, str]) -> None:
    versions: dict[str, set[str]] = {}
    for file in FILES:
        if file.name == "s3.txt":  # in an environment of its own
            continue
        for pin in pins(file):
            if pin.holds_in(environment):
                versions.setdefault(pin.name, set()).add(pin.version.removesuffix("+cpu"))
    assert not {name: several for name, several in versions.items() if len(several) > 1}


def test_all_txt_combines_dev_and_cuda() -> None:
    text = (FOLDER / "all.txt").read_text("utf-8")
    assert re.findall(r"^[^#].*", text, re.MULTILINE) == ["-r dev.txt", "-r cuda.txt"]


def test_cuda_libraries_are_in_cuda_txt_only() -> None:
    cuda = {pin.name for pin in pins(FOLDER / "cuda.txt")}
    assert {"triton", "nvidia-cudnn-cu13"} <= cuda
    for file in FILES:
        if file.name != "cuda.txt":
            assert not cuda & {pin.name for pin in pins(file)}


def test_torch_hashes_allow_the_cpu_build() -> None:
    sys.path.insert(0, str(FOLDER))
    try:
        from lock import CPU_BUILD, CPU_BUILD_HASHES
    finally:
        sys.path.remove(str(FOLDER))
    (torch,) = pins(FOLDER / "torch.txt")
    for name in ("dev.txt", "agent.txt"):
        assert torch in pins(FOLDER / name)
    assert torch.version == CPU_BUILD
    (cpu,) = pins(FOLDER / "torch-cpu.txt")
    assert cpu.version == f"{CPU_BUILD}+cpu"
    assert {f"sha256:{digest}" for digest in CPU_BUILD_HASHES} == set(cpu.hashes) < set(torch.hashes)
