"""Chromium as the camera: one window for each picture, with the page's clock standing still."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Self

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from client_agent.transport.admin_client import Operator
from examples.screenshots.federations import ScreenshotsFailed

_MOST_BYTES = 150_000
_DESKTOP = (1280, 940)
_MARGIN = 18
_TERMINAL = (
    "body { margin: 0 } pre { margin: 0; padding: 18px; display: inline-block; color: #e6e9ee; "
    "background: #14181e; font: 14px/1.45 'Liberation Mono', monospace }"
)
_PATIENCE_MS = 180_000  # agents train beside the browser


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture: the page's fragment after the federation, the part of the page, the window, the theme.

    Without a `selector` the picture is the window's. `act` is done to the page before.
    """

    name: str
    fragment: str = ""
    selector: str | None = None
    window: tuple[int, int] = _DESKTOP
    dark: bool = False
    role: str = "auditor"
    act: Callable[[Page], None] | None = None


class Camera:
    """Takes pictures of a coordinator's page, and of files."""

    def __init__(self, chromium: str, operator: Operator, out: Path) -> None:
        self._operator = operator
        self._out = out
        self._tokens: dict[str, str] = {}
        self._playwright = sync_playwright().start()
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        self._browser = self._playwright.chromium.launch(executable_path=chromium, args=arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._browser.close()
        self._playwright.stop()

    def token(self, role: str) -> str:
        """Return a token of a role, made at its first use."""
        if role not in self._tokens:
            answer = self._operator.post("/v1/tokens", {"role": role, "name": f"pictures {role}"})
            self._tokens[role] = str(answer["token"])
        return self._tokens[role]

    def take(self, picture: Picture, federation: str, now: datetime | None) -> None:
        """Take a picture of the page; `now` is the time on its clock, None the real one."""
        page = self._page(picture.window, dark=picture.dark)
        if now is not None:
            page.clock.set_fixed_time(now)
        page.goto(f"{self._operator.url}/#/{federation}{picture.fragment}")
        page.get_by_label("Token").fill(self.token(picture.role))
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.locator("#view[aria-busy=false]").wait_for()
        if picture.act is not None:
            picture.act(page)
        self._store(picture.name, _shot(page, picture.selector))
        page.context.close()

    def take_file(self, name: str, file: Path, window: tuple[int, int]) -> None:
        """Take a picture of the beginning of a page that is a file."""
        page = self._page(window)
        page.goto(file.resolve().as_uri())
        self._store(name, page.screenshot())
        page.context.close()

    def take_text(self, name: str, text: str) -> None:
        """Take a picture of a terminal's output."""
        page = self._page((1280, 400), dark=True)
        page.set_content(f"<style>{_TERMINAL}</style><pre>{escape(text)}</pre>")
        self._store(name, page.locator("pre").screenshot())
        page.context.close()

    def store_svg(self, name: str, content: str) -> None:
        """Store a picture that is a drawing already."""
        file = self._out / f"{name}.svg"
        file.write_text(content, "utf-8")
        print(f"{file}: {len(content) / 1024:.0f} KiB", file=sys.stderr, flush=True)

    def _page(self, window: tuple[int, int], *, dark: bool = False) -> Page:
        context = self._browser.new_context(
            viewport={"width": window[0], "height": window[1]},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        context.set_default_timeout(_PATIENCE_MS)
        return context.new_page()

    def _store(self, name: str, content: bytes) -> None:
        file = self._out / f"{name}.png"
        small = _small(content)
        file.write_bytes(small)
        print(f"{file}: {len(small) / 1024:.0f} KiB", file=sys.stderr, flush=True)


def _shot(page: Page, selector: str | None) -> bytes:
    """Return a picture of the window, or of a part of the page with a margin."""
    if selector is None:
        return page.screenshot()
    page.evaluate("window.scrollTo(0, 0)")  # boxes are relative to the window, clips to the page
    box = page.locator(selector).bounding_box()
    assert box is not None
    x, y = max(box["x"] - _MARGIN, 0), max(box["y"] - _MARGIN, 0)
    width, height = box["x"] + box["width"] + _MARGIN - x, box["y"] + box["height"] + _MARGIN - y
    return page.screenshot(full_page=True, clip={"x": x, "y": y, "width": width, "height": height})


def create_dialog(page: Page) -> None:
    """Open the dialog of a new federation, and fill it in."""
    page.get_by_role("button", name="New federation").click()
    page.locator("#field-name").fill("clinics of the south")


def finish_dialog(page: Page) -> None:
    """Open the dialog that finishes the federation, without confirming it."""
    page.get_by_role("button", name="Finish", exact=True).click()
    page.locator("#field-typed").wait_for()


def show_curves(page: Page) -> None:
    """Show a curve per client, and the table below it."""
    page.get_by_role("button", name="Show a curve per client").click()
    page.locator("#curves-all summary").click()


def token_dialog(page: Page) -> None:
    """Make an enrolment token."""
    page.get_by_role("button", name="Enrol a client").click()
    page.locator("#field-name").fill("grove")
    page.get_by_role("button", name="Make a token").click()
    page.locator("#enrolment-token").wait_for()


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
