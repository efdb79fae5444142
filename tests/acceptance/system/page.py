""""""

from __future__ import annotations

from playwright.sync_api import Page

from tests.scene.coordinator import ADMIN_TOKEN, Served


def enter(page: Page, served: Served, fragment: str = "", token: str = ADMIN_TOKEN) -> None:
    """Open the page at a fragment of its address with a token."""
    page.goto(f"{served.url}/#/{fragment}" if fragment else served.url)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in", exact=True).click()
