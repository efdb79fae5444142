"""Silos with equal weights and different tokenizers: enrolment, and permitted later changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from client_agent.errors import CoordinatorRefused, ModelChanged, SettingsUnusable
from client_agent.identity.membership import PROFILE, enrol
from client_agent.model.loading import load_tokenizer
from client_agent.model.tokenizer_digests import tokenizer_digests
from client_agent.session import open_participant
from client_agent.settings import AgentSettings, read_settings
from client_agent.training.silo import open_silo
from client_agent.transport.client import CoordinatorApi
from schemas.messages.enrolment import Profile, TokenizerDigests
from tests.scene.agent_processes import MODELS
from tests.scene.agents import checked
from tests.scene.coordinator import Served
from tests.scene.silo_config import config

CHAT = [{"role": "user", "content": "rev ab="}, {"role": "assistant", "content": "ba"}]
TEMPLATE = "{% for m in messages %}{{ m.role }}={{ m.content }}{% if m.role == 'assistant' %}<eos>{% endif %}"
Parts = dict[str, Any]


def variant(folder: Path, change: Callable[[Parts], object] = len, **settings: Any) -> Path:
    """Copy the small example model with its tokenizer.json and tokenizer_config.json changed."""
    shutil.copytree(MODELS["S"], folder)
    for name, edit in (("tokenizer.json", change), ("tokenizer_config.json", lambda x: x.update(settings))):
        parts = json.loads((folder / name).read_text())
        edit(parts)
        (folder / name).write_text(json.dumps(parts))
    return folder


def swap_tokens(parts: Parts) -> None:
    vocabulary = parts["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]


def add_token(parts: Parts) -> None:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    parts["added_tokens"].append({"id": 48, "content": "ab", **plain})


def drop_bos(parts: Parts) -> None:
    parts["post_processor"] = None


def lower_case(parts: Parts) -> None:
    parts["normalizer"] = {"type": "Lowercase"}


def divide_digits(parts: Parts) -> None:
    digits = {"type": "Digits", "individual_digits": True}
    parts["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [parts["pre_tokenizer"], digits]}


def pad_and_truncate(parts: Parts) -> None:
    parts["truncation"] = dict(direction="Right", max_length=32, strategy="LongestFirst", stride=0)
    parts["padding"] = dict(strategy="BatchLongest", direction="Left", pad_to_multiple_of=8)
    parts["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
    parts["model"] = dict(reversed(parts["model"].items()))
    parts["model"]["vocab"] = dict(reversed(parts["model"]["vocab"].items()))


def digests(folder: Path) -> TokenizerDigests:
    return tokenizer_digests(load_tokenizer(str(folder)), chats=True)


@pytest.mark.parametrize(
    ("change", "settings", "parts"),
    [
        (swap_tokens, {}, ["vocabulary"]),
        (add_token, {}, ["added_tokens"]),
        (drop_bos, {}, ["post_processor"]),
        (lower_case, {}, ["normalizer"]),
        (divide_digits, {}, ["pre_tokenizer"]),
        (len, {"eos_token": "<pad>"}, ["post_processor"]),
        (len, {"chat_template": "{{ messages }}"}, ["chat_template"]),
        (pad_and_truncate, {"padding_side": "left", "model_max_length": 9}, []),
    ],
)
def test_tokenizer_parts_have_their_own_digests(
    tmp_path: Path, change: Callable[[Parts], object], settings: Parts, parts: list[str]
) -> None:
    plain = digests(variant(tmp_path / "plain", chat_template=TEMPLATE))
    changed = digests(variant(tmp_path / "other", change, **{"chat_template": TEMPLATE, **settings}))
    assert plain.differing(changed) == parts
    assert changed.differing(plain) == parts


def test_resaved_tokenizer_has_equal_digests(tmp_path: Path) -> None:
    folder = variant(tmp_path / "plain", chat_template=TEMPLATE)
    load_tokenizer(str(folder)).save_pretrained(tmp_path / "again")
    shutil.copy(folder / "config.json", tmp_path / "again")
    assert (tmp_path / "again" / "chat_template.jinja").exists()
    assert digests(tmp_path / "again") == digests(folder)


class Silos:
    """Silos of one federation, each with a model folder, enrolled over HTTP."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served, self.folder = served, folder
        self.federation_id = served.federation(name="tokens", strategy={"name": "fedavg"}, adapter=LORA)

    def settings(self, name: str, model: Path, **options: str) -> AgentSettings:
        place = self.folder / f"silo-{name}"
        place.mkdir(exist_ok=True)
        return read_settings(config(place, url=self.served.url, model=str(model), **options))

    def enrol(self, name: str, profile: Profile) -> None:
        with CoordinatorApi(self.served.url, key=None, deadline_seconds=0) as api:
            token = self.served.enrolment_token(self.federation_id, name)
            enrol(api, self.folder / f"silo-{name}" / "state", token=token, name=name, profile=profile)


