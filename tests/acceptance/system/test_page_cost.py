"""What the page costs a browser and a coordinator, as `benchmarks.page` measures it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from benchmarks.page import large_federation, open_page, refresh_page

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def test_the_page_is_small_and_rarely_requests(browser: Browser) -> None:
    with large_federation(clients=12, rounds=30) as (running, federation):
        bare = open_page(browser, running, "")
        view = open_page(browser, running, f"#/{federation}")
        refresh = refresh_page(browser, running, f"#/{federation}")
    assert bare.bytes < 52 * 1024
    # Eight for the first view; the earlier rounds and a refresh may have begun before the browser was asked.
    assert bare.requests + 8 <= view.requests <= bare.requests + 8 + 6
    # The federation, its newest rounds, and the round that is collecting.
    assert refresh.requests == 3
