"""The page operated with the keyboard alone, and what its dialogs fill in and copy, in a real browser."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, expect

from schemas.messages.recommendations import recommended
from tests.served import Served
from tests.system.conftest import enter

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def _press(page: Page, button: str) -> None:
    page.locator(button).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()


def _state(served: Served) -> str:
    (federation,) = served.admin.get("/v1/federations").json()["items"]
    return str(federation["state"])


def test_a_federation_is_run_with_the_keyboard(page: Page, served: Served) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    enter(page, served)
    _press(page, "#create")
    expect(page.locator("#field-name")).to_be_focused()
    page.keyboard.type("wards")
    page.keyboard.press("Enter")
    expect(page.locator("#headline")).to_have_text("wards has not started")
    expect(page.locator("#create")).to_be_focused()

    _press(page, "#do-enrol")
    expect(page.locator("#field-name")).to_be_focused()
    page.keyboard.type("aster")
    page.keyboard.press("Enter")
    copy = page.get_by_role("button", name="Copy")
    expect(copy).to_be_focused()
    token = page.locator("#enrolment-token").input_value()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == token
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("#do-enrol")).to_be_focused()
    assert token not in page.content()

    _press(page, "#do-start")
    expect(page.get_by_role("dialog").get_by_role("button", name="Start")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#headline")).to_have_text("Round 1 of 10 is open")
    expect(page.locator("#do-pause")).to_be_focused()
    _press(page, "#do-finish")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("#do-finish")).to_be_focused()
    assert _state(served) == "running"
    _press(page, "#do-finish")
    page.keyboard.type("wards")
    page.keyboard.press("Enter")
    expect(page.locator("#headline")).to_contain_text("wards is finished")
    expect(page.locator("body")).not_to_be_focused()


def test_the_dialog_has_what_is_recommended_for_the_strategy(page: Page, served: Served) -> None:
    enter(page, served)
    page.get_by_role("button", name="New federation").click()
    page.locator("#field-name").fill("wards")
    more = page.locator("#field-more")
    assert json.loads(more.input_value()) == recommended("fedmosaic", aligned=False)
    page.locator("#field-strategy").fill("fed_vemoe")
    expect(page.locator("#field-members")).to_have_value("5")
    assert json.loads(more.input_value()) == {
        part: members
        for part, members in recommended("fed_vemoe", aligned=False).items()
        if part not in ("strategy", "rounds")
    }
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    expect(page.locator("#headline")).to_have_text("wards has not started")
    (federation,) = served.admin.get("/v1/federations").json()["items"]
    assert federation["plan"]["privacy"]["secure_sum"]["masking"] == "pairwise"

    page.get_by_role("button", name="New federation").click()
    more.fill('{"training": {"steps": 3}}')
    page.locator("#field-strategy").fill("ca_pfl")
    assert more.input_value() == '{"training": {"steps": 3}}', "what was edited stays"


def test_a_token_is_copied_where_the_browser_has_no_clipboard_object(page: Page, served: Served) -> None:
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    federation_id = served.federation()
    enter(page, served, federation_id)
    page.get_by_role("button", name="Enrol a client").click()
    page.locator("#field-name").fill("aster")
    page.get_by_role("button", name="Make a token").click()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
