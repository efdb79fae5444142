"""One ticket, answered by the bare model, by the silo alone and by the silo in the federation."""

from __future__ import annotations

import json
from dataclasses import dataclass

from examples.agents import Job, run_jobs
from examples.demo.alone import ADAPTER, PLAN
from examples.demo.cast import CONFIG
from examples.demo.setting import Setting

_NEW_TOKENS = "48"
_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Answers:
    """A held-out ticket of a silo, the answer of its own scheme, and the answers by side."""

    silo: str
    ticket: str
    expected: str
    by_side: dict[str, str]


def ask(setting: Setting, silo: str) -> Answers:
    """Ask the first held-out ticket of a silo with `tessera agent generate`.

    Raises:
        DemoFailed: a command failed.
    """
    first = (setting.data / silo / "test.jsonl").read_text().splitlines()[0]
    ticket, expected = (message["content"] for message in json.loads(first)["messages"])
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
    return Answers(silo, ticket, expected, texts)


def _texts(printed: str) -> list[str]:
    return [answer["text"].strip() for answer in json.loads(printed)["answers"]]
