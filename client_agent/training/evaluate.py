"""Score a model on held-out examples: loss, likeliest options, and generated answers.

Loss and options need one forward pass over what their texts have in common, without generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, isfinite
from typing import Any, cast

import torch

from client_agent.errors import DataInvalid, LossNotFinite
from client_agent.model.examples import Example, encode_question, encode_some, learnt_parts, probe_set
from client_agent.model.generation import completions
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import TokenizedText, encode_learnt, tokens_of
from client_agent.training.metrics import GENERATED_METRICS, best
from client_agent.training.text_losses import TextLoss
from client_agent.training.token_losses import AnswerLosses, answer_losses
from schemas.messages.federations import ScoresPlan
from schemas.messages.scores import LOSS, PERPLEXITY, Score

_LARGEST_EXPONENT = 700.0

_Value = tuple[Example, str, float]
"""An example, a metric, and its value."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of a model.

    Attributes:
        loss: mean loss in nats per answer token, end-of-sequence included.
        teacher_forced_match: the share of texts in which each answer token is the likeliest one after the
            correct tokens before it. Greedy decoding reproduces exactly these texts.
        examples: the number of examples that the loss is of.
        metrics: scores of the metrics that the examples name.
        tasks: the scores of each task, loss and perplexity first; empty for examples of no named tasks.
        texts: the losses of each text, in order.
    """

    loss: float
    teacher_forced_match: float
    examples: int
    metrics: Mapping[str, Score] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Score]] = field(default_factory=dict)
    texts: Sequence[TextLoss] = ()

    def scores(self) -> dict[str, Score]:
        """Return the scores by name, loss and perplexity first."""
        return _with_perplexity(self.loss, self.examples) | dict(self.metrics)


def evaluate(
    base: BaseModel,
    examples: Sequence[Example],
    plan: ScoresPlan | None = None,
    *,
    max_length: int,
) -> Evaluation:
    """Score a model on at most `plan.examples` examples, chosen by digest (`probe_set`).

    The loss is of as many texts at most, of which a long raw text has several (`encode_some`).

    Raises:
        DataInvalid: there is no example, so that there is no loss.
        LossNotFinite: the model's output is NaN or infinite.
        TextTooLong: an example exceeds the base model's context.
    """
    plan = plan or ScoresPlan()
    chosen = probe_set(examples, plan.examples)
    texts = encode_some(base, chosen, plan.examples, max_length)
    # Texts and options together, since they often begin alike and share forward passes.
    answers = answer_losses(base, [*texts, *options_of_examples(base, chosen, max_length)])
    forced, options = answers[: len(texts)], answers[len(texts) :]
    values = [*_option_accuracy(chosen, options)]
    if plan.new_tokens:
        values += _generated(base, chosen, max_length, plan.new_tokens)
    tasks = _by_task(chosen, forced, values)
    return replace(_forced(forced), examples=len(chosen), metrics=_means(values), tasks=tasks)


def mean_loss(base: BaseModel, texts: Sequence[TokenizedText]) -> float:
    """Compute the mean loss of texts, in nats per answer token, end-of-sequence included.

    Raises:
        DataInvalid: there is no text.
        LossNotFinite: the model's output is NaN or infinite.
    """
    return teacher_forced(base, texts).loss


def teacher_forced(base: BaseModel, texts: Sequence[TokenizedText]) -> Evaluation:
    """Compute mean loss and teacher-forced match of texts.

    Raises:
        DataInvalid: there is no text.
        LossNotFinite: the model's output is NaN or infinite.
    """
    return _forced(answer_losses(base, texts))


def _forced(answers: Sequence[AnswerLosses]) -> Evaluation:
    if not answers:
        raise DataInvalid("there is no example to score; name held-out ones: test in silo.toml")
    # By token over all texts, so that short answers do not weigh more than in training.
    losses = torch.cat([answer.losses for answer in answers]).double()
    mean = float(losses.mean())
    if not isfinite(mean):
        raise LossNotFinite(f"the loss on the test set is {mean}; load the base model in float32 or bfloat16")
    texts = [TextLoss(float(answer.losses.double().sum()), len(answer.losses)) for answer in answers]
    matches = sum(answer.matches for answer in answers) / len(answers)
    return Evaluation(mean, matches, len(answers), texts=texts)


def _by_task(
    examples: Sequence[Example], answers: Sequence[AnswerLosses], values: Sequence[_Value]
) -> dict[str, dict[str, Score]]:
    """Compute the scores of each task, if all examples have one; each of these is one text."""
    if not all(example.task is not None for example in examples):
        return {}
    by_task: dict[str, list[torch.Tensor]] = {}
    for example, answer in zip(examples, answers, strict=True):
        by_task.setdefault(_task(example), []).append(answer.losses)
    return {
        task: _with_perplexity(float(torch.cat(losses).double().mean()), len(losses))
        | _means([value for value in values if _task(value[0]) == task])
        for task, losses in sorted(by_task.items())
    }


def _task(example: Example) -> str:
    return example.task.name if example.task is not None else ""


def _with_perplexity(loss: float, count: int) -> dict[str, Score]:
    values = {LOSS: loss, PERPLEXITY: exp(min(loss, _LARGEST_EXPONENT))}
    return {name: Score(value=value, count=count) for name, value in values.items()}


def _option_accuracy(examples: Sequence[Example], options: Sequence[AnswerLosses]) -> Iterator[_Value]:
    """Yield whether the right option is the likeliest, by mean log-likelihood of its tokens.

    `options` are of `options_of_examples`.

    The mean, instead of the sum, prefers no short options (Brown et al. 2020, section 2.4). Where all options
    are one token, or have the same ending, it is the sum.
    """
    # The mean, since a sum would prefer short options (Brown et al. 2020, section 2.4).
    means = iter([float(option.losses.double().mean()) for option in options])
    for example in _with_options(examples):
        likeliest = min(example.options, key={option: next(means) for option in example.options}.__getitem__)
        yield example, "option_accuracy", float(likeliest == example.completion)


def _with_options(examples: Sequence[Example]) -> list[Example]:
    return [example for example in examples if "option_accuracy" in example.metrics]


def options_of_examples(base: BaseModel, examples: Sequence[Example], max_length: int) -> list[TokenizedText]:
    """Tokenise examples that are scored by their options, once with each of these."""
    return [text for example in _with_options(examples) for text in _options(base, example, max_length)]


def _options(base: BaseModel, example: Example, max_length: int) -> tuple[TokenizedText, ...]:
    return base.tokens.get(
        "options",
        example,
        max_length,
        lambda: [_option(base, example, option, max_length) for option in example.options],
    )


def _question(base: BaseModel, example: Example, max_length: int) -> tuple[int, ...]:
    def tokenised() -> list[TokenizedText]:
        ids = encode_question(example, base.tokenizer, max_length)
        return [TokenizedText(tuple(ids), (False,) * len(ids), ())]

    return base.tokens.get("question", example, max_length, tokenised)[0].ids


def _option(base: BaseModel, example: Example, option: str, max_length: int) -> TokenizedText:
    """Tokenise an example with one of its options as answer, without the special tokens that close it.

    What is scored is the option, or its ending if the example has one.
    """
    parts = learnt_parts(replace(example, completion=option), base.tokenizer)
    start, end = parts.answer, parts.spans[-1][1]
    if example.ending:
        # Options are compared by the likelihood of the same ending after each of them.
        start = parts.text.rindex(example.ending.rstrip(), start)
    text = encode_learnt(
        base.tokenizer,
        parts.text,
        [(start, end)],
        max_length=max_length,
        special=not example.turns,
        closed=False,
        as_text=parts.as_text,
    )
    end, first = len(text.ids), text.answer.index(True)
    # Special tokens at the end are equal for all options, and would only dilute the mean.
    while end > first + 1 and text.ids[end - 1] in base.tokenizer.all_special_ids:
        end -= 1
    return TokenizedText(text.ids[:end], text.answer[:end], text.spans[:end])


def _generated(
    base: BaseModel, examples: Sequence[Example], max_length: int, new_tokens: int
) -> Iterator[_Value]:
    """Yield the metrics of greedily generated answers; a prompt too long for them loses its start."""
    chosen = [example for example in examples if not GENERATED_METRICS.keys().isdisjoint(example.metrics)]
    # In a small context the prompt keeps at least half of the room.
    new_tokens = min(new_tokens, max(1, base.positions // 2))
    longest = min(max_length, base.positions - new_tokens + 1)
    prompts = [_question(base, example, longest) for example in chosen]
    for example, text in zip(chosen, completions(base, prompts, max_new_tokens=new_tokens), strict=True):
        references = example.references or (_reference(base, example),)
        for name in example.metrics:
            if name in GENERATED_METRICS:
                yield example, name, best(GENERATED_METRICS[name], text, references)


def _reference(base: BaseModel, example: Example) -> str:
    """Return the right answer as it is generated: a call of a tool as the chat template renders it."""
    if not example.answer_fields:
        return example.completion
    parts = learnt_parts(example, base.tokenizer)
    answer = parts.text[parts.answer : parts.spans[-1][1]]
    ids, _ = tokens_of(base.tokenizer, answer, special=False)
    decode = cast(Any, base.tokenizer).decode
    return str(decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _means(values: Sequence[_Value]) -> dict[str, Score]:
    by_name: dict[str, list[float]] = {}
    for _, name, value in values:
        by_name.setdefault(name, []).append(value)
    return {name: Score(value=sum(v) / len(v), count=len(v)) for name, v in by_name.items()}
