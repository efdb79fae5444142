"""The page at /, in a real browser, on a coordinator that does what it shows."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import update

from coordinator.db.tables.federations import FederationRow
from tests.acceptance.system.page import enter
from tests.scene.alignment import LARGE, acceptance_figures, with_packs
from tests.scene.coordinator import Served
from tests.scene.rounds import deliver, join, one_round, plan, running, scored, url, values

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def _auditor(served: Served) -> tuple[str, str]:
    created = served.admin.post("/v1/tokens", json={"role": "auditor", "name": "reader"}).json()
    return created["id"], created["token"]


def _rows(page: Page, table: str) -> list[list[str]]:
    """Read a table without its head."""
    rows = page.locator(f"#{table} tbody tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


def _facts(page: Page) -> dict[str, str]:
    return {
        fact.locator("dt").inner_text(): fact.locator("b").inner_text()
        for fact in page.locator(".fact").all()
    }


def test_the_page_shows_an_auditor_the_federation(page: Page, served: Served) -> None:
    federation_id, silos = running(
        served, **plan(strategy={"name": "fedmosaic", "options": {"sources": "all", "guard": "off"}})
    )
    one_round(served, federation_id, silos, 1, [1.0, 3.0])
    for silo, exact in zip(silos, (0.25, 0.75), strict=True):
        sent = scored({"loss": 1 - exact, "perplexity": 2.7, "exact_match": exact})
        assert silo.http.put(url(silo, 1, "/scores"), json=sent).status_code == 204
    deliver(silos[0], 2, values(1.0))
    enter(page, served, token=_auditor(served)[1])
    expect(page.locator("#headline")).to_have_text("Round 2 of 3 is open")
    expect(page.locator("#missing")).to_contain_text("Waiting for silo-1 (not joined, last seen")
    facts = _facts(page)
    assert facts["clients enrolled"] == "2"
    assert facts["updates in round 2"] == "1 of 1"
    assert facts["mean loss of the personal models"] == "0.500"
    assert facts["mean change of loss since the start"] == "−8.500"
    assert [row[:2] for row in _rows(page, "rounds")] == [["2", "open"], ["1", "published"]]
    heads = page.locator("#rounds thead th").all_inner_texts()
    assert dict(zip(heads, _rows(page, "rounds")[1], strict=True)).items() >= {
        ("mean loss", "0.500"),
        ("worst loss", "0.750"),
        ("mean perplexity", "2.700"),
        ("mean exact match", "0.500"),
    }
    assert page.locator("#curve circle").count() == 2, "one round, its mean and its worst"
    assert [row[0] for row in _rows(page, "scores")] == ["loss ↓", "perplexity ↓", "exact match ↑"]
    relevance = served.admin.get(f"/v1/federations/{federation_id}/rounds/1/relevance").json()
    assert [[float(value) for value in row[1:]] for row in _rows(page, "relevance")] == [
        [pytest.approx(value, abs=0.005) for value in row] for row in relevance["relevance"]
    ]
    claims = served.admin.get(f"/v1/federations/{federation_id}/rounds/2").json()["claims"]
    assert page.locator("#claims li").all_inner_texts() == claims[:3]
    assert page.locator(".claims li").all_text_contents() == claims
    expect(page.locator("#claims-all")).not_to_have_attribute("open", "")
    assert page.locator("#alignment-part").count() == 0


def test_the_page_follows_a_round_without_reload(page: Page, served: Served) -> None:
    federation_id, silos = running(served)
    enter(page, served)
    expect(page.locator("#headline")).to_contain_text("Round 1 of 3 is open")
    one_round(served, federation_id, silos, 1, [1.0, 3.0])
    expect(page.locator("#headline")).to_contain_text("Round 2 of 3", timeout=10_000)
    join(silos[0], 2)
    revoked = f"/v1/federations/{federation_id}/clients/{silos[1].client_id}"
    assert served.admin.delete(revoked).status_code == 204
    assert served.admin.post(f"/v1/federations/{federation_id}/finish").status_code == 200
    finished = "clinics is finished after 1 published round"
    expect(page.locator("#headline")).to_have_text(finished, timeout=10_000)
    expect(page.locator("#now")).to_contain_text("2 clients sent updates.")
    expect(page.locator("#clients .state")).to_have_text(["no update", "revoked"])


def test_the_page_asks_again_after_an_invalid_token(page: Page, served: Served) -> None:
    running(served)
    enter(page, served, token="tsr_aud_" + "x" * 43)
    expect(page.get_by_role("alert")).not_to_be_empty()
    expect(page.locator("#view")).to_be_hidden()
    token_id, token = _auditor(served)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.locator("#view")).to_be_visible()
    assert served.admin.delete(f"/v1/tokens/{token_id}").status_code == 204
    expect(page.get_by_role("alert")).not_to_be_empty(timeout=10_000)
    expect(page.locator("#view")).to_be_hidden()
    assert page.evaluate("sessionStorage.length") == 0


def test_signing_out_empties_the_storage_of_the_tab(page: Page, served: Served) -> None:
    running(served)
    enter(page, served)
    expect(page.locator("#view")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.evaluate("JSON.stringify({...sessionStorage, ...localStorage})") == "{}"
    assert page.context.cookies() == []


def test_a_name_with_markup_is_shown_as_text(page: Page, served: Served) -> None:
    name = "<img src=x onerror=document.title='owned'>"
    federation_id = served.federation()
    with served.database.write() as session:  # which no request can store
        session.execute(update(FederationRow).where(FederationRow.id == federation_id).values(name=name))
    enter(page, served)
    expect(page.locator("#headline")).to_contain_text(name)
    assert page.locator("main img").count() == 0
    assert page.title().startswith(name), "a title is text too"


def test_the_selector_switches_between_federations(page: Page, served: Served) -> None:
    first, _ = running(served)
    served.federation(name="the second")
    enter(page, served)
    expect(page.locator("#headline")).to_have_text("2 federations, 1 running")
    page.locator("#federation").select_option(first)
    expect(page.locator("#headline")).to_contain_text("Round 1 of 3")
    page.locator("#federation").select_option("")
    page.get_by_role("link", name="the second", exact=True).click()
    expect(page.locator("#headline")).to_contain_text("the second has not started")


def test_packs_show_their_verdicts_losses_and_errors(page: Page, served: Served) -> None:
    federation_id, pack = with_packs(served)
    tested = acceptance_figures(pack, "failed")
    stored = served.admin.put(f"/v1/federations/{federation_id}/alignments/{LARGE}/acceptance", json=tested)
    assert stored.status_code == 201, stored.text
    enter(page, served)
    expect(page.locator("#alignment-part")).to_be_visible()
    shown = {row[0]: row[1:] for row in _rows(page, "packs")}
    verdict, right, zero, wrong, random_frames, sharing = shown[LARGE]
    assert verdict == "failed"
    assert "identical base model only" in sharing
    # Means of the figures' five losses; in the failed direction zero does as well as what was taught.
    assert (right, wrong, random_frames) == ("0.140 / 0.140", "0.860 / 0.860", "0.860 / 0.860")
    assert zero == "0.860 / 0.140"
    assert len(_rows(page, "errors")) > 0


def test_the_page_loads_no_foreign_resources(page: Page, served: Served) -> None:
    running(served)
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    enter(page, served)
    expect(page.locator("#view")).to_be_visible()
    assert urls
    assert {address.startswith(served.url) for address in urls} == {True}


def test_the_api_docs_load_no_foreign_resources(page: Page, served: Served) -> None:
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.goto(f"{served.url}/docs")
    expect(page.get_by_text("/v1/federations/{fid}/rounds/{n}/update")).to_be_visible()
    assert {address.startswith((served.url, "data:")) for address in urls} == {True}
