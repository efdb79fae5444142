"""The demo on a real model, without the model: tickets, plans, table, picture and last line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from math import nan
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from rich.console import Console

from client_agent.training.data import load_data
from examples.agents import DemoFailed
from examples.demo import pictures, question, report
from examples.demo.cast import ALONE, FEDERATED, NAME, Cast
from examples.demo.federated import FederatedResult
from examples.demo.narration import Narrator
from examples.demo.question import Answers
from examples.demo.run import require_whole
from examples.demo.schemes import DATA, SCHEMES, read_tickets, rows
from examples.demo.setting import Setting, schedule
from examples.demo_tiny.silos import MODELS
from studies.methods import methods_of, plan_of, require_equal_training

FILES = [(scheme, side) for scheme in SCHEMES for side in ("train", "test")]


@pytest.fixture
def cast(tmp_path: Path) -> Cast:
    (tmp_path / "smollm2").symlink_to(MODELS["S"])
    return Cast.of(tmp_path, seed=0)


def test_the_rows_are_those_of_the_tickets() -> None:
    for scheme, side in FILES:
        stored = (DATA / scheme / f"{side}.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in stored] == list(rows(scheme, side))


def test_tickets_differ_and_are_in_one_file_each() -> None:
    tickets = [ticket for subject in read_tickets().values() for ticket in subject]
    assert len(tickets) == len(set(tickets)) == 240
    by_file = {place: {str(row["messages"]) for row in rows(*place)} for place in FILES}
    assert all(by_file[first].isdisjoint(by_file[second]) for first, second in combinations(FILES, 2))


def test_silos_have_disjoint_training_and_test_tickets(cast: Cast, tmp_path: Path) -> None:
    cast.write_data(tmp_path / "data")
    data = {
        desk.name: load_data(tmp_path / "data" / desk.name, validation_share=0) for desk in cast.helpdesks
    }
    trained = [example.key for silo in data.values() for example in silo.train]
    tested = {example.key for silo in data.values() for example in silo.test}
    assert len(trained) == len(set(trained)) == 32
    assert not set(trained) & tested
    assert {len(silo.test) for silo in data.values()} == {cast.study.tests}


def test_both_methods_have_equal_training(cast: Cast) -> None:
    alone, federated = cast.plan(ALONE), cast.plan(FEDERATED)
    require_equal_training({ALONE: alone, FEDERATED: federated})
    assert alone.training == federated.training
    assert alone.adapter == federated.adapter
    assert federated.strategy.name == "fedmosaic"
    assert federated.rounds.min_clients == len(cast.founders) == 3


def test_the_study_has_the_demos_methods_and_plans(cast: Cast) -> None:
    assert cast.study.methods == [ALONE, FEDERATED]
    assert cast.study.seeds == [0, 1, 2]
    for method in methods_of(cast.study):
        plan = plan_of(cast.study, method, cast.seed, None)
        assert plan.model_copy(update={"name": NAME}) == cast.plan(method.name)


def test_the_quick_cast_has_two_silos(cast: Cast) -> None:
    quick = cast.quick()
    plan = quick.plan(FEDERATED)
    assert [desk.name for desk in quick.helpdesks] == quick.founders == ["elmford", "greyhaven"]
    assert quick.latecomer is None
    assert (plan.rounds.total, plan.training.steps, plan.rounds.min_clients) == (1, 2, 2)
    assert (plan.scores.examples, quick.study.tests) == (4, 4)
    assert plan.training.learning_rate == cast.plan(FEDERATED).training.learning_rate


def score(loss: float, right: float) -> dict[str, object]:
    return {"loss": {"value": loss, "count": 16}, "exact_match": {"value": right / 16, "count": 16}}


def built(cast: Cast, alone: tuple[float, int] | None, federated: tuple[float, int]) -> report.Report:
    names = [desk.name for desk in cast.helpdesks]
    begun = {"served": score(4.3, 0), "trained": score(1.0, 1)}
    scores = {name: [begun, {"trained": score(*alone)}] for name in names} if alone is not None else None
    final = {name: [begun | {"final": score(*federated)}] for name in names}
    relevance = [[1 / len(names)] * len(names) for _ in names]
    result = FederatedResult("fed_1", final, names[::-1], relevance, 2e6, 3e6)
    answers = Answers("elmford", "No <light>.", "Network control.", dict.fromkeys(report.SIDES, "Hm."))
    return report.build(cast, scores, result, answers, 300.0)


def quick_report(cast: Cast, loss: float = 2.9) -> report.Report:
    figures = built(cast.quick(), None, (loss, 0))
    return replace(figures, plan=cast.plan(FEDERATED))  # 16 tickets, as `score` has


def with_loss(figures: report.Report, loss: float) -> report.Report:
    silo = figures.silos[0]
    federated = replace(silo.by_side["federated"], loss=loss)
    return replace(figures, silos=[replace(silo, by_side=dict(silo.by_side) | {"federated": federated})])


def with_tickets(figures: report.Report, count: int) -> report.Report:
    scores = figures.plan.scores.model_copy(update={"examples": count})
    return replace(figures, plan=figures.plan.model_copy(update={"scores": scores}))


def with_federation(figures: report.Report, **changes: Any) -> report.Report:
    return replace(figures, federation=replace(figures.federation, **changes))


def test_a_quick_report_claims_no_benefit(cast: Cast, tmp_path: Path) -> None:
    figures = quick_report(cast)
    require_whole(figures)
    assert re.search(r"4\.300 +0/16.*2\.900 +0/16", _printed(figures))
    page = report.write(figures, pictures.draw(figures), tmp_path).read_text()
    line = report.last_line(figures)
    assert "show nothing of what federating is worth" in line
    assert not re.search("ahead|behind|level|alone", line + _printed(figures), re.IGNORECASE)
    assert "2.900" in page
    assert "alone" not in page


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda figures: with_loss(figures, nan), "elmford: the federated side has no score"),
        (lambda figures: with_loss(figures, 4.3), "so nothing was trained"),
        (lambda figures: with_tickets(figures, 8), "has no score on 8 tickets"),
        (
            lambda figures: replace(figures, answers=replace(figures.answers, by_side={})),
            "the bare side wrote no answer",
        ),
        (
            lambda figures: with_federation(figures, relevance=[[1.0, 1.0]] * 2),
            "its weights of the silos add up to 2.000 instead of 1",
        ),
        (lambda figures: with_federation(figures, bytes_up=0), "no bytes were sent"),
    ],
)
def test_incomplete_run_is_refused(
    cast: Cast, change: Callable[[report.Report], report.Report], fault: str
) -> None:
    with pytest.raises(DemoFailed, match=re.escape(fault)):
        require_whole(change(quick_report(cast)))


@pytest.mark.parametrize(
    ("alone", "federated", "verdict", "words"),
    [
        ((0.8, 4), (0.4, 8), "ahead", "federating is ahead of training alone: mean loss 0.400 against 0.800"),
        ((0.8, 4), (1.2, 2), "behind", "federating is BEHIND training alone: it did not help here"),
        ((0.8, 4), (0.79, 9), "level", "level: it made no difference here"),
        ((0.8, 4), (0.4, 2), "mixed", "the figures disagree"),
        ((0.8, 4), (1.2, 6), "mixed", "the figures disagree"),
    ],
)
def test_the_last_line_follows_from_the_figures(
    cast: Cast, alone: tuple[float, int], federated: tuple[float, int], verdict: str, words: str
) -> None:
    figures = built(cast, alone, federated)
    assert figures.verdict == verdict
    line = report.last_line(figures)
    assert words in line
    assert f"{4 * federated[1]} of 64 tickets right against {4 * alone[1]}" in line
    ahead = 4 if federated[0] < alone[0] else 0
    assert f"a lower loss in {ahead} of 4 silos." in line


def test_disagreeing_figures_of_a_silo_are_explained(cast: Cast) -> None:
    assert report.disagreements(built(cast, (0.8, 4), (0.4, 8))) == []
    (why,) = report.disagreements(built(cast, (0.5, 2), (0.9, 9)))
    assert why.startswith("In elmford, greyhaven,")
    assert "different sides" in why
    assert "one draw of eight tickets per silo" in report.notes(built(cast, (0.8, 4), (0.4, 8)))[-1]
    assert report.notes(quick_report(cast)) == []


@pytest.mark.slow
def test_table_and_page_contain_all_figures(cast: Cast, tmp_path: Path) -> None:
    figures = built(cast, (0.8, 4), (0.4, 8))
    rows_shown = [line for line in _printed(figures).splitlines() if "scheme" in line]
    assert len(rows_shown) == 4
    assert all(re.search(r"4\.300 +0/16.*0\.800 +4/16.*0\.400 +8/16", row) for row in rows_shown)
    page = report.write(figures, pictures.draw(figures), tmp_path)
    assert report.last_line(figures) in page.read_text()
    assert "No &lt;light&gt;." in page.read_text()
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == "ahead"
    pictures.save(figures, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def _printed(figures: report.Report) -> str:
    console = Console(width=110, record=True)
    console.print(report.table(figures))
    return console.export_text()


def test_labels_of_the_picture_do_not_overlap(cast: Cast, tmp_path: Path) -> None:
    figures = built(cast, (0.413, 16), (0.412, 0))
    report.write(figures, {"overview": ""}, tmp_path)
    figure = pictures.overview(report.read(tmp_path / "report.json"))
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    assert len({round(axes.get_window_extent(renderer).height) for axes in figure.axes}) == 1
    boxes = [
        (text.get_text(), text.get_window_extent(renderer))
        for text in figure.findobj(Text)
        if text.get_text() and text.get_window_extent(renderer).width > 1  # else a tick without a place
    ]
    assert len(boxes) > 40
    assert not [label for label, box in boxes if not figure.bbox.fully_containsx(box.x1)]
    assert not [(a, b) for (a, box), (b, beside) in combinations(boxes, 2) if box.overlaps(beside)]


@pytest.mark.parametrize(
    ("alone", "tried", "words"),
    [
        (["Billing. A", "Metering. A"], 1, "alone and federated name different departments"),
        (["Metering. B", "Billing. A"], 2, "(of 2)"),
        (["Metering. B"] * 4, None, "The first held-out ticket of elmford"),
    ],
)
def test_the_shown_ticket_has_different_answers(
    cast: Cast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    alone: list[str],
    tried: int | None,
    words: str,
) -> None:
    texts = iter(alone)
    monkeypatch.setattr(
        question, "_by_side", lambda *_: {"bare": "Hm.", "alone": next(texts), "federated": "metering. C"}
    )
    plan = schedule(has_model=True, quick=False)
    setting = Setting(cast, tmp_path, (), Narrator(plan))
    cast.write_data(setting.data)
    answers = question.ask(setting)
    assert answers.tried == tried
    assert words in report.choice(answers)


@pytest.mark.long
def test_the_demo_completes_on_a_tiny_model(tmp_path: Path) -> None:
    model = tmp_path / "models" / "smollm2"
    shutil.copytree(MODELS["L"], model)  # the plan trains the last six layers
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 256}))
    (model / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    out = tmp_path / "out"
    command = [sys.executable, "-m", "examples.demo", "--models", str(model.parent), "--out", str(out)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    figures = json.loads((out / "report.json").read_text())
    assert f"mean loss {figures['mean_loss']['federated']:.3f}" in finished.stdout.splitlines()[-1]
    assert set(figures["answers"]["by_side"]) == set(report.SIDES)
    assert (out / "alone" / "saltmere" / "adapter.safetensors").is_file()
