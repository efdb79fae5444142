"""`make screenshots`: take the pictures of the dashboard page in docs/images, from a real federation.

Six agents on two tiny base models train to the middle of a round; one of them is held there, so that the page
has somebody to wait for. Chromium then opens the page as an auditor does. The browser's clock stands still.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from client_agent.model.loading import base_model_slug
from client_agent.simulation.admin_client import Answer, Operator
from client_agent.simulation.coordinator_process import TESSERA, quiet_environment, running_coordinator
from schemas.messages.recommended import FEDMOSAIC

EXAMPLES = Path(__file__).resolve().parent
IMAGES = EXAMPLES.parent / "docs" / "images"
PIVOT = EXAMPLES / "models" / "tiny-s"
SILOS = {
    "aster": "tiny-s",
    "birch": "tiny-s",
    "cedar": "tiny-l",
    "delta": "tiny-l",
    "elder": "tiny-s",
    "fjord": "tiny-s",
}
HELD = "fjord"
SHOWN_CLIENT = "aster"
ROUNDS = 8
SHOWN_ROUND = 5
"""The round that the pictures show before its end."""

_MOST_BYTES = 150_000
_GIVE_UP_SECONDS = 1200.0
_DESKTOP = (1280, 940)
_PHONE = (390, 844)


class ScreenshotsFailed(Exception):
    """Something did not work; the message names the file to read."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture: the page's fragment after the federation, the part of the page, the window, the theme.

    Without a `selector` the picture is the window's; with `whole` the whole page.
    """

    name: str
    fragment: str = ""
    selector: str | None = None
    window: tuple[int, int] = _DESKTOP
    dark: bool = False
    whole: bool = False


def pictures(client: str) -> tuple[Picture, ...]:
    """Return the pictures of docs/images; `client` is the id of the client that is shown alone."""
    return (
        Picture("page-overview"),
        Picture("page-overview-dark", dark=True),
        Picture("page-round", f"/rounds/{SHOWN_ROUND - 1}"),
        Picture("page-relevance", selector="#relevance-part"),
        Picture("page-client", f"/clients/{client}"),
        Picture("page-phone", window=_PHONE),
        Picture("page-phone-dark", window=_PHONE, dark=True),
    )


def main() -> int:
    """Run the federation and take the pictures; 1 if something did not work."""
    parser = argparse.ArgumentParser(prog="python -m examples.screenshots", description=__doc__)
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the pictures")
    parser.add_argument("--keep", type=Path, default=None, help="keep coordinator and silos in this folder")
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
                _federation(operator, folder) as federation,
            ):
                _photograph(operator, federation, chromium, arguments.out)
        except ScreenshotsFailed as error:
            print(f"no pictures: {error}", file=sys.stderr)
            return 1
    return 0


@contextmanager
def _federation(operator: Operator, folder: Path) -> Iterator[str]:
    """Run a federation up to the round in which one agent is held; yield its id meanwhile."""
    plan: Answer = {
        "name": "clinics of the north",
        "strategy": {"name": "fedmosaic"},
        "rounds": {"total": ROUNDS, "min_clients": len(SILOS), "collect_seconds": 3600},
        **FEDMOSAIC,
        "training": {"max_length": 64, "learning_rate": 0.01},
        "signature": {"probe_examples": 12},
        "alignment": {"pivot": base_model_slug(str(PIVOT))},
    }
    federation = str(operator.post("/v1/federations", plan)["id"])
    path = f"/v1/federations/{federation}"
    operator.put(f"{path}/anchors", json.loads((EXAMPLES / "anchors.json").read_bytes()))
    operator.post(f"{path}/start")
    agents: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for count, name in enumerate(("aster", "cedar"), start=1):  # one of each base model makes its pack
            agents[name] = _start_agent(operator, path, name, folder)
            _wait(agents, folder, partial(_has_packs, operator, path, count))
        for name in SILOS:
            if name not in agents:
                agents[name] = _start_agent(operator, path, name, folder)
        _wait(agents, folder, partial(_is_in_state, operator, path, HELD, "joined"))
        agents[HELD].send_signal(signal.SIGSTOP)
        for name in SILOS:
            if name != HELD:
                _wait(agents, folder, partial(_is_in_state, operator, path, name, "arrived"))
        if not _is_in_state(operator, path, HELD, "joined"):
            raise ScreenshotsFailed(f"{HELD} delivered before it was held; run it again")
        yield federation
    finally:
        for process in agents.values():
            process.kill()
            process.wait()


def _start_agent(operator: Operator, path: str, name: str, folder: Path) -> subprocess.Popen[bytes]:
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    data = EXAMPLES / "silos" / name
    lines = {
        "url": operator.url,
        "folder": "state",
        "model": str(EXAMPLES / "models" / SILOS[name]),
        "pivot_model": str(PIVOT),
        "train": str(data / "train.jsonl"),
        "test": str(data / "test.jsonl"),
    }
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
    (home / "silo.toml").write_text(f'{text}metrics = ["exact_match"]\nthreads = 1\n', "utf-8")
    token = operator.post(f"{path}/enrolment-tokens", {"client_name": name})["token"]
    environment = quiet_environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TESSERA_AGENT_TOKEN=str(token))
    with (home / "agent.log").open("ab") as log:
        return subprocess.Popen(
            [*TESSERA, "agent", "run", "--config", str(home / "silo.toml"), "--name", name],
            stdout=log,
            stderr=log,
            env=environment,
        )


def _has_packs(operator: Operator, path: str, count: int) -> bool:
    return len(operator.get(f"{path}/alignments")["items"]) >= count


def _is_in_state(operator: Operator, path: str, name: str, state: str) -> bool:
    """Whether a client is in this state of the round that the pictures show."""
    newest = operator.get(f"{path}/rounds?limit=1")["items"]
    if not newest or newest[0]["round"] < SHOWN_ROUND:
        return False
    clients = operator.get(f"{path}/rounds/{SHOWN_ROUND}")["clients"]
    return any(client["name"] == name and client["state"] == state for client in clients)


def _wait(agents: dict[str, subprocess.Popen[bytes]], folder: Path, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    while not condition():
        for name, process in agents.items():
            if process.poll() is not None:
                raise ScreenshotsFailed(f"the agent {name} stopped: see {folder / name / 'agent.log'}")
        if time.monotonic() > deadline:
            raise ScreenshotsFailed(f"nothing moved for {_GIVE_UP_SECONDS:.0f} s: see {folder}")
        time.sleep(0.1)


def _photograph(operator: Operator, federation: str, chromium: str, out: Path) -> None:
    token = str(operator.post("/v1/tokens", {"role": "auditor", "name": "pictures"})["token"])
    path = f"/v1/federations/{federation}"
    names = {str(client["name"]): str(client["client_id"]) for client in operator.every(f"{path}/clients")}
    opened = datetime.fromisoformat(operator.get(f"{path}/rounds/{SHOWN_ROUND}")["opened_at"])
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        for picture in pictures(names[SHOWN_CLIENT]):
            content = _take(browser, operator.url, federation, token, opened + timedelta(minutes=4), picture)
            file = out / f"{picture.name}.png"
            file.write_bytes(content)
            print(f"{file}: {len(content) / 1024:.0f} KiB", file=sys.stderr)
        browser.close()


def _take(browser: Browser, url: str, federation: str, token: str, now: datetime, picture: Picture) -> bytes:
    width, height = picture.window
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if picture.dark else "light",
        reduced_motion="reduce",
    )
    page: Page = context.new_page()
    page.clock.set_fixed_time(now)
    page.goto(f"{url}/#/{federation}{picture.fragment}")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Show").click()
    page.locator("#view[aria-busy=false]").wait_for()
    if picture.selector is not None:
        content = page.locator(picture.selector).screenshot()
    else:
        content = page.screenshot(full_page=picture.whole)
    context.close()
    return _small(content)


def _small(content: bytes) -> bytes:
    """Return a PNG with a palette: the page has few colours.

    Raises:
        ScreenshotsFailed: it is larger than a picture of the documentation may be.
    """
    buffer = io.BytesIO()
    image = Image.open(io.BytesIO(content)).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    image.save(buffer, "PNG", optimize=True)
    if buffer.tell() > _MOST_BYTES:
        raise ScreenshotsFailed(f"a picture has {buffer.tell()} bytes, more than {_MOST_BYTES}")
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main())
