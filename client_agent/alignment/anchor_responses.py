"""Ask a model about the anchors: what goes into its linear layers and which gradients come back.

Decides the target strings, which follow from a seed and are the same for every model, and which positions
count. Knows no frames. (fedmosaic.md section 3)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.nn.attention import SDPBackend, sdpa_kernel

from client_agent.adapters.frames import present_modules, wrapped_layers
from client_agent.errors import AlignmentImpossible
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import NO_TARGET, Batch, Encoded, answer_logits, collate, encode, pad_id
from schemas.maths.adapter import module_name
from schemas.maths.seeded_random import below, permutation
from schemas.messages.alignment import Anchor
from schemas.messages.federations import AdapterPlan

_MAX_LENGTH = 512  # tokens of an anchor that are read
_BATCH_TOKENS = 1024  # padding included; bounds the activations that a backward pass needs


@dataclass(frozen=True, slots=True)
class Site:
    """One (block, role) in one model. Sites with equal `source` read one and the same activation.

    The role's are the outputs `rows` (d_out,) of `linear`, which may serve other roles too.
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
    """One anchor, tokenised, and at each position the token of its target string that is asked for."""

    anchor: int
    encoded: Encoded
    targets: tuple[int, ...]

    @property
    def read(self) -> list[int]:
        """The positions of real characters; a special token's activation is not comparable."""
        return [t for t, (start, end) in enumerate(self.encoded.spans) if end > start]

    @property
    def predicting(self) -> list[int]:
        """The positions of real characters that have a target."""
        return [t for t in self.read if self.targets[t] != NO_TARGET]


@dataclass(frozen=True, slots=True)
class Answered:
    """A batch after one forward and one backward pass: h by source (n, t, d_in), g by site (n, t, d_out)."""

    texts: Sequence[Text]
    batch: Batch
    h: Mapping[str, Tensor]
    g: Mapping[str, Tensor]


def sites_of(base: BaseModel, plan: AdapterPlan) -> list[Site]:
    """List the (block, role)s of a model that the plan adapts, blocks first, then in the plan's order."""
    sites: list[Site] = []
    ends = wrapped_layers(base, plan)
    for name, block, role in present_modules(base, plan):
        group = next(group for group in base.parts.same_input if role in group)
        source = module_name(block, "".join(group))
        linear = base.parts.linear(base.model, ends[block], role)
        rows = base.parts.rows(base.model, role).to(base.device)
        sites.append(Site(name, source, block, linear, rows, *base.shapes[role]))
    return sites


def random_targets(anchors: Sequence[Anchor], seed: int) -> list[str]:
    """Give every anchor a random string as long as its answer, of the characters of all answers."""
    letters = alphabet(anchors)
    return [
        "".join(letters[i] for i in below(len(letters), len(anchor.answer), "target", seed, anchor.id))
        for anchor in anchors
    ]


def pseudo_task(anchors: Sequence[Anchor], seed: int, task: int, count: int) -> dict[int, str]:
    """Draw `count` anchors and send their answers through a permutation of characters, both by `task`."""
    letters = alphabet(anchors)
    order = permutation(len(letters), "pseudo-task", seed, task)
    table = str.maketrans({letter: letters[i] for letter, i in zip(letters, order, strict=True)})
    chosen = permutation(len(anchors), "pseudo-task anchors", seed, task)[:count]
    return {i: anchors[i].answer.translate(table) for i in chosen}


def alphabet(anchors: Sequence[Anchor]) -> list[str]:
    """Give the characters of all answers, in order, without blanks, which some tokenizers drop.

    Raises:
        AlignmentImpossible: there are none.
    """
    letters = sorted({letter for anchor in anchors for letter in anchor.answer if not letter.isspace()})
    if not letters:
        raise AlignmentImpossible("the anchors' answers are blank; have the operator set others")
    return letters


def asked(base: BaseModel, anchors: Sequence[Anchor], targets: Mapping[int, str]) -> list[Text]:
    """Tokenise the anchors that have a target string.

    The model reads prompt and true answer, as it would in public text, and is asked for the target at the
    answer's positions: at the token that begins at a character, for the target's token on that character, or
    the next one where the tokenizer leaves a character out. So every answer's token is asked for something,
    whatever the target. eos is left out, since nothing random is to be learnt about it.
    """
    return [_asked(base, index, anchors[index], target) for index, target in targets.items()]


def _asked(base: BaseModel, index: int, anchor: Anchor, target: str) -> Text:
    text = encode(base.tokenizer, anchor.prompt, anchor.answer, max_length=_MAX_LENGTH, closed=False)
    other = encode(base.tokenizer, anchor.prompt, target, max_length=sys.maxsize, closed=False)
    first = len(anchor.prompt)
    on_character: list[int] = []  # from the target's first character on
    for token, answer, (_, end) in zip(other.ids, other.answer, other.spans, strict=True):
        if answer:
            on_character += [token] * (end - first - len(on_character))
    last = len(on_character) - 1
    targets = [
        on_character[min(max(start - first, 0), last)] if answer else NO_TARGET
        for answer, (start, _) in zip(text.answer[1:], text.spans[1:], strict=True)
    ]
    return Text(index, text, (*targets, NO_TARGET))


def batches_of(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Cut texts, in order, into batches of at most `_BATCH_TOKENS` padded tokens."""
    group: list[Text] = []
    longest = 0
    for text in texts:
        length = len(text.encoded.ids)
        if group and max(longest, length) * (len(group) + 1) > _BATCH_TOKENS:
            yield group
            group, longest = [], 0
        group.append(text)
        longest = max(longest, length)
    if group:
        yield group


def answered(base: BaseModel, sites: Sequence[Site], texts: Sequence[Text]) -> Answered:
    """Run one batch: inputs and output gradients of all sites, from one forward and one backward pass.

    The loss is the summed cross-entropy of the targets, so that a token's gradient does not depend on
    its batch. The attention kernel is the one whose backward pass is deterministic on every device.

    Raises:
        AlignmentImpossible: the loss is NaN or infinite.
    """
    batch = collate(
        [text.encoded for text in texts],
        pad=pad_id(base.tokenizer),
        targets=[text.targets for text in texts],
    ).to(base.device)
    with _caught(sites) as (inputs, outputs), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        logits, targets = answer_logits(base.model, base.parts, batch)
        loss = nnf.cross_entropy(logits, targets, reduction="sum")
        if not loss.isfinite():
            raise AlignmentImpossible(
                f"the loss of {base.slug} on the anchors is not finite; load it in float32 or bfloat16"
            )
        gradients = torch.autograd.grad(loss, list(outputs.values()))
    of_module = dict(zip(outputs, gradients, strict=True))
    return Answered(
        texts, batch, inputs, {site.name: of_module[site.linear][..., site.rows] for site in sites}
    )


@contextmanager
def _caught(sites: Sequence[Site]) -> Iterator[tuple[dict[str, Tensor], dict[nn.Module, Tensor]]]:
    """Catch inputs (by source) and outputs (by linear layer) of all sites; outputs take part in the graph."""
    inputs: dict[str, Tensor] = {}
    outputs: dict[nn.Module, Tensor] = {}

    def catcher(source: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def catch(linear: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            inputs[source] = arguments[0].detach()
            outputs[linear] = output if output.requires_grad else output.requires_grad_()

        return catch

    sources = {site.linear: site.source for site in sites}
    hooks = [linear.register_forward_hook(catcher(source)) for linear, source in sources.items()]
    try:
        yield inputs, outputs
    finally:
        for hook in hooks:
            hook.remove()
