"""Forward and backward passes over the anchors: inputs and output gradients of a model's linear layers.

Target strings follow from a seed and are equal for all models (docs/explanation/alignment.md).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.nn.attention import SDPBackend, sdpa_kernel

from client_agent.adapters.frames import present_modules, wrapped_layers
from client_agent.errors import AlignmentImpossible
from client_agent.model.forward import answer_logits
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import NO_TARGET, Batch, TokenizedText, by_token, collate, encode, pad_id
from schemas.maths.adapter import module_name
from schemas.maths.seeded_random import below, permutation
from schemas.messages.alignment import Anchor
from schemas.messages.federations import AdapterPlan

_MAX_LENGTH = 512  # tokens per anchor; longer anchors are truncated
_BATCH_TOKENS = 1024  # per batch, padding included; bounds the activations of a backward pass


@dataclass(frozen=True, slots=True)
class Site:
    """One (block, role) in one model. Sites with equal `source` have the same input activation.

    `rows` (d_out,) are the role's output rows of `linear`, which may serve several roles.
    """

    name: str
    source: str
    block: int
    linear: nn.Module
    rows: Tensor
    d_out: int
    d_in: int


@dataclass(frozen=True, slots=True)
class Text:
    """One tokenised anchor with the target token of each position."""

    anchor: int
    encoded: TokenizedText
    targets: tuple[int, ...]

    @property
    def read(self) -> list[int]:
        """Return the positions of tokens with characters; special tokens are not comparable."""
        return [t for t, (start, end) in enumerate(self.encoded.spans) if end > start]

    @property
    def predicting(self) -> list[int]:
        """Return the positions of tokens with characters and a target."""
        return [t for t in self.read if self.targets[t] != NO_TARGET]


@dataclass(frozen=True, slots=True)
class BatchResponses:
    """Inputs h by source (n, t, d_in) and output gradients g by site (n, t, d_out) of one batch."""

    texts: Sequence[Text]
    batch: Batch
    h: Mapping[str, Tensor]
    g: Mapping[str, Tensor]


def sites_of(base: BaseModel, plan: AdapterPlan) -> list[Site]:
    """List the (block, role)s of a model that the plan adapts, blocks first, then the plan's order."""
    sites: list[Site] = []
    ends = wrapped_layers(base, plan)
    for name, layer, role in present_modules(base, plan):
        placed, block = base.parts.of(layer, role), ends.index(layer)
        linear = base.parts.linear(base.model, layer, role)
        rows = base.parts.row_numbers(layer, role).to(base.device)
        sites.append(
            Site(name, module_name(block, "".join(placed.reads)), block, linear, rows, *placed.shape)
        )
    return sites


def random_targets(anchors: Sequence[Anchor], seed: int) -> list[str]:
    """Draw a random string for every anchor, as long as its answer, from the characters of all answers."""
    letters = alphabet(anchors)
    return [
        "".join(letters[i] for i in below(len(letters), len(anchor.answer), "target", seed, anchor.id))
        for anchor in anchors
    ]


def pseudo_task(anchors: Sequence[Anchor], seed: int, task: int, count: int) -> dict[int, str]:
    """Draw `count` anchors and permute the characters of their answers, both seeded by `task`."""
    letters = alphabet(anchors)
    order = permutation(len(letters), "pseudo-task", seed, task)
    table = str.maketrans({letter: letters[i] for letter, i in zip(letters, order, strict=True)})
    chosen = permutation(len(anchors), "pseudo-task anchors", seed, task)[:count]
    return {i: anchors[i].answer.translate(table) for i in chosen}


def alphabet(anchors: Sequence[Anchor]) -> list[str]:
    """Return the sorted characters of all answers without whitespace, which some tokenizers drop.

    Raises:
        AlignmentImpossible: every answer is blank.
    """
    # Sorted, because the order of a set differs between runs, and all models must draw the same targets.
    letters = sorted({letter for anchor in anchors for letter in anchor.answer if not letter.isspace()})
    if not letters:
        raise AlignmentImpossible("the anchors' answers are blank; ask the operator to replace the anchors")
    return letters


