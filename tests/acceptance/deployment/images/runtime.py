"""Containers as Docker makes them from docker-compose.yml: namespaces, mounts, users, capabilities, networks.

crun starts them. The calling process has mount, network and PID namespaces of its own; what is made here ends
with it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.acceptance.deployment.composition import COMPOSE, ROOT, SERVICES
from tests.acceptance.deployment.images.builds import Image

_VARIABLE = re.compile(r"\$\{[A-Z_]+:-([^}]*)\}")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SECCOMP = Path("/usr/share/containers/seccomp.json")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_MASKED = [
    "acpi",
    "asound",
    "interrupts",
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "timer_list",
]
_DEV = {
    "/dev": ("tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
    "/dev/pts": ("devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
    "/dev/mqueue": ("mqueue", ["nosuid", "noexec", "nodev"]),
    "/proc": ("proc", ["nosuid", "noexec", "nodev"]),
    "/sys": ("sysfs", ["nosuid", "noexec", "nodev", "ro"]),
}


def size(text: str) -> int:
    """Read a size of the composition in bytes, such as 512m."""
    number, unit = re.fullmatch(r"(\d+)([kmg]?)b?", text.lower()).groups()  # type: ignore[union-attr]
    return int(number) * _UNITS[unit]


def seconds(text: str) -> float:
    """Read a duration of the composition, such as 1m or 20s."""
    number, unit = re.fullmatch(r"(\d+)([sm])", text).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]


def seccomp() -> dict[str, Any] | None:
    """Translate the profile of containers-common for no capability; None where it is not installed."""
    if not _SECCOMP.exists():
        return None
    profile = json.loads(_SECCOMP.read_text())
    rules, machine = [], _ARCHITECTURES[platform.machine()]
    for rule in profile["syscalls"]:
        includes = rule.get("includes") or {}
        is_included = machine in includes.get("arches", [machine])
        if not is_included or includes.get("caps"):
            continue
        entry = {"names": rule["names"], "action": rule["action"]}
        if rule.get("errnoRet") is not None:
            entry["errnoRet"] = rule["errnoRet"]
        if rule.get("args"):
            entry["args"] = rule["args"]
        rules.append(entry)
    names = [arch for arch in profile["archMap"] if arch["architecture"].endswith(platform.machine().upper())]
    architectures = [
        name for arch in names for name in (arch["architecture"], *(arch["subArchitectures"] or ()))
    ]
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile.get("defaultErrnoRet", 1),
        "architectures": architectures,
        "syscalls": rules,
    }


@dataclass
class Peak:
    """The most memory and threads that a container's processes had, sampled each half second."""

    bytes: int = 0
    threads: int = 0


