"""What an operator does from the page, in a real browser: a federation from its creation to its end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from schemas.messages.federations import ALL_ROLES
from tests.acceptance.system.page import enter
from tests.scene.coordinator import Served
from tests.scene.openid_provider import CLIENT, running_provider
from tests.scene.rounds import one_round, plan, running
from tests.scene.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


ADMIN = "admin"  # the name of the person's token


def _token(served: Served, role: str) -> str:
    created = served.admin.post("/v1/tokens", json={"role": role, "name": role}).json()
    return str(created["token"])


def _act(page: Page, button: str, confirm: str, typed: str | None = None) -> None:
    """Use a button of the page, and confirm what its dialog asks."""
    page.get_by_role("button", name=button, exact=True).click()
    dialog = page.get_by_role("dialog")
    if typed is not None:
        dialog.get_by_label("Type").fill(typed)
    dialog.get_by_role("button", name=confirm, exact=True).click()


def _create(page: Page, strategy: str, **fields: str) -> None:
    page.get_by_role("button", name="New federation").click()
    dialog = page.get_by_role("dialog")
    dialog.locator("#field-strategy").select_option(strategy)
    if "more" in fields:
        dialog.get_by_text("Other fields of the plan, as JSON").click()
    for label, text in fields.items():
        dialog.locator(f"#field-{label}").fill(text)
    dialog.get_by_role("button", name="Create").click()


def test_a_federation_is_run_from_the_page_alone(page: Page, served: Served) -> None:
    enter(page, served, token=_token(served, "admin"))
    expect(page.locator("#headline")).to_have_text("No federation yet")
    create = page.get_by_role("dialog").get_by_role("button", name="Create")
    _create(page, strategy="fedavg", name="wards", rounds="2", members="1", more='{"adapter": {"rank": ')
    alert = page.get_by_role("dialog").get_by_role("alert")
    expect(alert).to_have_text("1 field to correct: Other fields.")
    expect(page.locator("#error-more")).to_contain_text("This is not JSON")
    page.locator("#field-more").fill('{"adapter": {"rank": 8}, "training": {"steps": 3}}')
    create.click()
    expect(page.locator("#error-more")).to_have_text("training.steps: set above; leave it out here")
    page.locator("#field-more").fill('{"adapter": {"rank": 8}}')
    page.locator("#field-steps").fill("3")
    create.click()
    expect(page.locator("#headline")).to_have_text("wards has not started")
    (federation,) = served.admin.get("/v1/federations").json()["items"]
    assert (federation["plan"]["training"]["steps"], federation["plan"]["rounds"]["total"]) == (3, 2)
    assert (federation["plan"]["adapter"]["kind"], federation["plan"]["adapter"]["rank"]) == ("lora", 8)
    words = page.locator("#plan-part dd").all_inner_texts()
    assert "3 steps of 8 texts per client and round." in words
    assert "2 rounds; each waits for 1 client." in words

    page.get_by_role("button", name="Enrol a client").click()
    page.locator("#field-name").fill("aster")
    page.get_by_role("button", name="Make a token").click()
    token = page.locator("#enrolment-token").input_value()
    assert served.try_enrol(token, "aster", shapes={role: [64, 64] for role in ALL_ROLES}).status_code == 201
    assert token not in page.url
    assert token not in page.evaluate("JSON.stringify({...sessionStorage, ...localStorage})")
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#enrolment-token")).to_have_count(0)  # the dialog is emptied after it was closed
    assert token not in page.content()
    expect(page.locator("#clients tbody tr")).to_have_count(1)

    _act(page, "Start", "Start")
    expect(page.locator("#headline")).to_have_text("Round 1 of 2 is open")
    _act(page, "Pause", "Pause")
    expect(page.locator("#now")).to_contain_text("Paused")
    _act(page, "Resume", "Resume")
    expect(page.locator("#now")).not_to_contain_text("Paused")
    page.get_by_role("link", name="aster").click()
    _act(page, "Revoke", "Revoke", "aster")
    expect(page.locator(".fact").first).to_contain_text("revoked")
    page.locator("#back a").first.click()
    _act(page, "Finish", "Finish", "ward")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("Type wards exactly")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    _act(page, "Finish", "Finish", "wards")
    expect(page.locator("#headline")).to_contain_text("wards is finished")
    expect(page.locator("#actions-part")).to_have_count(0)

    page.get_by_role("link", name="Audit log").click()
    expect(page.locator("#audit tbody tr").first).to_contain_text("finished wards")
    actions = [row.locator("td").nth(1).inner_text() for row in page.locator("#audit tbody tr").all()]
    assert actions[::-1][-7:] == [
        f"{ADMIN} made an enrolment token for aster in wards",
        "aster in wards enrolled",
        f"{ADMIN} started wards",
        f"{ADMIN} paused wards",
        f"{ADMIN} started wards",
        f"{ADMIN} revoked aster in wards",
        f"{ADMIN} finished wards",
    ]
    assert all(row.inner_text().endswith("UTC") for row in page.locator("#audit time").all())
    expect(page.locator("#choice")).to_be_hidden()
    page.locator("#back a").click()
    expect(page.locator("#headline")).to_contain_text("wards is finished")


def test_unused_tokens_are_listed_until_they_are_used(page: Page, served: Served) -> None:
    federation_id = served.federation()
    enter(page, served, federation_id, _token(served, "operator"))
    page.get_by_role("button", name="Enrol a client").click()
    page.locator("#field-name").fill("north")
    page.get_by_role("button", name="Make a token").click()
    token = page.locator("#enrolment-token").input_value()
    for _ in range(3):
        page.keyboard.press("Escape")
    expect(page.locator("#dialog-warning")).to_contain_text("Press Close")
    expect(page.locator("#enrolment-token")).to_have_value(token)
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#tokens li")).to_have_text(["north: token unused, expires in 24 h"])

    page.get_by_role("button", name="Enrol a client").click()
    page.locator("#field-name").fill("north")
    page.get_by_role("button", name="Make a token").click()
    expect(page.locator("#error-name")).to_contain_text("tick “Replace an unused token of this name”")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    served.enrol(federation_id, "south")
    expect(page.locator("#clients tbody tr")).to_have_count(1)
    expect(page.locator("#tokens li")).to_have_count(1)

    page.get_by_role("button", name="Sign out").click()
    enter(page, served, federation_id, _token(served, "auditor"))
    expect(page.locator("#clients tbody tr")).to_have_count(1)
    expect(page.locator("#tokens")).to_have_count(0)


def test_all_invalid_fields_are_named_at_once(page: Page, served: Served) -> None:
    served.federation(name="Wards")
    enter(page, served)
    _create(page, strategy="fedavg", name="", rounds="0", steps="0", deadline="-1", private="20")
    alert = page.get_by_role("dialog").get_by_role("alert")
    labels = (
        "Name, Rounds, Deadline of a round, in minutes, Steps of a client in a round, Epsilon of the training"
    )
    expect(alert).to_have_text(f"5 fields to correct: {labels}.")
    expect(page.locator("#field-name")).to_be_focused()
    expect(page.locator("[aria-invalid]")).to_have_count(5)
    for field, text in {
        "name": "<b>",
        "rounds": "2",
        "steps": "3",
        "deadline": "0.5",
        "private": "2",
    }.items():
        page.locator(f"#field-{field}").fill(text)
    page.locator("#field-quorum").fill("3")
    create = page.get_by_role("dialog").get_by_role("button", name="Create")
    create.click()
    expect(page.locator("#error-quorum")).to_contain_text("must not be larger than min_clients")
    page.locator("#field-quorum").fill("")
    create.click()
    expect(page.locator("#error-rate")).to_contain_text("must be a number with privacy.training")
    page.locator("#field-rate").fill("0.001")
    page.locator("#field-sketches").fill("1")
    create.click()
    expect(page.locator("#error-name")).to_contain_text("letters, digits")
    page.locator("#field-name").fill("wards")
    create.click()
    expect(page.locator("#error-name")).to_contain_text("'Wards', which is in use")
    assert len(served.admin.get("/v1/federations").json()["items"]) == 1
    page.locator("#field-name").fill("harbours")
    create.click()
    expect(page.locator("#headline")).to_have_text("harbours has not started")
    stored_plan = served.admin.get("/v1/federations").json()["items"][-1]["plan"]
    assert stored_plan["rounds"]["collect_seconds"] == 30.0
    assert (stored_plan["privacy"]["training"]["epsilon"], stored_plan["signature"]["dp"]["epsilon"]) == (
        2.0,
        1.0,
    )


def test_dialog_waits_for_the_strategies(page: Page, served: Served) -> None:
    def slowly(route: Route) -> None:
        time.sleep(1.0)
        route.continue_()

    page.route("**/v1/strategies", slowly)
    enter(page, served)
    page.get_by_role("button", name="New federation").click()
    expect(page.locator("#field-strategy")).to_have_value("fedmosaic")


def test_federation_that_was_never_started_is_removed(page: Page, served: Served) -> None:
    running(served)
    mistake = served.federation(name="mistake")
    enter(page, served, mistake, _token(served, "operator"))
    expect(page.get_by_role("button", name="Start")).to_be_visible()
    expect(page.get_by_role("button", name="Remove")).to_have_count(0)
    page.get_by_role("button", name="Sign out").click()
    enter(page, served, mistake)
    _act(page, "Remove", "Remove", "mistake")
    expect(page.locator("#headline")).to_contain_text("Round 1 of 3 is open")
    assert [item["name"] for item in served.admin.get("/v1/federations").json()["items"]] == ["clinics"]
    page.goto(f"{served.url}/#/{mistake}")
    expect(page.get_by_role("heading", name=f"There is no federation {mistake}")).to_be_visible()


@pytest.mark.parametrize(("role", "sections"), [("auditor", [0, 0]), ("operator", [1, 0]), ("admin", [1, 1])])
def test_people_see_the_actions_of_their_role(
    page: Page, served: Served, role: str, sections: list[int]
) -> None:
    federation_id, silos = running(served)
    enter(page, served, token=_token(served, role))
    expect(page.locator("#headline")).to_contain_text("Round 1")
    expect(page.locator(".fact", has_text="updates in round 1")).to_contain_text("no client has joined")
    expect(page.locator("#actions-part")).to_have_count(sections[0])
    expect(page.locator("#do-finish.danger")).to_have_count(sections[0])
    expect(page.get_by_role("button", name="New federation")).to_be_visible(visible=role != "auditor")
    page.locator(f'#clients a[href$="{silos[0].client_id}"]').click()
    expect(page.locator("#voices-part")).to_be_visible()
    expect(page.locator("#actions-part")).to_have_count(sections[1])
    expect(page.locator("#do-revoke.danger")).to_have_count(sections[1])
    assert served.admin.post(f"/v1/federations/{federation_id}/pause").status_code == 200
    page.locator("#back a").first.click()
    paused = "Paused: no further round opens." + " Resume it below" * sections[0]
    expect(page.locator("#now")).to_contain_text(paused)
    expect(page.locator("#now code")).to_have_count(sections[0])


def test_a_person_signs_in_at_the_identity_provider(
    page: Page, serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> None:
    with running_provider() as provider:
        provider.know("ben", groups=["ward"])
        url = fresh_database("sqlite")
        before = serve(url)
        first, _ = running(before)
        hidden = before.federation(name="hidden")
        before.stop()
        settings = {"oidc_issuer": provider.issuer, "oidc_client_id": CLIENT, "oidc_client_secret": "any"}
        served = serve(url, tick_seconds=0.05, oidc_roles=f"ward=operator@{first}", **settings)
        page.goto(f"{served.url}/#/{first}/rounds/1")
        page.get_by_role("button", name="Sign in with your organisation").click()
        page.locator("input[name=sub]").fill("ben")
        page.locator("button[type=submit], input[type=submit]").first.click()
        expect(page.locator("#headline")).to_contain_text("Round 1 of 3: open")
        assert page.url == f"{served.url}/#/{first}/rounds/1"
        expect(page.locator("#federation option")).to_have_count(1)
        expect(page.get_by_role("button", name="New federation")).to_be_hidden()
        expect(page.locator("#audit-link")).to_be_hidden()
        page.locator("#back a").first.click()
        _act(page, "Pause", "Pause")
        expect(page.locator("#now")).to_contain_text("Paused")
        page.goto(f"{served.url}/#/{hidden}")
        expect(page.locator("#outage")).to_contain_text("Your role does not allow this view")
        page.goto(f"{served.url}/#/{first}")
        expect(page.locator("#outage")).to_be_hidden()
        expect(page.locator("#now")).to_contain_text("Paused")
        page.goto(f"{served.url}/?code=abc&state=foreign")
        token = page.evaluate("sessionStorage.getItem('token')")
        assert served.http(token).get("/v1/federations").status_code == 200
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("button", name="Sign in with your organisation")).to_be_visible()
        wait_until(lambda: served.http(token).get("/v1/federations").status_code == 401, event="the sign-out")
        assert page.evaluate("sessionStorage.length") == 0
        page.goto(f"{served.url}/?code=abc&state=foreign")
        expect(page.get_by_role("alert").first).to_contain_text("did not begin in this tab")
        assert "code=" not in page.url


def test_a_foreign_page_cannot_use_the_coordinator(page: Page, served: Served) -> None:
    federation_id, _ = running(served)
    enter(page, served)
    expect(page.locator("#headline")).to_contain_text("Round 1")
    finish = f"{served.url}/v1/federations/{federation_id}/finish"
    foreign = page.context.new_page()
    page.context.route(
        "http://127.0.0.1:18999/",
        lambda route: route.fulfill(
            content_type="text/html",
            body=f'<form method="post" action="{finish}"></form><iframe src="{served.url}/"></iframe>',
        ),
    )
    foreign.goto("http://127.0.0.1:18999/")
    foreign.evaluate(
        "url => fetch(url, {method: 'POST', mode: 'no-cors', credentials: 'include'}).catch(() => 0)", finish
    )
    framed = foreign.frames[1]
    assert framed.locator("#entry").count() == 0
    foreign.evaluate("document.forms[0].submit()")
    foreign.wait_for_url(re.compile("/finish$"))
    assert "auth-missing" in foreign.content()
    assert served.admin.get(f"/v1/federations/{federation_id}").json()["state"] == "running"
    assert page.context.cookies() == []


def test_two_federations_are_shown_side_by_side(page: Page, served: Served) -> None:
    first, silos = running(served, **plan(strategy={"name": "fedmosaic"}))
    for number in (1, 2):
        one_round(served, first, silos, number, [1.0, 3.0])
    second, _ = running(served, name="wards")
    enter(page, served, first)
    page.get_by_role("button", name="Show relevance over rounds").click()
    expect(page.locator("table.small")).to_have_count(2)
    assert page.locator("table.small").first.locator("td").count() == 4
    page.locator("#beside").select_option(second)
    expect(page.locator("#headline")).to_have_text("clinics beside wards")
    facts = page.locator("#beside-facts tbody tr").all()
    rows = {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in facts}
    assert rows["strategy"] == ["fedmosaic", "fedavg"]
    assert rows["rounds"] == ["3 of 3", "1 of 10"]
    assert rows["first mean loss"][1] == "–"
    page.locator("#beside").select_option("")
    expect(page.locator("#headline")).to_contain_text("Round 3 of 3")
