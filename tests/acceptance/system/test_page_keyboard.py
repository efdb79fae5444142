"""The page operated with the keyboard alone, and what its dialogs fill in and copy, in a real browser."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.system.page import enter
from tests.scene.coordinator import Served

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
    expect(page.get_by_role("button", name="Copy: Lines for the silo")).to_be_focused()
    token = page.locator("#enrolment-token").input_value()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    lines = page.evaluate("navigator.clipboard.readText()")
    assert f"--url {served.url} " in lines
    assert f"echo {token} | tessera agent enrol --config silo.toml --name aster --token -" in lines
    for key in ("Tab", "Tab", "Enter"):
        page.keyboard.press(key)
    expect(page.get_by_role("button", name="Copied")).to_have_count(2)
    assert page.evaluate("navigator.clipboard.readText()") == token
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("#do-enrol")).to_be_focused()
    expect(page.locator("#enrolment-token")).to_have_count(0)
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


def test_dialog_begins_with_the_recommended_plan(page: Page, served: Served) -> None:
    enter(page, served)
    page.get_by_role("button", name="New federation").click()
    page.locator("#field-name").fill("wards")
    strategy, members = page.locator("#field-strategy"), page.locator("#field-members")
    listed = served.admin.get("/v1/strategies").json()["items"]
    assert strategy.locator("option").all_inner_texts() == [entry["name"] for entry in listed]
    for entry in listed:
        strategy.select_option(entry["name"])
        expect(page.locator("#help-strategy")).to_have_text(entry["summary"])
        assert json.loads(page.locator("#whole-plan").text_content() or "") == entry["plan"]
    strategy.select_option("fedavg")
    expect(members).to_have_value("2")
    page.locator("#field-steps").fill("7")
    strategy.select_option("fed_vemoe")
    expect(members).to_have_value("5")
    expect(page.locator("#field-sums")).to_have_value("pairwise")
    expect(page.locator("#field-steps")).to_have_value("7")  # what was edited stays
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    expect(page.locator("#headline")).to_have_text("wards has not started")
    (federation,) = served.admin.get("/v1/federations").json()["items"]
    (usual,) = (entry["plan"] for entry in listed if entry["name"] == "fed_vemoe")
    assert federation["plan"] == usual | {"name": "wards", "training": usual["training"] | {"steps": 7}}


def test_a_token_is_copied_without_a_clipboard_object(page: Page, served: Served) -> None:
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    federation_id = served.federation()
    enter(page, served, federation_id)
    page.get_by_role("button", name="Enrol a client").click()
    page.locator("#field-name").fill("aster")
    page.get_by_role("button", name="Make a token").click()
    page.get_by_role("button", name="Copy: Token alone").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
