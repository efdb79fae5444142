"""Lock files of requirements/, parsed as by pip."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@dataclass(frozen=True)
class Pin:
    """One requirement of a lock file, and the hashes that its files may have."""

    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        (specifier,) = self.requirement.specifier
        assert specifier.operator == "=="
        return specifier.version

    def holds_in(self, environment: dict[str, str]) -> bool:
        marker = self.requirement.marker
        return marker is None or marker.evaluate(environment)


def pins(file: Path) -> list[Pin]:
    """Read a lock file; a line that is neither a pin nor its hashes fails."""
    text = re.sub(r"^#.*\n", "", file.read_text("utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    read = []
    for line in text.splitlines():
        requirement, *hashes = line.split(" --hash=")
        read.append(Pin(Requirement(requirement), tuple(entry.strip() for entry in hashes)))
    return read
