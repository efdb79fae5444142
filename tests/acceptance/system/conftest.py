"""A real browser, and one empty page of it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.acceptance.system.programs import program
from tests.scene.coordinator import coordinator_fixture

# What Chromium would fetch by itself has no place here; as root it needs to be told that no sandbox is meant.
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


expect.set_options(timeout=20_000)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program("chromium"), args=_ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty tab; an error of the page's script fails the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield opened
    context.close()
    # Refusals of what the test enters are meant, the coordinator may be gone before the page is, and an
    # identity provider may ask for styles from elsewhere.
    expected = ("401", "403", "404", "409", "422", "ERR_CONNECTION_REFUSED", "ERR_NAME_NOT_RESOLVED")
    assert [error for error in errors if not any(part in error for part in expected)] == []


served = coordinator_fixture("sqlite", tick_seconds=0.05, retry_seconds=0.1, polls_per_second=20)
"""A coordinator that nobody else uses."""
