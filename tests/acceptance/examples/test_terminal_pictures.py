"""Recordings of a repeatedly drawing command, and their pictures."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from rich.text import Text

from examples.screenshots.federations import ScreenshotsFailed
from examples.screenshots.terminal import COLUMNS, Recording, moments, svg_of
from studies.coordinator_process import TESSERA, quiet_environment
from tests.scene.coordinator import ADMIN_TOKEN, Served
from tests.scene.rounds import one_round, plan, running
from tests.scene.waiting import wait_until


@pytest.mark.slow
def test_a_followed_round_is_recorded_to_its_end(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **plan(rounds={"total": 1}))
    arguments = ["round", "show", federation_id, "1", "--watch", "--interval", "0.1"]
    environment = quiet_environment(TESSERA_URL=coordinator.url, TESSERA_TOKEN=ADMIN_TOKEN)
    with Recording([*TESSERA, *arguments], environment) as recording:
        wait_until(lambda: any("0 joined" in text for text in recording.drawings()), seconds=60)
        one_round(coordinator, federation_id, silos, 1, [1.0, 3.0])
        wait_until(recording.has_ended, seconds=60)
    drawn = recording.drawings()
    before, after = moments(drawn, [lambda text: "open" in text, lambda text: "published" in text])
    assert max(map(len, Text.from_ansi(after).plain.splitlines())) <= COLUMNS
    picture = svg_of("tessera round show --watch", [before, after])
    text = "".join(ElementTree.fromstring(picture).itertext()).replace("\xa0", " ")
    assert "$ tessera round show --watch" in text
    assert text.index("0 joined") < text.index("2 joined, 2 arrived")
    assert picture.count("http") == 1  # the namespace: no font is fetched
    with pytest.raises(ScreenshotsFailed, match="moment 2"):
        moments(drawn, [lambda text: "published" in text, lambda text: "open" in text])
