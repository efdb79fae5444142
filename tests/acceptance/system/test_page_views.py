"""The page's views, addresses, faults and windows, in a real browser on a real coordinator."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Page, Route, expect

from tests.acceptance.system.page import enter
from tests.scene.coordinator import ADMIN_TOKEN, Served, Silo
from tests.scene.ranks import layout_of_rank, running_ranks
from tests.scene.rounds import (
    deliver,
    join,
    one_round,
    plan,
    put,
    running,
    scored,
    update_body,
    url,
    values,
)
from tests.scene.tensors import random_tensors

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

LONG_NAME = "university-hospital-of-the-northern-lowlands-department-of-neurology"


@pytest.fixture
def two_rounds(served: Served) -> tuple[str, list[Silo]]:
    """A federation with two published rounds with scores, and a third that waits for one of two clients."""
    federation_id, silos = running(
        served, **plan(strategy={"name": "fedmosaic", "options": {"sources": "all", "guard": "off"}})
    )
    for number, served_loss in ((1, 3.0), (2, 0.6)):
        one_round(served, federation_id, silos, number, [1.0, 3.0])
        for silo, trained in zip(silos, (0.8, 1.0), strict=True):
            scores = scored({"loss": trained / number, "f1": 0.5})
            scores["served"] = {"loss": {"value": served_loss, "count": 96}}
            if number == 2:
                scores["mixing"] = {"value": served_loss - trained, "error": 0.05, "count": 96}
            assert silo.http.put(url(silo, number, "/scores"), json=scores).status_code == 204
    for silo in silos:
        join(silo, 3)
    deliver(silos[0], 3, values(1.0))
    return federation_id, silos


def _open(page: Page, served: Served, fragment: str) -> None:
    enter(page, served, fragment)
    expect(page.locator("#view")).to_have_attribute("aria-busy", "false")


def test_the_page_names_missing_clients_and_mixing_gains(
    page: Page, served: Served, two_rounds: tuple[str, list[Silo]]
) -> None:
    federation_id, silos = two_rounds
    late = served.admin.get(f"/v1/federations/{federation_id}/clients/{silos[1].client_id}").json()["name"]
    _open(page, served, federation_id)
    expect(page.locator("#headline")).to_have_text("Round 3 of 3 is collecting updates")
    expect(page.locator("#now")).to_contain_text("1 of 2 clients have delivered. The round closes in 10 min")
    expect(page.locator("#missing")).to_contain_text(f"Waiting for {late} (joined")
    mixing = page.locator(".fact").filter(has_text="by mixing")
    # Served 0.6 to clients whose models had losses 0.8 and 1.0.
    expect(mixing.locator("b")).to_have_text("−0.300")
    expect(mixing.locator("b")).to_have_class("good")
    expect(mixing).to_contain_text("± 0.035 · better for 2, worse for 0 of 2 clients")
    page.get_by_role("button", name="f1").click()
    expect(page.locator("#help-part h3").first).to_have_text("f1 by round (higher is better)")
    expect(page.get_by_role("button", name="f1")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("img", name="Held-out f1 by round")).to_be_visible()


def test_the_page_says_that_members_are_missing(page: Page, served: Served) -> None:
    federation_id, silos = running(served)
    served.admin.delete(f"/v1/federations/{federation_id}/clients/{silos[0].client_id}")
    _open(page, served, federation_id)
    expect(page.locator("#now")).to_contain_text("1 of 2 required clients is a member; enrol another client")


@pytest.mark.parametrize(
    ("change", "verdict", "detail"),
    [(0.9, "bad", "· better for 0, worse for 2 of 2"), (0.04, "", "(within noise)")],
    ids=["harm", "noise"],
)
def test_harmful_mixing_is_red_and_noise_is_neutral(
    page: Page, served: Served, change: float, verdict: str, detail: str
) -> None:
    federation_id, silos = running(served, **plan(rounds={"total": 2, "min_clients": 2}))
    one_round(served, federation_id, silos, 1, [1.0, 3.0])
    for silo, began in zip(silos, ("trained" if verdict else "served", "served"), strict=True):
        mixing_of_silo = {"value": change, "error": 0.05, "count": 96}
        scores = scored({"loss": 1.5}) | {"mixing": mixing_of_silo, "began": began}
        assert silo.http.put(url(silo, 1, "/scores"), json=scores).status_code == 204
    _open(page, served, federation_id)
    mixing = page.locator(".fact").filter(has_text="by mixing")
    expect(mixing.locator("b")).to_have_class(verdict)
    expect(mixing).to_contain_text(detail)
    expect(page.locator("#clients .bad")).to_have_count(2 if verdict else 0)
    expect(page.locator("#clients .bad").filter(has_text="declined")).to_have_count(1 if verdict else 0)


def test_the_list_of_federations_names_missing_clients(
    page: Page, served: Served, two_rounds: tuple[str, list[Silo]]
) -> None:
    federation_id, silos = two_rounds
    names = {row["client_id"]: row["name"] for row in _clients(served, federation_id)}
    newcomer = served.enrol(federation_id, "a newcomer")
    waiting = served.federation(name="waiting")
    _open(page, served, "")
    expect(page.locator("#headline")).to_have_text("2 federations, 1 running")
    expect(page.locator("#peers")).to_be_hidden()
    rows = [row.locator("th, td").all_inner_texts() for row in page.locator("#federations tbody tr").all()]
    (name, state, number, clients, now), waiting_row = rows
    assert (name, state, number, clients) == ("clinics", "running", "3 of 3", "3")
    assert f"Waiting for {names[silos[1].client_id]} (joined " in now
    assert "a newcomer (not joined, last seen " in now
    assert "The round closes in 10 min." in now
    assert waiting_row == [
        "waiting",
        "not started",
        "– of 10",
        "0",
        "0 of the 2 clients that a round needs are enrolled.",
    ]
    page.locator("#federations").get_by_role("link", name="a newcomer").click()
    expect(page.locator("#headline")).to_have_text("a newcomer")
    assert page.url.endswith(f"#/{federation_id}/clients/{newcomer.client_id}")
    page.locator("#home").click()
    page.locator("#federations").get_by_role("link", name="waiting").click()
    expect(page.locator("#headline")).to_have_text("waiting has not started")
    assert page.url.endswith(f"#/{waiting}")


def _clients(served: Served, federation_id: str) -> list[dict[str, str]]:
    items: list[dict[str, str]] = served.admin.get(f"/v1/federations/{federation_id}/clients").json()["items"]
    return items


def test_client_with_fewer_rounds_is_behind(page: Page, served: Served) -> None:
    federation_id, silos = running(served, **plan(rounds={"total": 4, "min_clients": 2}))
    for number in (1, 2, 3):
        one_round(served, federation_id, silos, number, [1.0, 3.0])
    late = served.enrol(federation_id, "late")
    for silo in (*silos, late):
        join(silo, 4)
    deliver(late, 4, values(1.0))
    served.federation(name="another")
    _open(page, served, "")
    expect(page.locator("#federations tbody tr").first).to_contain_text("Behind: late (1 round).")


def test_unchanged_losses_are_shown_as_noise(page: Page, served: Served) -> None:
    federation_id, silos = running(served, **plan(rounds={"total": 2, "min_clients": 2}))
    one_round(served, federation_id, silos, 1, [1.0, 3.0])
    for silo in silos:
        sent = scored({"loss": 13.4299}) | {"mixing": {"value": -0.0001, "error": 0.01, "count": 96}}
        sent["served"] = {"loss": {"value": 13.43, "count": 96}}
        assert silo.http.put(url(silo, 1, "/scores"), json=sent).status_code == 204
    _open(page, served, federation_id)
    expect(page.locator(".fact").filter(has_text="by mixing")).to_contain_text("0.000± 0.007 (within noise)")
    start = page.locator(".fact").filter(has_text="since the start")
    expect(start).to_contain_text("no change in three digits for 2 clients")
    expect(page.locator("#untrained")).to_contain_text(
        "A loss of 13.430 is that of a model that does not know"
    )


def test_addresses_open_rounds_and_clients_without_the_token(
    page: Page, served: Served, two_rounds: tuple[str, list[Silo]]
) -> None:
    federation_id, silos = two_rounds
    _open(page, served, f"{federation_id}/rounds/2")
    expect(page.locator("#headline")).to_have_text("Round 2 of 3: published")
    rows = [row.locator("th, td").all_inner_texts() for row in page.locator("#clients tbody tr").all()]
    heads = page.locator("#clients thead th").all_inner_texts()
    shown = [dict(zip(heads, row, strict=True)) for row in rows]
    assert sorted(row["loss trained"] for row in shown) == ["0.400", "0.500"]
    assert {row["loss served"] for row in shown} == {"0.600"}
    page.locator("#clients tbody a").first.click()
    expect(page.locator("#rounds tbody tr")).to_have_count(3)
    client_id = page.url.rpartition("/")[2]
    assert client_id in {silo.client_id for silo in silos}
    assert page.url == f"{served.url}/#/{federation_id}/clients/{client_id}"
    expect(page.locator("#voices")).to_be_visible()
    page.go_back()
    expect(page.locator("#headline")).to_have_text("Round 2 of 3: published")
    page.get_by_role("link", name="round 1", exact=True).click()
    expect(page.locator("#headline")).to_have_text("Round 1 of 3: published")
    page.locator("#back a").first.click()
    expect(page.locator("#headline")).to_have_text("Round 3 of 3 is collecting updates")
    assert ADMIN_TOKEN not in page.evaluate(
        "location.href + document.title + performance.getEntries().map((e) => e.name)"
    )


def test_a_round_shows_ranks_that_differ(page: Page, served: Served) -> None:
    federation_id, silos = running_ranks(served, ["tiny-s-aaaaaaaaaaaa"] * 3)
    for silo, rank in zip(silos, (2, 3, 4), strict=True):
        sent = update_body(silo, 1, join(silo, 1), random_tensors(layout_of_rank(rank), rank))
        assert put(silo, 1, sent).status_code == 201
    _open(page, served, f"{federation_id}/rounds/1")
    place = page.locator("#clients thead th").all_inner_texts().index("rank")
    shown = [
        row.locator("th, td").all_inner_texts()[place] for row in page.locator("#clients tbody tr").all()
    ]
    assert sorted(shown) == ["2", "3", "4"]


@pytest.mark.parametrize(
    ("fragment", "message"),
    [
        ("fed_not_here", "There is no federation fed_not_here"),
        ("{}/rounds/99", "Round 99 does not exist"),
        ("{}/clients/cli_not_here", "Client cli_not_here does not exist"),
    ],
)
def test_an_unknown_address_links_back(page: Page, served: Served, fragment: str, message: str) -> None:
    federation_id, _ = running(served)
    _open(page, served, fragment.format(federation_id))
    expect(page.get_by_role("heading", name=message)).to_be_visible()
    page.locator("#absent-part a").click()
    expect(page.locator("#headline")).to_contain_text("Round 1 of 3")


def test_an_unreachable_coordinator_is_reported_above_old_state(page: Page, served: Served) -> None:
    federation_id, _ = running(served)
    _open(page, served, federation_id)
    page.route("**/v1/**", lambda route: route.abort("connectionrefused"))
    expect(page.get_by_role("alert")).to_contain_text("does not answer", timeout=10_000)
    expect(page.locator("#outage")).to_contain_text("The page shows the state of")
    expect(page.locator("#headline")).to_contain_text("Round 1 of 3")
    page.unroute("**/v1/**")
    expect(page.locator("#outage")).to_be_hidden(timeout=10_000)


def test_a_slow_coordinator_is_waited_for(page: Page, served: Served) -> None:
    """Every list takes longer than the time between two refreshes."""
    federation_id, _ = running(served)

    def slowly(route: Route) -> None:
        time.sleep(2.0)
        route.continue_()

    page.route("**/v1/federations/**", slowly)
    enter(page, served, federation_id)
    expect(page.locator("#headline")).to_contain_text("Round 1 of 3", timeout=60_000)
    page.unroute("**/v1/federations/**")


def test_a_refresh_leaves_focus_and_open_parts_alone(page: Page, served: Served) -> None:
    federation_id, silos = running(served)
    _open(page, served, federation_id)
    page.get_by_text("What the numbers mean").click()
    link = page.locator("#clients tbody a").first
    link.focus()
    deliver(silos[0], 1, values(1.0))
    expect(page.locator("#clients")).to_contain_text("arrived", timeout=10_000)
    expect(link).to_be_focused()
    expect(page.get_by_text("Exponential of the loss")).to_be_visible()


def test_tables_and_regions_have_accessible_names(
    page: Page, served: Served, two_rounds: tuple[str, list[Silo]]
) -> None:
    _open(page, served, two_rounds[0])
    for table in page.locator("table").all():
        assert table.locator("caption").inner_text()
        assert table.locator("th[scope=row]").count() > 0
    for region in page.get_by_role("region").all():
        assert region.get_attribute("aria-label") or region.get_attribute("aria-labelledby")
    expect(page.get_by_label("Federation")).to_be_visible()
    assert page.locator("html").get_attribute("lang") == "en"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_views_fit_narrow_and_wide_windows(
    page: Page, served: Served, two_rounds: tuple[str, list[Silo]], width: int, theme: str
) -> None:
    federation_id, silos = two_rounds
    served.enrol(federation_id, LONG_NAME)
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 800})
    _open(page, served, federation_id)
    for fragment in ("", "/rounds/2", f"/clients/{silos[0].client_id}"):
        page.goto(f"{served.url}/#/{federation_id}{fragment}")
        expect(page.locator("#view")).to_have_attribute("aria-busy", "false")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert _weakest_contrast(page) >= 4.5, "WCAG 2.2 AA, text of normal size"


def _weakest_contrast(page: Page) -> float:
    """Return the smallest contrast of a text and the opaque background behind it."""
    return float(
        page.evaluate(
            """() => {
              const channels = (colour) => colour.match(/[0-9.]+/g).map(Number);
              const over = (top, below) => {
                const alpha = top[3] === undefined ? 1 : top[3];
                return [0, 1, 2].map((i) => alpha * top[i] + (1 - alpha) * below[i]);
              };
              const behind = (node) => {
                const below = node.parentElement ? behind(node.parentElement) : [255, 255, 255];
                return over(channels(getComputedStyle(node).backgroundColor), below);
              };
              const light = (rgb) => rgb.map((c) => c / 255)
                .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
                .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
              const texts = [...document.querySelectorAll("main *")].filter((node) =>
                !node.closest("svg, .unseen") && node.getClientRects().length
                && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()));
              return Math.min(...texts.map((node) => {
                const [a, b] = [light(channels(getComputedStyle(node).color)), light(behind(node))];
                return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
              }));
            }"""
        )
    )