@dataclass
class Machine:
    """Networks, volumes, secrets, and the containers on them."""

    folder: Path
    images: Mapping[str, Image]
    """Images by the composition's names."""
    containers: dict[str, Container] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.scratch = self.folder / "scratch"
        self.scratch.mkdir(exist_ok=True)
        # The upper layers of containers; memory, so that it may lie on an overlay itself.
        _run("mount", "-t", "tmpfs", "scratch", self.scratch)
        # No control groups, of which crun refuses some mixtures; limits are compared with what was used.
        _run("mount", "-t", "tmpfs", "none", "/sys/fs/cgroup")
        Path("/run/netns").mkdir(exist_ok=True)
        _run("mount", "-t", "tmpfs", "none", "/run/netns")
        self.seccomp = seccomp()
        self._make_networks()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def replicas(self, service: str) -> list[str]:
        """The names of a service's containers."""
        number = int(SERVICES[service].get("deploy", {}).get("replicas", 1))
        return [service] if number == 1 else [f"{service}-{i}" for i in range(1, number + 1)]

    def start(self, service: str) -> list[Container]:
        """Start a service's containers; those that ended are made anew."""
        containers = [Container(self, service, name) for name in self.replicas(service)]
        for container in containers:
            if container.name in self.containers:
                container.peak = self.containers[container.name].peak
            container.start()
            self.containers[container.name] = container
        return containers

    def volume(self, name: str) -> Path:
        """A named volume's folder."""
        path = self.folder / "volumes" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def addresses_of(self, name: str, service: str) -> dict[str, str]:
        """The address of a container in each of its networks."""
        return {n: self._addresses[name, n] for n in SERVICES[service].get("networks", [])}

    def hosts(self, service: str) -> str:
        """/etc/hosts of a container: whoever shares a network with it."""
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        shared = set(SERVICES[service].get("networks", []))
        for (name, network), address in self._addresses.items():
            if network in shared:
                peer = next(s for s in SERVICES if name in self.replicas(s))
                lines.append(f"{address} {peer} {name}" if peer != name else f"{address} {peer}")
        return "\n".join(lines) + "\n"

    def stop(self) -> None:
        """End all containers that still run."""
        for container in self.containers.values():
            if container.running:
                container.stop(within=10)

    def _make_networks(self) -> None:
        self._addresses: dict[tuple[str, str], str] = {}
        _run("ip", "link", "set", "lo", "up")
        for i, network in enumerate(COMPOSE["networks"]):
            _run("ip", "link", "add", f"br-{network}", "type", "bridge")
            _run("ip", "address", "add", f"10.77.{i}.1/24", "dev", f"br-{network}")
            _run("ip", "link", "set", f"br-{network}", "up")
            members = [s for s in SERVICES if network in SERVICES[s].get("networks", [])]
            names = [name for service in members for name in self.replicas(service)]
            self._addresses |= {(name, network): f"10.77.{i}.{j}" for j, name in enumerate(names, 2)}

    def _sample(self) -> None:
        while True:
            spaces = {c.space: c for c in list(self.containers.values()) if c.space and c.running}
            totals: dict[str, Peak] = {}
            for path in Path("/proc").iterdir():
                if not path.name.isdigit():
                    continue
                try:
                    container = spaces.get(os.readlink(path / "ns/pid"))
                    status = (path / "status").read_text() if container else ""
                except OSError:
                    continue
                if container is not None and "VmRSS" in status:
                    total = totals.setdefault(container.name, Peak())
                    total.bytes += 1024 * int(status.partition("VmRSS:")[2].split()[0])
                    total.threads += int(status.partition("Threads:")[2].split()[0])
            for name, total in totals.items():
                peak = self.containers[name].peak
                peak.bytes, peak.threads = max(peak.bytes, total.bytes), max(peak.threads, total.threads)
            time.sleep(0.5)


