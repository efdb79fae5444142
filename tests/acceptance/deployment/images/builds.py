"""Builds the Dockerfile's images with buildah, on a base from debootstrap: no registry is needed."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from tests.acceptance.deployment.composition import ROOT, SERVICES, dockerfile

PYTHON_BASE, CADDY_BASE = "localhost/python:3.11", "localhost/caddy:debian"
POSTGRES = "localhost/postgres:debian"
TARGETS = ("coordinator", "agent", "caddy")
# Debian 12 has the Python of the Dockerfile.
SUITE, PACKAGES = "bookworm", "python3,python3-venv,python-is-python3,ca-certificates"
_CADDY = f"""\
FROM {PYTHON_BASE}
RUN apt-get update -q && apt-get install -qy --no-install-recommends caddy wget
"""
# As in PostgreSQL's own image: the user has the number 999, the binaries are on the path, a script begins.
_POSTGRES = f"""\
FROM {PYTHON_BASE}
RUN groupadd --gid 999 postgres && useradd --uid 999 --gid 999 --home-dir /var/lib/postgresql postgres \\
    && mkdir -p /etc/postgresql-common /docker-entrypoint-initdb.d \\
    && echo create_main_cluster = false >/etc/postgresql-common/createcluster.conf \\
    && apt-get update -q \\
    && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends postgresql \\
    && ln -s /usr/lib/postgresql/*/bin /opt/postgresql \\
    && rm -rf /var/run/postgresql && install -d -o 999 -g 999 -m 3777 /var/run/postgresql \\
    && install -d -o 999 -g 999 -m 1777 /var/lib/postgresql/data
COPY postgres_begins.sh /usr/local/bin/docker-entrypoint.sh
ENV PATH=/opt/postgresql:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
ENV PGDATA=/var/lib/postgresql/data
VOLUME /var/lib/postgresql/data
ENTRYPOINT ["sh", "/usr/local/bin/docker-entrypoint.sh"]
"""
_PIP_KEYS = {"index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert", "proxy"}
_PIP_CERTIFICATES = "/etc/pip-certificates.pem"


@dataclass
class Image:
    """An image in the storage: its name, its configuration in Docker's format, and its files."""

    name: str
    config: dict[str, Any]
    files: Path

    @cached_property
    def mebibytes(self) -> int:
        """The size of its files."""
        out = subprocess.run(["du", "-sm", self.files], capture_output=True, text=True, check=True).stdout
        return int(out.split()[0])

    @property
    def environment(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for pair in self.config.get("Env") or [])

    @property
    def health_argv(self) -> list[str]:
        """The command of its HEALTHCHECK, empty without one."""
        test = (self.config.get("Healthcheck") or {}).get("Test") or []
        return test[1:] if test[:1] == ["CMD"] else []

    @property
    def health_timeout(self) -> float:
        """Seconds after which Docker counts the command as failed."""
        return float((self.config.get("Healthcheck") or {}).get("Timeout", 30e9)) / 1e9

    def home(self, uid: int) -> str:
        """The home of a user in its /etc/passwd."""
        for line in (self.files / "etc/passwd").read_text().splitlines():
            fields = line.split(":")
            if int(fields[2]) == uid:
                return fields[5]
        return "/"


class Storage:
    """buildah's storage in a folder of its own, with a log of all that the builds print."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "cache").mkdir(parents=True, exist_ok=True)
        self.log = folder / "build.log"
        self.seconds: dict[str, float] = {}

    def buildah(self, *words: str | Path) -> str:
        """Run buildah and return what it prints.

        Raises:
            subprocess.CalledProcessError: it failed; the log has its errors.
        """
        with self.log.open("a") as log:
            command = self._command(*words, log=log)
            return subprocess.run(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True, check=True
            ).stdout

    def build(self, name: str, *words: str | Path, context: Path = ROOT) -> None:
        """Build an image from the Dockerfile of a folder."""
        # Layers are kept: the targets share stages, and buildah deletes a stage file by file.
        words = ("--format", "docker", "--layers", *words, "--tag", name, context)
        with self.step(f"building {name}"), self.log.open("a") as log:
            # pip's cache, which the Dockerfile mounts, lies in the folder for temporary files.
            environment = os.environ | {"BUILDAH_ISOLATION": "chroot", "TMPDIR": str(self.folder / "cache")}
            command = self._command("bud", *words, log=log)
            subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=True)

    def step(self, text: str) -> Step:
        """Time a step under its text."""
        return Step(text, self.seconds)

    def _command(self, *words: str | Path, log: IO[str]) -> list[str | Path]:
        storage = ["--root", self.folder / "storage", "--runroot", self.folder / "run"]
        command = ["buildah", *storage, "--storage-driver", "overlay", *words]
        print("$", *command, file=log, flush=True)
        return command

    def has(self, name: str) -> bool:
        """Whether the storage has an image of this name."""
        images = json.loads(self.buildah("images", "--json") or "null") or []
        return any(f"{name.removesuffix(':latest')}" in (image.get("names") or []) for image in images)

    def image(self, name: str) -> Image:
        """Read an image's configuration and mount its files."""
        config = json.loads(self.buildah("inspect", "--type", "image", name))["Docker"]["config"]
        container = self.buildah("from", "--pull-never", name).strip()
        return Image(name, config, Path(self.buildah("mount", container).strip()))

    def make_bases(self) -> None:
        """Build stand-ins for external images from Debian's packages."""
        if self.has(PYTHON_BASE):
            return
        base = self.folder / "base"
        with self.step("debootstrap"), self.log.open("a") as log:
            shutil.rmtree(base, ignore_errors=True)
            command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, base]
            subprocess.run(command, stdout=log, stderr=log, check=True)
        with self.step("committing the base"):
            container = self.buildah("from", "scratch").strip()
            self.buildah("add", "--quiet", container, base, "/")
            self.buildah("commit", "--quiet", "--rm", "--format", "docker", container, PYTHON_BASE)
            shutil.rmtree(base)
        context = self.folder / "context"
        context.mkdir(exist_ok=True)
        shutil.copy(Path(__file__).with_name("postgres_begins.sh"), context)
        for name, text in ((CADDY_BASE, _CADDY), (POSTGRES, _POSTGRES)):
            (context / "Dockerfile").write_text(text)
            self.build(name, context=context)

    def build_targets(self, arguments: Mapping[str, str]) -> None:
        """Build the three images under the names that docker-compose.yml has for them."""
        names = {
            service["build"]["target"]: service["image"]
            for service in SERVICES.values()
            if "build" in service
        }
        options = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
        for target in TARGETS:
            volumes = self.pip_volumes if target != "caddy" else []
            self.build(names[target], *volumes, *options, "--target", target)

    @cached_property
    def pip_volumes(self) -> list[str]:
        """Mount a pip.conf with this machine's indexes, and the folders and certificates that it names."""
        lines, volumes = ["[global]"], []
        for key, value in pip_settings().items():
            words = value.split()
            for word in words:
                path = word.removeprefix("file://")
                if key == "cert":
                    volumes.append(f"{os.path.realpath(path)}:{_PIP_CERTIFICATES}:ro")
                    words = [_PIP_CERTIFICATES]
                elif path.startswith("/") and Path(path).exists():
                    # The pages of an index in a folder lead to files beside that folder.
                    folder = Path(path).parent if "index" in key else Path(path)
                    volumes.append(f"{folder}:{folder}:ro")
            lines.append(f"{key} = {' '.join(words)}")
        conf = self.folder / "pip.conf"
        conf.write_text("\n".join(lines) + "\n")
        conf.chmod(0o600)
        return [word for volume in [*volumes, f"{conf}:/etc/pip.conf:ro"] for word in ("--volume", volume)]


class Step:
    """Prints what is done, and the seconds that it took."""

    def __init__(self, text: str, seconds: dict[str, float]) -> None:
        self._text = text
        self._seconds = seconds

    def __enter__(self) -> None:
        print(f"{self._text} ... ", end="", flush=True)
        self._began = time.monotonic()

    def __exit__(self, kind: object, *_: object) -> None:
        self._seconds[self._text] = time.monotonic() - self._began
        print("failed" if kind else f"{self._seconds[self._text]:.0f} s", flush=True)


def pip_settings() -> dict[str, str]:
    """Read where pip takes packages from on this machine."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    return parsed_settings(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def parsed_settings(listed: str) -> dict[str, str]:
    """Parse the output of `pip config list`, of which the environment comes before files."""
    settings: dict[str, str] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        if key in _PIP_KEYS:
            settings[key] = " ".join(str(ast.literal_eval(value)).split())
    return settings


def torch_index() -> str:
    """Choose the index of the CPU build of torch: a folder of pip's configuration, else the Dockerfile's."""
    for word in pip_settings().get("find-links", "").split():
        folder = Path(word.removeprefix("file://"))
        if any(folder.glob("torch-*+cpu-*.whl")):
            return folder.as_uri()
    (argument,) = (
        arguments
        for word, arguments in dockerfile()["agent-installed"].instructions
        if word == "ARG" and arguments.startswith("TORCH_INDEX=")
    )
    return argument.partition("=")[2]


def remove(folder: Path, keep: Sequence[str] = ()) -> None:
    """Delete a storage and what lies beside it; mounts first, so that no image is deleted through one."""
    if (folder / "storage").exists():
        Storage(folder).buildah(*(("rm", "--all") if "storage" in keep else ("umount", "--all")))
    for path in folder.iterdir() if folder.exists() else ():
        if path.name not in keep:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
