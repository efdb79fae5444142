"""Generated text: the format of training, the likeliest tokens, complete characters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from client_agent.errors import TextTooLong, TokenizerUnfit
from client_agent.model.examples import Example, Turn, encode_example, encode_prompt
from client_agent.model.generation import AnswerStream, Decoding, completion
from client_agent.model.loading import BaseModel
from schemas.messages.federations import AdapterPlan
from tests.scene.models import inject_random_pq
from tests.scene.tensors import random_tensors
from tests.scene.tiny_models import character_tokenizer

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PLAN = AdapterPlan(rank=8, blocks=2, private_rank=2)


def test_prompt_ids_equal_those_before_a_trained_answer() -> None:
    tokenizer = character_tokenizer()
    example = Example("rev abc=", "cba")
    ids = encode_prompt("rev abc=", tokenizer, chat=False)
    whole = encode_example(example, tokenizer, 64)
    assert tuple(ids) == whole.ids[: whole.answer.index(True)]


def test_chats_prompt_is_the_users_turn() -> None:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = TEMPLATE
    whole = encode_example(Example("", "cba", (Turn("user", "rev abc="),)), tokenizer, 64)
    assert tuple(encode_prompt("rev abc=", tokenizer, chat=True)) == whole.ids[: whole.answer.index(True)]
    with pytest.raises(TokenizerUnfit, match="chat template"):
        encode_prompt("rev abc=", character_tokenizer(), chat=True)


def test_end_token_added_by_tokenizer_is_not_prompted() -> None:
    tokenizer = character_tokenizer()
    plain = encode_prompt("ab<eos>", tokenizer, chat=False)
    ends = [("<bos>", tokenizer.bos_token_id), ("<eos>", tokenizer.eos_token_id)]
    cast(Any, tokenizer).backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A $B <eos>", special_tokens=ends
    )
    assert encode_prompt("ab<eos>", tokenizer, chat=False) == plain
    assert plain[-1] == tokenizer.eos_token_id  # the one that was written
    assert encode_prompt("", tokenizer, chat=False) == [tokenizer.bos_token_id]


@pytest.mark.slow
def test_greedy_answers_equal_those_of_public_generation(each_architecture: BaseModel) -> None:
    base = each_architecture
    model, tokenizer = cast(Any, base.model), cast(Any, base.tokenizer)
    with inject_random_pq(base, PLAN) as adapter:
        adapter.load(random_tensors(adapter.layout, scale=0.3))
        lengths = set()
        for prompt in ("rev abc=", "k", "zz|9 <"):
            ids = encode_prompt(prompt, base.tokenizer, chat=False)
            whole = model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                max_new_tokens=24,
                do_sample=False,
                eos_token_id=[0, 1, 2],
                pad_token_id=0,
            )
            expected = tokenizer.decode(whole[0, len(ids) :], skip_special_tokens=True)
            parts: list[str] = []
            answer = completion(base, ids, Decoding(24), on_text=parts.append)
            assert "".join(parts) == answer.text == expected
            lengths.add(len(expected))
        assert max(lengths) > 0


def test_generation_stops_at_the_limit(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    ids = encode_prompt("rev abc=", base.tokenizer, chat=False)
    longest = completion(base, ids, Decoding(9))
    shorter = completion(base, ids, Decoding(3))
    assert shorter.text == longest.text[:3]
    assert (shorter.tokens, shorter.ended) == (3, "length")


def test_characters_of_several_tokens_are_streamed_whole() -> None:
    alphabet = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    prompt, answer = cast(Any, fast)("né="), cast(Any, fast)("日本é a")

    def parts(tokens: list[int]) -> list[str]:
        written: list[str] = []
        stream = AnswerStream(fast, prompt["input_ids"], on_text=written.append)
        for count in range(1, len(tokens) + 1):
            stream.read([*prompt["input_ids"], *tokens[:count]])
        stream.close()
        return written

    assert parts(answer["input_ids"]) == ["日", "本", "é", " ", "a"]
    assert parts(answer["input_ids"][:4]) == ["日", "\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_generation_ends_at_the_models_last_position(tiny: Callable[..., BaseModel], model_type: str) -> None:
    base = tiny(model_type, max_position_embeddings=12)
    cast(Any, base.tokenizer).eos_token = None  # nothing else shall end it
    cast(Any, base.tokenizer).bos_token = cast(Any, base.tokenizer).pad_token = None
    prompt = encode_prompt("abcdefghij", base.tokenizer, chat=False)
    text = completion(base, prompt, Decoding(500)).text
    assert 0 < len(text) <= 12 - len(prompt) + 1
    with pytest.raises(TextTooLong, match="reads 12 at most; shorten the prompt"):
        completion(base, [*prompt, *prompt], Decoding(1))


def test_stop_text_is_never_written() -> None:
    tokenizer = character_tokenizer()
    prompt = encode_prompt("ab<", tokenizer, chat=False)
    answer = [i for i in encode_prompt("<cab<<cad", tokenizer, chat=False) if i != tokenizer.bos_token_id]
    for stop, expected in (("<<c", "<cab"), ("ab<<ca", "<c"), ("<<<", "<cab<<cad"), ("d", "<cab<<ca")):
        parts: list[str] = []
        stream = AnswerStream(tokenizer, prompt, (stop, "zz"), parts.append)
        for count in range(1, len(answer) + 1):
            stream.read([*prompt, *answer[:count]])
            assert expected.startswith("".join(parts))
            if stream.stopped:
                break
        stream.close()
        assert "".join(parts) == stream.text == expected
        assert stream.stopped == (expected != "<cab<<cad")
