"""The containers of docker-compose.yml and Dockerfile: commands, environments, mounts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
_DEFAULT = re.compile(r"\$\{[A-Z_]+:-([^}]*)\}")  # ${NAME:-default}, where nobody sets NAME
BUILT_SERVICES = [name for name, service in SERVICES.items() if "build" in service]


@dataclass
class Stage:
    """One stage of the Dockerfile: its base and all instructions, those of the base first."""

    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def last(self, name: str) -> str | None:
        """Return the last instruction, which applies."""
        return next((arguments for word, arguments in reversed(self.instructions) if word == name), None)

    def argv(self, name: str) -> list[str]:
        """Read an instruction in its exec form; the shell form is not JSON, and fails."""
        instruction = self.last(name)
        return [] if instruction is None else json.loads(instruction)

    @property
    def health_argv(self) -> list[str]:
        """The command behind HEALTHCHECK and its options."""
        instruction = self.last("HEALTHCHECK") or ""
        argv: list[str] = json.loads(instruction.partition("CMD ")[2])
        return argv

    @property
    def environment(self) -> dict[str, str]:
        """The variables that ENV sets."""
        pairs = [arguments for word, arguments in self.instructions if word == "ENV"]
        return {k: v for line in pairs for k, v in (pair.split("=", 1) for pair in line.split())}


def dockerfile() -> dict[str, Stage]:
    """Read the Dockerfile's stages by name."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    current: Stage | None = None
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, argument_line = line.partition(" ")
        if word == "FROM":
            base, _, name = argument_line.partition(" AS ")
            base = arguments.get(base.strip("${}"), base)
            current = Stage(base, list(stages[base].instructions) if base in stages else [])
            stages[name] = current
        elif current is None:
            key, _, value = argument_line.partition("=")
            arguments[key] = value
        else:
            current.instructions.append((word, argument_line.strip()))
    return stages


def stage_of(service: str) -> Stage:
    """The Dockerfile's stage of a service's image."""
    return dockerfile()[SERVICES[service]["build"]["target"]]


def argv_of(service: str) -> list[str]:
    """The command of a service's container; an entrypoint of the service replaces the image's command."""
    described, stage = SERVICES[service], stage_of(service)
    if "entrypoint" in described:
        return [*described["entrypoint"], *described.get("command", [])]
    return [*stage.argv("ENTRYPOINT"), *described.get("command", stage.argv("CMD"))]


def environment_of(service: str) -> dict[str, str]:
    """The environment of a service's container if no outer variable is set."""
    named = SERVICES[service].get("environment", {})
    set_here = {k: _DEFAULT.sub(r"\1", str(v)) for k, v in named.items() if v is not None}
    return stage_of(service).environment | set_here


def mounts_of(service: str) -> dict[str, str]:
    """Mounts by container path: a volume's name, or a path beside docker-compose.yml."""
    volumes = [volume.split(":") for volume in SERVICES[service].get("volumes", [])]
    secrets = SERVICES[service].get("secrets", [])
    return {v[1]: v[0] for v in volumes} | {
        f"/run/secrets/{name}": COMPOSE["secrets"][name]["file"] for name in secrets
    }