LORA = {"kind": "lora", "rank": 2}


@pytest.fixture
def silos(served: Served, tmp_path: Path) -> Silos:
    return Silos(served, tmp_path)


def test_silo_with_another_tokenizer_is_refused(silos: Silos, tmp_path: Path) -> None:
    plain, same, swapped, added = (
        open_silo(silos.settings(name, variant(tmp_path / name, change))).profile
        for name, change in (
            ("plain", len),
            ("same", pad_and_truncate),
            ("swapped", swap_tokens),
            ("added", add_token),
        )
    )
    assert plain.base_model == same.base_model == swapped.base_model == added.base_model
    silos.enrol("plain", plain)
    silos.enrol("same", same)
    for name, profile, part in (("swapped", swapped, "vocabulary"), ("added", added, "added_tokens")):
        with pytest.raises(CoordinatorRefused, match=f"a tokenizer that differs in {part}") as refusal:
            silos.enrol(name, profile)
        assert refusal.value.slug == "tokenizer-mismatch"
    silos.enrol("earlier", swapped.model_copy(update={"tokenizer": None}))


def test_other_chat_template_is_refused_for_chat_data(silos: Silos, tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text(json.dumps({"messages": CHAT}) + "\n")
    template = TEMPLATE + "{% endfor %}"
    models = {
        "first": variant(tmp_path / "first", chat_template=template),
        "second": variant(tmp_path / "second", chat_template=template.replace("}}={{", "}}: {{")),
    }
    chat_silos = {
        name: open_silo(silos.settings(name, model, train=str(chats), test=str(chats))).profile
        for name, model in models.items()
    }
    prompts = open_silo(silos.settings("prompts", models["second"])).profile
    silos.enrol("first", chat_silos["first"])
    silos.enrol("prompts", prompts)
    with pytest.raises(CoordinatorRefused, match="another chat template; agree on one, and set it with"):
        silos.enrol("second", chat_silos["second"])


def test_changed_model_or_tokenizer_is_refused_after_enrolment(silos: Silos, tmp_path: Path) -> None:
    settings = silos.settings("plain", model := variant(tmp_path / "plain"))
    silos.enrol("plain", open_silo(settings).profile)
    with ExitStack() as stack:
        stack.enter_context(open_participant(settings))
    tokenizer = (model / "tokenizer.json").read_text()
    for change, reason in (
        (swap_tokens, r"tokenizer of llama-96x4-.* differs in vocabulary"),
        (None, r"enrolled with the base model llama-96x4-4e79db21c87f, and model is llama-96x4-.* now"),
    ):
        parts = json.loads(tokenizer)
        if change is not None:
            change(parts)
        else:
            written = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps({**written, "rms_norm_eps": 1e-4}))
        (model / "tokenizer.json").write_text(json.dumps(parts))
        with pytest.raises(ModelChanged, match=reason), open_participant(settings):
            pass
    finding = checked(tmp_path / "silo-plain" / "silo.toml")["model"]
    assert not finding.passed
    assert "enrolled with the base model" in finding.detail
    (settings.folder / PROFILE).unlink()
    with pytest.raises(SettingsUnusable, match=r"enrolled\.json is missing"), open_participant(settings):
        pass
