"""The curve of each client on the page, in a real browser: the best, the worst and chosen ones in front."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.system.page import enter
from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import one_round, plan, running, scored, send_scores

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def _scored_rounds(served: Served, clients: int) -> tuple[str, dict[str, Silo]]:
    """Return a federation with two scored rounds, and its silos by name, the best first."""
    rounds = {"total": 3, "min_clients": clients, "collect_seconds": 600}
    federation_id, silos = running(served, clients, **plan(rounds=rounds))
    for number in (1, 2):
        one_round(served, federation_id, silos, number, [1.0] * clients)
        for place, silo in enumerate(silos):
            assert send_scores(silo, number, scored({"loss": 1.0 + place / number, "f1": 0.5}))[0] == 204
    rows = served.admin.get(f"/v1/federations/{federation_id}/clients").json()["items"]
    names = {row["client_id"]: row["name"] for row in rows}
    return federation_id, {names[silo.client_id]: silo for silo in silos}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_curves_of_best_worst_and_chosen_clients_lead(page: Page, served: Served, theme: str) -> None:
    federation_id, silos = _scored_rounds(served, 7)
    best, second, *_, worst = silos
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    enter(page, served, federation_id)
    button = page.get_by_role("button", name="Show a curve per client")
    button.focus()
    page.keyboard.press("Enter")
    legend = page.locator("#curves-part .legend li")
    expect(legend).to_have_text([f"{best} (best)", f"{worst} (worst)", "5 other clients"])
    expect(page.locator("#curves-part figure > svg path")).to_have_count(7)
    picture = page.get_by_role("img", name="Held-out loss of each client by round")
    expect(picture).to_have_attribute(
        "aria-label",
        f"Held-out loss of each client by round: {best} (best) "
        f"1.000 in round 1, 1.000 in round 2; {worst} (worst) 7.000 in round 1, 4.000 in round 2",
    )
    page.locator("#curves-all summary").focus()
    page.keyboard.press("Enter")
    first = page.locator("#curves-values tbody tr").nth(1)
    expect(first.locator("th, td")).to_have_text([second, "bring to the front", "2.000", "1.500"])
    chosen = page.get_by_role("button", name=f"Curve of {second}", exact=True)
    chosen.focus()
    page.keyboard.press("Enter")
    expect(legend).to_have_text([f"{best} (best)", f"{worst} (worst)", second, "4 other clients"])
    expect(chosen).to_have_attribute("aria-pressed", "true")
    expect(chosen).to_be_focused()
    page.keyboard.press("Enter")
    expect(chosen).to_have_attribute("aria-pressed", "false")
    page.get_by_role("button", name="f1").click()
    expect(page.locator("#curves-part h2")).to_have_text(
        "Held-out f1 of each client by round (higher is better)"
    )


def test_the_page_of_a_client_compares_its_curve(page: Page, served: Served) -> None:
    federation_id, silos = _scored_rounds(served, 6)
    best, _, third, *_, worst = silos
    enter(page, served, f"{federation_id}/clients/{silos[third].client_id}")
    expect(page.locator("#among-part .legend li")).to_have_text(
        [third, f"{best} (best)", f"{worst} (worst)", "3 other clients"]
    )


def test_few_clients_are_charted_once(page: Page, served: Served) -> None:
    federation_id, silos = _scored_rounds(served, 3)
    best, middle, worst = silos
    enter(page, served, federation_id)
    legend = page.locator("#help-part .legend li")
    expect(legend).to_have_text(["mean of the clients", "worst client"])
    page.get_by_role("button", name="Show a curve per client").click()
    expect(legend).to_have_text([best, middle, worst])
    expect(page.locator("#curves-part figure")).to_have_count(0)
    expect(page.locator("#curves-part .note")).to_contain_text("Their curves are in the chart above.")
    expect(page.get_by_role("button", name="Curve of")).to_have_count(0)
    expect(page.get_by_role("button", name="Show earlier rounds too")).to_have_count(0)


def test_a_clients_chart_includes_the_only_other_client(page: Page, served: Served) -> None:
    federation_id, silos = _scored_rounds(served, 2)
    first, second = silos
    enter(page, served, f"{federation_id}/clients/{silos[first].client_id}")
    expect(page.locator("#history-part .legend li")).to_have_text(
        ["kept (its personal model)", "served", "trained", f"{second} (its personal model)"]
    )
    expect(page.locator("#among-part")).to_have_count(0)


def test_an_untrained_models_loss_does_not_stretch_charts(page: Page, served: Served) -> None:
    rounds = {"total": 4, "min_clients": 2}
    federation_id, silos = running(served, 2, **plan(rounds=rounds))
    for number, loss in ((1, 1.9), (2, 1.2), (3, 0.9), (4, 0.8)):
        one_round(served, federation_id, silos, number, [1.0] * 2)
        for silo in silos:
            sent = scored({"loss": loss})
            sent["served"]["loss"]["value"] = 13.43 if number == 1 else loss + 0.1
            assert send_scores(silo, number, sent)[0] == 204
    enter(page, served, f"{federation_id}/clients/{silos[0].client_id}")
    cut = page.locator("#history-part .cut")
    expect(cut).to_have_text("The axis is cut at 2.0. ▲ above it: 13.430 (served, round 1).")
    expect(page.locator("#history-part polygon")).to_have_count(1)
    expect(page.locator("#untrained")).to_contain_text("The start cost 13.430")
    labels = page.locator("#history-part figure > svg text").all_text_contents()
    assert "13" not in " ".join(labels)
    for width in (390, 700, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        box = page.locator("#history-part figure > svg")
        expect(box).to_be_visible()
        page.wait_for_function(SMALLEST_TEXT)


SMALLEST_TEXT = """() => {
  const svg = document.querySelector("#history-part figure > svg");
  return 12.5 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width >= 11;
}"""
"""Whether a text of the chart is at least 11 pixels high."""
