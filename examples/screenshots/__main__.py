"""`make screenshots`: run the federations, take the pictures of docs/images.

Two agents of the main federation are held in the middle of a round, so that the page shows late clients.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from client_agent.transport.admin_client import Operator
from examples.screenshots.federations import (
    SHOWN_ROUND,
    WATCHED,
    WATCHED_ROUND,
    Agents,
    ScreenshotsFailed,
    bank,
    clinics,
    helpdesk,
    ward,
    ward_further,
    ward_in_round,
    ward_to_the_end,
)
from examples.screenshots.pictures import (
    Camera,
    Picture,
    create_dialog,
    finish_dialog,
    show_curves,
    token_dialog,
)
from examples.screenshots.terminal import COLUMNS, Recording, moments, svg_of
from studies.coordinator_process import TESSERA, quiet_environment, running_coordinator

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
SHOWN_CLIENT = "aster"
_PHONE = (390, 844)
_RUN = (1280, 390)
_RUN_ROUND = (1280, 560)
_AUDIT = (1280, 520)
_BESIDE = (1280, 840)
_REPORT = (1000, 1200)


def main() -> int:
    """Run the federations and take the pictures; 1 if something did not work."""
    parser = argparse.ArgumentParser(prog="python -m examples.screenshots", description=__doc__)
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the pictures")
    parser.add_argument("--keep", type=Path, default=None, help="keep coordinator and silos in this folder")
    parser.add_argument("--scene", action="append", choices=SCENES, help="these federations only")
    parser.add_argument(
        "--comparison", type=Path, default=None, help="also take a picture of this report.html of a study"
    )
    arguments = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("there is no chromium; on Debian: apt-get install chromium")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.keep or Path(temporary)).resolve()
        try:
            with (
                running_coordinator(folder) as running,
                Operator(running.url, running.token) as operator,
                Camera(chromium, operator, arguments.out) as camera,
            ):
                if arguments.comparison is not None:
                    camera.take_file("comparison", arguments.comparison, (1180, 1100))
                for scene in arguments.scene or SCENES:
                    SCENES[scene](operator, folder, camera)
        except ScreenshotsFailed as error:
            print(f"no pictures: {error}", file=sys.stderr)
            return 1
    return 0


def _clinics(operator: Operator, folder: Path, camera: Camera) -> None:
    with Agents(operator, folder / "clinics") as agents:
        federation = clinics(agents)
        path = f"/v1/federations/{federation}"
        clients = {client["name"]: client["client_id"] for client in operator.every(f"{path}/clients")}
        opened = datetime.fromisoformat(operator.get(f"{path}/rounds/{SHOWN_ROUND}")["opened_at"])
        now = opened + timedelta(minutes=4)
        for picture in (
            Picture("page-progress", selector="#clients-part"),
            Picture("page-round", f"/rounds/{SHOWN_ROUND - 1}", window=(1280, 1080)),
            Picture("page-client", f"/clients/{clients[SHOWN_CLIENT]}"),
            Picture("page-phone-dark", window=_PHONE, dark=True),
            Picture("page-create", selector="#dialog", role="operator", act=create_dialog),
            Picture("page-token", selector="#dialog", role="operator", act=token_dialog),
        ):
            camera.take(picture, federation, now)
        report = folder / "report.html"
        subprocess.run(
            [*TESSERA, "report", "create", federation, "--html", str(report)],
            env=quiet_environment(TESSERA_URL=operator.url, TESSERA_TOKEN=camera.token("auditor")),
            check=True,
        )
        camera.take_file("report", report, _REPORT)


def _helpdesks(operator: Operator, folder: Path, camera: Camera) -> None:
    """Take the picture of two federations of the same silos, one with relevance and one with averages."""
    federations = {}
    for name, strategy in (("helpdesks", "fedmosaic"), ("helpdesks averaged", "fedavg")):
        with Agents(operator, folder / strategy) as agents:
            federations[strategy] = helpdesk(agents, name, strategy)
    picture = Picture("page-beside", f"/beside/{federations['fedavg']}", window=_BESIDE)
    camera.take(picture, federations["fedmosaic"], None)


def _bank(operator: Operator, folder: Path, camera: Camera) -> None:
    with Agents(operator, folder / "bank") as agents:
        camera.take(Picture("page-experts", selector="#experts-part"), bank(agents), None)


def _run(operator: Operator, folder: Path, camera: Camera) -> None:
    """Take pictures of a run at its start, inside a round and at its end, on the page and in the terminal."""
    with Agents(operator, folder / "run") as agents:
        federation = ward(agents)
        camera.take(Picture("run-start", window=_RUN), federation, None)
        ward_in_round(agents)
        opened = datetime.fromisoformat(operator.get(f"{agents.path}/rounds/{WATCHED_ROUND}")["opened_at"])
        now = opened + timedelta(minutes=4)
        camera.take(Picture("run-round", f"/rounds/{WATCHED_ROUND}", window=_RUN_ROUND), federation, None)
        camera.take(Picture("page-overview", role="operator"), federation, now)
        camera.take(
            Picture("page-finish", selector="#dialog", role="operator", act=finish_dialog), federation, now
        )
        camera.take(Picture("page-audit", "audit", window=_AUDIT), "", now)
        camera.take_text("terminal-round", _terminal(operator, camera, "round", "show", federation))
        camera.store_svg("terminal-watch", _watched(operator, camera, agents, federation))
        ward_to_the_end(agents)
        camera.take(Picture("run-end"), federation, None)
        camera.take(Picture("page-curves", selector="#curves-part", act=show_curves), federation, None)
        camera.take_text("terminal-rounds", _terminal(operator, camera, "round", "list", federation))


def _watched(operator: Operator, camera: Camera, agents: Agents, federation: str) -> str:
    """Follow the round to its end in a terminal; return a picture of three moments of it."""
    command = ["round", "show", federation, str(WATCHED_ROUND), "--watch"]
    with Recording([*TESSERA, *command], _environment(operator, camera)) as recording:
        agents.wait(lambda: bool(recording.drawings()))
        ward_further(agents)
        drawn = len(recording.drawings())
        agents.wait(lambda: len(recording.drawings()) > drawn + 1)
        for name in reversed(WATCHED):
            agents.release(name)
            agents.wait(partial(_has_arrived, agents, name))
        agents.wait(recording.has_ended)
    shown = moments(
        recording.drawings(),
        (
            lambda text: text.count(", loss ") == len(WATCHED) and " s left" in text,
            lambda text: text.count(", loss ") == len(WATCHED) - 1,
            lambda text: "published" in text,
        ),
    )
    return svg_of(f"tessera {' '.join(command)}", shown)


def _has_arrived(agents: Agents, name: str) -> bool:
    part = agents.part(name, WATCHED_ROUND)
    return part is not None and part["state"] == "arrived"


def _environment(operator: Operator, camera: Camera) -> dict[str, str]:
    return quiet_environment(
        TESSERA_URL=operator.url, TESSERA_TOKEN=camera.token("auditor"), COLUMNS=str(COLUMNS)
    )


def _terminal(operator: Operator, camera: Camera, *command: str) -> str:
    """Return a command and its output in a terminal of 110 columns."""
    environment = _environment(operator, camera)
    done = subprocess.run([*TESSERA, *command], env=environment, check=True, capture_output=True, text=True)
    return f"$ tessera {' '.join(command)}\n{done.stdout}"


SCENES = {"run": _run, "clinics": _clinics, "helpdesks": _helpdesks, "bank": _bank}


if __name__ == "__main__":
    sys.exit(main())
