"""A link with a token in its fragment signs in, and leaves no token in the address or a request."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.scene.coordinator import ADMIN_TOKEN, Served

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def test_link_signs_in_and_leaves_no_token_behind(page: Page, served: Served) -> None:
    served.federation()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(f"{served.url}/#token={ADMIN_TOKEN}")
    expect(page.locator("#headline")).to_be_visible()
    assert ADMIN_TOKEN not in page.url
    assert requested
    assert not any(ADMIN_TOKEN in url for url in requested)
    page.reload()
    expect(page.locator("#headline")).to_be_visible()


def test_link_replaces_the_token_of_an_open_tab(page: Page, served: Served) -> None:
    served.federation()
    page.goto(f"{served.url}/#token=tsr_aud_unknown")
    expect(page.locator("#trouble")).to_contain_text("unknown, expired or revoked")
    page.goto(f"{served.url}/#token={ADMIN_TOKEN}")
    expect(page.locator("#headline")).to_be_visible()
    assert ADMIN_TOKEN not in page.url