class Container:
    """One container of a service."""

    def __init__(self, machine: Machine, service: str, name: str) -> None:
        self.machine, self.service, self.name = machine, service, name
        self.description = SERVICES[service]
        self.image = machine.images[self.description["image"]]
        self.peak = Peak()
        self.space = ""
        self.log = machine.folder / "logs" / f"{name}.log"
        self.bundle = machine.scratch / name
        self.uid, self.gid = map(int, self.description["user"].split(":"))

    @property
    def argv(self) -> list[str]:
        """The command: an entrypoint of the composition sets the image's command aside."""
        if "entrypoint" in self.description:
            return [*self.description["entrypoint"], *self.description.get("command", [])]
        command = self.description.get("command", self.image.config.get("Cmd") or [])
        return [*(self.image.config.get("Entrypoint") or []), *command]

    @property
    def environment(self) -> dict[str, str]:
        """The image's variables and the composition's, with the defaults of a shell that sets none."""
        named = self.description.get("environment", {})
        variables = {k: _VARIABLE.sub(r"\1", str(v)) for k, v in named.items() if v is not None}
        docker = {"PATH": _PATH, "HOME": self.image.home(self.uid), "HOSTNAME": self.name}
        return docker | self.image.environment | variables

    @property
    def health_argv(self) -> list[str]:
        """The command that Docker runs to learn whether it is healthy; empty without one."""
        check = self.description.get("healthcheck", {})
        if check.get("disable"):
            return []
        return check["test"][1:] if "test" in check else self.image.health_argv

    @property
    def health_timeout(self) -> float:
        check = self.description.get("healthcheck", {})
        return seconds(check["timeout"]) if "timeout" in check else self.image.health_timeout

    @property
    def memory_limit(self) -> int:
        return size(self.description["deploy"]["resources"]["limits"]["memory"])

    @property
    def threads_limit(self) -> int:
        return int(self.description["deploy"]["resources"]["limits"]["pids"])

    @property
    def grace(self) -> float:
        """Seconds between SIGTERM and SIGKILL."""
        return seconds(self.description.get("stop_grace_period", "10s"))

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process that is the container's first, in the namespace of this one."""
        return int((self.bundle / "pid").read_text())

    def start(self) -> None:
        """Prepare its files and networks, and start its command.

        Raises:
            subprocess.CalledProcessError: its networks or its root cannot be made.
        """
        if self.bundle.exists():  # it is started again
            _run("umount", self.bundle / "root")
            shutil.rmtree(self.bundle)
            _run("ip", "netns", "delete", self.name)
        for part in ("root", "upper", "work"):
            (self.bundle / part).mkdir(parents=True)
        upper = f"upperdir={self.bundle / 'upper'},workdir={self.bundle / 'work'}"
        layers = f"lowerdir={self.image.files},{upper}"
        _run("mount", "-t", "overlay", "-o", layers, "overlay", self.bundle / "root")
        self._join_networks()
        (self.bundle / "config.json").write_text(json.dumps(self.config()))
        self.log.parent.mkdir(exist_ok=True)
        command = [*self._crun, "run", "--bundle", self.bundle, "--pid-file", self.bundle / "pid", self.name]
        self.began = time.monotonic()
        with self.log.open("a") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while not (self.bundle / "pid").exists() and self.running:
            time.sleep(0.01)
        if self.running:
            self.space = os.readlink(f"/proc/{self.pid}/ns/pid")

    def execute(self, argv: Sequence[str], timeout: float = 60) -> tuple[int, float, str]:
        """Run another command in it, as Docker does with a health check: exit status, seconds, output."""
        process = self.bundle / "process.json"
        process.write_text(json.dumps(self._process_of(list(argv))))
        began = time.monotonic()
        command = [*self._crun, "exec", f"--process={process}", self.name]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout
        )
        return done.returncode, time.monotonic() - began, done.stdout + done.stderr

    def wait(self, within: float) -> int:
        """Wait for the end of its command and return the exit status."""
        return self._process.wait(timeout=within)

    def stop(self, within: float) -> tuple[int, float]:
        """Stop it as `docker stop` does, with SIGKILL after `within` seconds; exit status and seconds."""
        began = time.monotonic()
        subprocess.run([*self._crun, "kill", self.name, "TERM"], check=False)
        try:
            status = self._process.wait(timeout=within)
        except subprocess.TimeoutExpired:
            subprocess.run([*self._crun, "kill", self.name, "KILL"], check=False)
            status = self._process.wait()
        return status, time.monotonic() - began

    def printed(self) -> str:
        """Return the container's output."""
        return self.log.read_text(errors="replace")

    @property
    def _crun(self) -> list[str | Path]:
        return ["crun", "--root", self.machine.folder / "crun", "--cgroup-manager=disabled"]

    def _process_of(self, argv: list[str]) -> dict[str, Any]:
        capabilities: list[str] = [] if self.description.get("cap_drop") == ["ALL"] else ["CAP_CHOWN"]
        kinds = ("bounding", "effective", "inheritable", "permitted", "ambient")
        return {
            "terminal": False,
            "user": {"uid": self.uid, "gid": self.gid},
            "args": argv,
            "env": [f"{k}={v}" for k, v in self.environment.items()],
            "cwd": self.image.config.get("WorkingDir") or "/",
            "capabilities": dict.fromkeys(kinds, capabilities),
            "noNewPrivileges": "no-new-privileges:true" in self.description.get("security_opt", []),
        }

    def config(self) -> dict[str, Any]:
        init = ["/sbin/docker-init", "--"] if self.description.get("init") else []
        spaces = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
        linux = {
            "namespaces": [*spaces, {"type": "network", "path": f"/run/netns/{self.name}"}],
            "maskedPaths": [*(f"/proc/{name}" for name in _MASKED), "/sys/firmware"],
            "readonlyPaths": [f"/proc/{name}" for name in ("bus", "fs", "irq", "sys", "sysrq-trigger")],
        }
        if self.machine.seccomp is not None:
            linux["seccomp"] = self.machine.seccomp
        return {
            "ociVersion": "1.0.0",
            "process": self._process_of([*init, *self.argv]),
            "root": {"path": "root", "readonly": bool(self.description.get("read_only"))},
            "hostname": self.name,
            "mounts": self._mounts(),
            "linux": linux,
        }

    def _mounts(self) -> list[dict[str, Any]]:
        mounts = [
            {"destination": place, "type": kind, "source": kind, "options": options}
            for place, (kind, options) in sorted(_DEV.items())
        ]
        shm = [
            "nosuid",
            "noexec",
            "nodev",
            "mode=1777",
            f"size={size(self.description.get('shm_size', '64m'))}",
        ]
        mounts.append({"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": shm})
        for text in self.description.get("tmpfs", []):
            place, _, options = _VARIABLE.sub(r"\1", text).partition(":")
            words = ["nosuid", "nodev", "noexec", "mode=1777", *filter(None, options.split(","))]
            mounts.append({"destination": place, "type": "tmpfs", "source": "tmpfs", "options": words})
        for source, place, readonly in self._binds():
            words = ["rbind", "ro" if readonly else "rw"]
            mounts.append({"destination": place, "type": "bind", "source": str(source), "options": words})
        # Deeper places last, whatever the composition's order is.
        deeper = sorted(mounts[len(_DEV) :], key=lambda mount: str(mount["destination"]).count("/"))
        return mounts[: len(_DEV)] + deeper

    def _binds(self) -> list[tuple[Path, str, bool]]:
        hosts = self.bundle / "hosts"
        hosts.write_text(
            self.machine.hosts(self.service) if self.description.get("network_mode") != "none" else ""
        )
        binds = [(hosts, "/etc/hosts", True)]
        if self.description.get("init"):
            init = shutil.which("tini-static")
            assert init is not None
            binds.append((Path(init), "/sbin/docker-init", True))
        for secret in self.description.get("secrets", []):
            path = self.machine.folder / COMPOSE["secrets"][secret]["file"]
            binds.append((path, f"/run/secrets/{secret}", True))
        volumes = [volume.split(":") for volume in self.description.get("volumes", [])]
        for source, place, *mode in volumes:
            path = ROOT / source if source.startswith("./") else self._filled_volume(source, place)
            binds.append((path, place, mode == ["ro"]))
        named = {volume[1] for volume in volumes}
        for place in set(self.image.config.get("Volumes") or {}) - named:
            binds.append((self._filled_volume(f"{self.name}-anonymous", place), place, False))
        return binds

    def _filled_volume(self, name: str, place: str) -> Path:
        """A volume; an empty one gets what the image has there, with owner and mode, as Docker does."""
        volume, inside = self.machine.volume(name), self.image.files / place.lstrip("/")
        if inside.is_dir() and not any(volume.iterdir()):
            _run("cp", "-a", f"{inside}/.", volume)
        return volume

    def _join_networks(self) -> None:
        _run("ip", "netns", "add", self.name)
        _run("ip", "-n", self.name, "link", "set", "lo", "up")
        for i, (network, address) in enumerate(self.machine.addresses_of(self.name, self.service).items()):
            outer = f"v{address.removeprefix('10.77.')}"  # 15 characters at most
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name", f"eth{i}", "netns", self.name)
            _run("ip", "link", "set", outer, "master", f"br-{network}", "up")
            _run("ip", "-n", self.name, "address", "add", f"{address}/24", "dev", f"eth{i}")
            _run("ip", "-n", self.name, "link", "set", f"eth{i}", "up")


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True)
