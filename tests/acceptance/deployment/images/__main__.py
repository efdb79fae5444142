"""Build the three images without a registry, and run docker-compose.yml in them: a federation over TLS.

python -m tests.acceptance.deployment.images [--folder build/images] [--keep]

Needs root on Debian with buildah, crun, debootstrap, iproute2 and tini. Exit status 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.acceptance.deployment.composition import SERVICES
from tests.acceptance.deployment.images.builds import (
    CADDY_BASE,
    POSTGRES,
    PYTHON_BASE,
    Image,
    Storage,
    remove,
    torch_index,
)
from tests.acceptance.deployment.images.federation import Outcome, run_the_composition

TOOLS = {
    "buildah": "buildah",
    "crun": "crun",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "tini-static": "tini",
}
NEEDED_GIBIBYTES = 12
_WIDTH = 110
_IMAGES = ("storage", "run", "cache")
_WITHIN = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.deployment.images", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/images"), help="images, volumes and logs")
    parser.add_argument("--keep", action="store_true", help="keep the images, and the bases for the next run")
    parser.add_argument("--registry", action="store_true", help="begin from the Dockerfile's own bases")
    parser.add_argument("--containers", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    if arguments.containers:
        return _run_containers(folder)
    missing = _missing(folder)
    if missing:
        print(missing, file=sys.stderr)
        return 2
    storage = Storage(folder)
    try:
        remove(folder, keep=_IMAGES)
        images = _build(storage, registry=arguments.registry)
        (folder / "images.json").write_text(
            json.dumps({k: asdict(v) for k, v in images.items()}, default=str)
        )
        # Networks, mounts and processes of the containers end with this command, whatever happens in it.
        again = [
            sys.executable,
            "-m",
            "tests.acceptance.deployment.images",
            "--folder",
            str(folder),
            "--containers",
        ]
        status = subprocess.run([*_WITHIN, *again], check=False).returncode
        _print_images(storage, images)
        if (folder / "outcome.json").exists():
            _print_outcome(json.loads((folder / "outcome.json").read_text()))
        print(f"Logs: {storage.log} and {folder}/logs")
        return status
    except subprocess.CalledProcessError as failed:
        print(*storage.log.read_text(errors="replace").splitlines()[-20:], sep="\n", file=sys.stderr)
        print(f"{failed.cmd[0]} failed; {storage.log} has all that it printed", file=sys.stderr)
        return 1
    finally:
        images_kept = _IMAGES if arguments.keep else ()
        remove(folder, keep=("build.log", "logs", "outcome.json", *images_kept))


def _missing(folder: Path) -> str:
    """Return the missing programs and rights of this machine as text; empty if none."""
    if os.geteuid() != 0:
        return "make images-check needs root: it makes root file systems, mounts and networks."
    packages = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if packages:
        return f"Not installed: apt-get install --no-install-recommends {' '.join(packages)}"
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free >> 30
    return (
        ""
        if free >= NEEDED_GIBIBYTES
        else f"{folder} has {free} GiB free, and {NEEDED_GIBIBYTES} are needed."
    )


def _build(storage: Storage, *, registry: bool) -> dict[str, Image]:
    """Build all images; by the names of docker-compose.yml."""
    names = {service["image"]: service["image"] for service in SERVICES.values()}
    bases: dict[str, str] = {}
    if registry:
        storage.buildah("pull", SERVICES["postgres"]["image"])
    else:
        storage.make_bases()
        bases = {"PYTHON_IMAGE": PYTHON_BASE, "CADDY_IMAGE": CADDY_BASE}
        names[SERVICES["postgres"]["image"]] = POSTGRES
    storage.build_targets({**bases, "TORCH_INDEX": torch_index()})
    return {name: storage.image(image) for name, image in names.items()}


def _run_containers(folder: Path) -> int:
    read: dict[str, dict[str, Any]] = json.loads((folder / "images.json").read_text())
    images = {k: Image(v["name"], v["config"], Path(v["files"])) for k, v in read.items()}
    outcome = run_the_composition(folder, images)
    (folder / "outcome.json").write_text(json.dumps(asdict(outcome)))
    return 1 if outcome.failures else 0


def _print_images(storage: Storage, images: dict[str, Image]) -> None:
    table = Table("image", "user", "files, MiB", "built in, s", title="Images")
    for name, image in images.items():
        built = storage.seconds.get(f"building {image.name}")
        seconds = f"{built:.0f}" if built is not None else "kept"
        table.add_row(name, image.config.get("User") or "root", str(image.mebibytes), seconds)
    Console(width=_WIDTH).print(table)


def _print_outcome(read: dict[str, Any]) -> None:
    outcome = Outcome(**read)
    columns = ("container", "ready, s", "health, s", "memory, MiB", "threads", "stopped, s", "status")
    table = Table(*columns, title="Containers")
    for name, row in outcome.containers.items():
        table.add_row(
            name,
            f"{row['ready']:.1f}",
            f"{row['health']:.1f} of {row['health_limit']:.0f}" if row["health"] is not None else "",
            f"{row['memory']} of {row['memory_limit']}",
            f"{row['threads']} of {row['threads_limit']}",
            f"{row['stopped']:.1f} of {row['grace']:.0f}" if row["stopped"] is not None else "",
            str(row["status"]),
        )
    Console(width=_WIDTH).print(table)
    print(f"Rounds: {', '.join(f'{seconds:.0f} s' for seconds in outcome.rounds) or 'none'}")
    for text in outcome.checks:
        print(f"holds: {text}")
    for text in outcome.failures:
        print(f"FAILS: {text}")


if __name__ == "__main__":
    sys.exit(main())
