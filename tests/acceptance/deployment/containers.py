"""Commands of containers, run without containers, with local paths and addresses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.acceptance.deployment.composition import ROOT, argv_of, environment_of, mounts_of, stage_of


@dataclass
class Host:
    """Local paths of volumes and secrets, and local addresses of services.

    `addresses` maps what the composition calls a place to where it is; `extra` is added to every environment.
    """

    folder: Path
    addresses: dict[str, str] = field(default_factory=dict)
    extra: dict[str, str] = field(default_factory=dict)

    def volume(self, name: str) -> Path:
        """Return the folder of a named volume or secret; create it at the first call."""
        path = self.folder / "volumes" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def secrets(self) -> Path:
        """The local folder in place of ./secrets."""
        return self.folder / "secrets"

    def start(self, service: str, argv: Sequence[str] | None = None) -> subprocess.Popen[str]:
        """Start a service's command, or another one in its container."""
        home = self.home(service)
        home.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / "tmp" / service
        temporary.mkdir(parents=True, exist_ok=True)
        command = [self._localised(service, word) for word in argv or argv_of(service)]
        named = {k: self._localised(service, v) for k, v in environment_of(service).items()}
        environment = self.extra | named | {"HOME": str(home), "TMPDIR": str(temporary)}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
        with (self.folder / f"{service}.log").open("a") as log:
            return subprocess.Popen(command, cwd=home, env=environment, stdout=log, stderr=log, text=True)

    def run(self, service: str, argv: Sequence[str] | None = None, seconds: float = 60) -> int:
        """Run a command to its end; return its exit status."""
        return self.start(service, argv).wait(timeout=seconds)

    def home(self, service: str) -> Path:
        """The container's working directory: a volume, or a folder that it must not write to."""
        folder = self._localised(service, stage_of(service).last("WORKDIR") or "")
        return Path(folder) if folder.startswith(str(self.folder)) else self.folder / "home" / service

    def log(self, service: str) -> str:
        """Return the log of a service so far."""
        return (self.folder / f"{service}.log").read_text()

    def _localised(self, service: str, text: str) -> str:
        """Replace paths and addresses of the container by those of this machine."""
        places = {path: str(self._source(source)) for path, source in mounts_of(service).items()}
        if any(path.startswith("/run/secrets/") for path in places):
            places["/run/secrets"] = str(self._given_secrets(service))
            places = {k: v for k, v in places.items() if not k.startswith("/run/secrets/")}
        places |= self.addresses
        names = "|".join(map(re.escape, sorted(places, key=len, reverse=True)))
        # A name ends where a word does: /examples is not the beginning of /examples-of-mine.
        return re.sub(rf"(?<![\w.])(?:{names})(?![\w-])", lambda match: places[match[0]], text)

    def _source(self, source: str) -> Path:
        return ROOT / source if source.startswith("./") else self.volume(source)

    def _given_secrets(self, service: str) -> Path:
        """Create /run/secrets of a container: the secrets that the service lists, and no other.

        A file whose secret is still the same is let be: a service that is starting may be reading it.
        """
        folder = self.folder / "given" / service
        folder.mkdir(parents=True, exist_ok=True)
        for path in mounts_of(service):
            if path.startswith("/run/secrets/"):
                secret, copy = self.secrets / Path(path).name, folder / Path(path).name
                if not copy.exists() or copy.read_bytes() != secret.read_bytes():
                    copy.write_bytes(secret.read_bytes())
        return folder
