"""The page of a summed federation: its sessions and mean losses, and no client's own."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.system.page import enter
from tests.scene.coordinator import Served
from tests.scene.rounds import running
from tests.scene.stored_bank import PLAN, store_bank
from tests.scene.sums_in_clear import sum_up, summed

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def test_a_summed_round_shows_no_clients_own_figures(page: Page, served: Served) -> None:
    federation_id, silos = running(served, 4, **summed())
    sum_up(served, federation_id, silos, [0.1, 0.2, 0.3, 0.4])
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    enter(page, served, federation_id)
    expect(page.locator("#headline")).to_contain_text("Round 2 of 3")
    mean = page.locator("#help-part .fact").filter(has_text="mean loss after training")
    expect(mean.locator("b")).to_have_text("1.000")
    expect(mean).to_contain_text("as served 2.500")
    expect(page.locator("#help-part")).to_contain_text("no client's own loss is known")
    expect(page.locator("#claims")).to_contain_text("A member can add anything to a sum")
    page.goto(f"{served.url}/#/{federation_id}/rounds/1")
    expect(page.locator("#sessions tbody tr")).to_have_count(1)
    expect(page.locator("#sessions")).to_contain_text("masked 4")
    expect(page.locator("#sum-part")).to_contain_text("The sum has the updates of 4 members.")
    losses = page.locator("#facts .fact").filter(has_text="mean loss after training")
    expect(losses).to_contain_text("as served 2.500, of 4 members")
    expect(page.locator("#claims-part")).to_contain_text(
        "4 members are ready for the sum of this round or in it"
    )
    assert not [url for url in urls if url.endswith("/relevance")]


def test_a_bank_shows_experts_and_reasons_of_changes(page: Page, served: Served) -> None:
    federation_id = served.federation(**PLAN)
    store_bank(served.database, federation_id)
    enter(page, served, federation_id)
    expect(page.locator("#experts tbody tr")).to_have_count(5)
    expect(page.locator("#experts tbody tr").nth(0)).to_contain_text("8 of 15 (53 %)")
    expect(page.locator("#experts tbody tr").nth(1)).to_contain_text("merged into 1")
    expect(page.locator("#experts-part")).to_contain_text("3 active specialists")
    expect(page.locator("#experts-part")).to_contain_text("without masks the coordinator can see the choice")
    expect(page.locator("#experts-part")).to_contain_text("In round 6, 0 of 15 members reject all experts.")
    changes = page.locator("#expert-changes tbody tr")
    expect(changes).to_have_count(3)
    expect(changes.filter(has_text="expert 5 born")).to_contain_text("5 of 15 members fit no expert")
