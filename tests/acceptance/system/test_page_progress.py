"""How far clients have come inside a round, in a real browser."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.system.page import enter
from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import deliver, join, running, url, values, wait_for

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def _report(silo: Silo, step: int, loss: float, seconds_left: float) -> None:
    sent = {"step": step, "steps": 20, "loss": loss, "tokens_per_second": 900.0, "seconds_left": seconds_left}
    assert silo.http.put(url(silo, 1, "/progress"), json=sent).status_code == 204


def _name(served: Served, silo: Silo) -> str:
    path = f"/v1/federations/{silo.federation_id}/clients/{silo.client_id}"
    return str(served.admin.get(path).json()["name"])


@pytest.mark.parametrize("width", [390, 1200])
def test_a_training_client_has_a_progress_bar(page: Page, served: Served, width: int) -> None:
    federation_id, (silo, peer) = running(served)
    for member in (silo, peer):
        join(member, 1)
    page.set_viewport_size({"width": width, "height": 800})
    enter(page, served, federation_id)
    expect(page.locator("#headline")).to_have_text("Round 1 of 3 is collecting updates")
    heads = page.locator("#clients thead th", has_text="progress")
    expect(heads).to_have_count(0)
    expect(page.get_by_role("progressbar")).to_have_count(0)

    _report(silo, 4, 1.5, 31.0)
    bar = page.get_by_role("progressbar", name=f"Training of {_name(served, silo)}")
    expect(bar).to_have_attribute("value", "4")
    expect(bar).to_have_attribute("max", "20")
    expect(bar).to_be_visible()
    row = page.locator("#clients tbody tr", has_text=_name(served, silo))
    expect(row).to_contain_text("4 of 20, loss 1.500, 31 s left")
    expect(page.get_by_role("progressbar")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    _report(silo, 15, 0.75, 8.0)
    expect(row).to_contain_text("15 of 20, loss 0.750, 8 s left")
    expect(bar).to_have_attribute("value", "15")

    _report(peer, 2, 2.25, 90.0)
    expect(page.get_by_role("progressbar")).to_have_count(2)
    page.goto(f"{served.url}/#/{federation_id}/rounds/1")
    expect(page.locator("#headline")).to_have_text("Round 1 of 3: collecting")
    expect(page.get_by_role("progressbar")).to_have_count(2)
    expect(page.locator("#clients")).to_contain_text("2 of 20, loss 2.250, 90 s left")
    page.locator("#back a").first.click()

    page.clock.install(time=datetime.now(UTC) + timedelta(minutes=5))
    page.reload()
    expect(page.locator("#clients")).to_contain_text("2 of 20, loss 2.250, reported 5 min ago")
    expect(page.locator("#clients")).not_to_contain_text("s left")

    deliver(silo, 1, values(1.0))
    expect(bar).to_have_count(0)
    expect(page.get_by_role("progressbar")).to_have_count(1)
    deliver(peer, 1, values(3.0))
    wait_for(served, federation_id, 1, "published")
    expect(page.locator("#headline")).to_have_text("Round 2 of 3 is open")
    expect(page.get_by_role("progressbar")).to_have_count(0)
    expect(heads).to_have_count(0)
    page.goto(f"{served.url}/#/{federation_id}/rounds/1")
    expect(page.locator("#headline")).to_have_text("Round 1 of 3: published")
    expect(page.get_by_role("progressbar")).to_have_count(0)
