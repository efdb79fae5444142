"""A ticket, answered by the bare model, by the silo alone and by the silo in the federation."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from examples.agents import DemoFailed, Job, run_jobs
from examples.demo.alone import ADAPTER, PLAN
from examples.demo.cast import CONFIG
from examples.demo.setting import ANSWERS, Setting

_NEW_TOKENS = "48"
_AT_ONCE = 2
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Answers:
    """A held-out ticket of a silo, the answer of its own scheme, and the answers by side.

    `tried` is how many tickets were asked until training alone and the federation named different
    departments, None if they never did or nothing was trained alone.
    """

    silo: str
    ticket: str
    expected: str
    by_side: dict[str, str]
    tried: int | None = None


def ask(setting: Setting) -> Answers:
    """Ask held-out tickets of the first silo, in their order, until alone and federated differ in the queue.

    If none of a few does, the first ticket is shown.

    Raises:
        DemoFailed: a command failed.
    """
    narrator, silo = setting.narrator, setting.names[0]
    narrator.schedule.enter(ANSWERS)
    first: Answers | None = None
    for index, line in enumerate((setting.data / silo / "test.jsonl").read_text().splitlines()[:_TRIES]):
        narrator.step(f"answers: held-out ticket {index + 1} of {silo}, answered by every side")
        ticket, expected = (message["content"] for message in json.loads(line)["messages"])
        answers = Answers(silo, ticket, expected, _by_side(setting, silo, ticket))
        first = first or answers
        if "alone" not in answers.by_side:
            break
        if department(answers.by_side["alone"]) != department(answers.by_side["federated"]):
            return replace(answers, tried=index + 1)
        narrator.schedule.reach((index + 1) / _TRIES)
    if first is None:
        raise DemoFailed(f"{silo} has no held-out ticket; run the demo again")
    return first


def department(answer: str) -> str:
    """Return the queue that an answer begins with."""
    return answer.partition(".")[0].strip().casefold()


def _by_side(setting: Setting, silo: str, ticket: str) -> dict[str, str]:
    folder = setting.federated / silo
    common = ["generate", "--json", "--config", str(folder / CONFIG), "--prompt", ticket]
    common += ["--max-new-tokens", _NEW_TOKENS]
    jobs = [Job("federated", [*common, "--compare"], folder)]
    trained_alone = setting.alone / silo / ADAPTER
    if trained_alone.is_file():
        adapter = ["--adapter", str(trained_alone), "--plan", str(setting.alone / PLAN)]
        jobs.append(Job("alone", [*common, *adapter], folder))
    printed = {job.name: _texts(text) for job, text in run_jobs(setting.tessera, jobs, at_once=_AT_ONCE)}
    texts = dict(zip(("bare", "federated"), printed["federated"], strict=True))
    if "alone" in printed:
        (texts["alone"],) = printed["alone"]
    return texts


def _texts(printed: str) -> list[str]:
    # A model may end its answer at once, which is a result and no fault of the demo.
    return [answer["text"].strip() or "(empty)" for answer in json.loads(printed)["answers"]]