def with_targets(base: BaseModel, anchors: Sequence[Anchor], targets: Mapping[int, str]) -> list[Text]:
    """Tokenise the anchors that have a target string, and set the target token of every answer position.

    The input is the prompt and the true answer, as in public text. The target of an answer token that begins
    at a character is the target string's token on that character, or on the next if the tokenizer skips that
    character. So every answer token has a target. eos has none, since a random target for it is meaningless.
    """
    return [_with_target(base, index, anchors[index], target) for index, target in targets.items()]


def _with_target(base: BaseModel, index: int, anchor: Anchor, target: str) -> Text:
    text = encode(base.tokenizer, anchor.prompt, anchor.answer, max_length=_MAX_LENGTH, closed=False)
    # Not truncated: a target string may have more tokens than the answer, and every character needs one.
    target_text = encode(base.tokenizer, anchor.prompt, target, max_length=sys.maxsize, closed=False)
    first = len(anchor.prompt)
    on_character: list[int] = []  # target token by character of the target string
    for token, answer, (_, end) in zip(target_text.ids, target_text.answer, target_text.spans, strict=True):
        if answer:
            # A tokenizer may skip characters; those before this token's end get this token too.
            on_character += [token] * (end - first - len(on_character))
    last = len(on_character) - 1
    targets = [
        on_character[min(max(start - first, 0), last)] if answer else NO_TARGET
        for answer, (start, _) in zip(text.answer[1:], text.spans[1:], strict=True)
    ]
    return Text(index, text, (*targets, NO_TARGET))


def batches_of(texts: Sequence[Text]) -> Iterator[list[Text]]:
    group: list[Text] = []
    longest = 0
    for text in texts:
        length = len(text.encoded.ids)
        # Shorter texts are padded to the longest, so it counts for all of them.
        if group and max(longest, length) * (len(group) + 1) > _BATCH_TOKENS:
            yield group
            group, longest = [], 0
        group.append(text)
        longest = max(longest, length)
    if group:
        yield group


def run_batch(base: BaseModel, sites: Sequence[Site], texts: Sequence[Text]) -> BatchResponses:
    """Compute inputs and output gradients of all sites in one forward and one backward pass.

    The loss is the summed cross-entropy of the targets, so that a token's gradient does not depend on
    its batch. The math attention kernel has a deterministic backward pass on every device.

    Raises:
        AlignmentImpossible: the loss is NaN or infinite.
    """
    batch = collate(
        [text.encoded for text in texts],
        pad=pad_id(base.tokenizer),
        targets=[text.targets for text in texts],
    ).to(base.device)
    # Packs are compared by their digest, so equal inputs must yield equal bytes; the faster attention kernels
    # add in an order that varies.
    with _captured(sites) as (inputs, outputs), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        logits, targets = answer_logits(base, batch)
        # The sum: with a mean, a token's gradient would depend on the other texts of its batch.
        loss = nnf.cross_entropy(logits, targets, reduction="sum")
        if not loss.isfinite():
            raise AlignmentImpossible(
                f"the loss of {base.slug} on the anchors is not finite; load it in float32 or bfloat16"
            )
        # Gradients of the outputs only: those of the weights would need as much memory as the model.
        gradients = torch.autograd.grad(loss, list(outputs.values()))
    responses = {
        linear: by_token(gradient, batch) for linear, gradient in zip(outputs, gradients, strict=True)
    }
    return BatchResponses(
        texts,
        batch,
        {site.source: by_token(inputs[site.linear], batch) for site in sites},
        {site.name: responses[site.linear][..., site.rows] for site in sites},
    )


@contextmanager
def _captured(sites: Sequence[Site]) -> Iterator[tuple[dict[nn.Module, Tensor], dict[nn.Module, Tensor]]]:
    """Capture inputs and outputs of the linear layers of all sites; outputs are part of the graph."""
    inputs: dict[nn.Module, Tensor] = {}
    outputs: dict[nn.Module, Tensor] = {}

    def capture(linear: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        inputs[linear] = arguments[0].detach()
        # A frozen model has no graph; it begins at the first output that is asked for.
        outputs[linear] = output if output.requires_grad else output.requires_grad_()

    # Roles that share a linear layer, such as a fused q, k, v, need one hook.
    hooks = [linear.register_forward_hook(capture) for linear in {site.linear: None for site in sites}]
    try:
        yield inputs, outputs
    finally:
        for hook in hooks:
            hook.remove()
