"""Load the weights of a model with transformers, and refuse files that do not fit it exactly.

transformers initialises tensors that the files lack at random, and ignores tensors that the model does not
have; both are a warning there.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from transformers import AutoModelForCausalLM, PreTrainedModel

from client_agent.errors import CheckpointIncomplete

_UNUSED: Mapping[str, re.Pattern[str]] = {
    "images and sound": re.compile(
        r"^(model\.)?(vision|visual|image|audio|speech|multi_modal|multimodal|mm_|embed_vision|embed_audio)"
    ),
    "the prediction of several tokens at once": re.compile(r"(^|\.)mtp(\.|_)"),
}
"""Tensors that do not change a text model's function, by what they are for.

transformers itself ignores rotary frequencies and the further parts that an architecture's class lists.
"""
_UNCONVERTED = re.compile(r"^(\S+)\s+\|\s+\S*CONVERSION", re.MULTILINE)
"""Rows of the table that transformers logs; the returned report lacks these."""
_NAMED = 4

log = logging.getLogger(__name__)


def _is_none_added(_: str) -> bool:
    return False


def load_complete(
    source: str, *, is_added: Callable[[str], bool] = _is_none_added, **options: Any
) -> PreTrainedModel:
    """Load a causal language model; its tensors and those of the files must be the same.

    A tied tensor comes from the tensor that it is tied to. Tensors of other modalities may be left over.

    Args:
        source: a folder or hub id; `options` are those of `from_pretrained`.
        is_added: whether a tensor may be missing because the caller sets it afterwards.

    Raises:
        CheckpointIncomplete: the files lack a tensor, or have one of another shape or one too many.
    """
    place = f"{source}/{options['gguf_file']}" if "gguf_file" in options else source
    with _reported() as reports:
        try:
            model, info = cast(Any, AutoModelForCausalLM).from_pretrained(
                # Mismatches are reported with all names here, where transformers would stop at the first.
                source,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **options,
            )
        except RuntimeError as error:
            unconverted = _UNCONVERTED.findall("\n".join(reports))
            if not unconverted:
                raise
            (fault,) = _listed("tensors that cannot be combined", unconverted)
            raise CheckpointIncomplete(_misfit(place, [fault])) from error
    faults = [
        *_listed("missing tensors", [name for name in info["missing_keys"] if not is_added(name)]),
        *_listed("tensors of another shape", _shapes(info["mismatched_keys"])),
        *_listed("tensors that are in no layer", _unexpected(place, info["unexpected_keys"])),
    ]
    if faults:
        raise CheckpointIncomplete(_misfit(place, faults))
    return cast(PreTrainedModel, model)


def _misfit(place: str, faults: Sequence[str]) -> str:
    return (
        f"{place}: the weights do not fit the model that its configuration describes ({'; '.join(faults)}); "
        "download the model again, or correct its config.json"
    )


def _unexpected(place: str, names: Sequence[str]) -> list[str]:
    """Return the tensors that are left over, and log those that a text model does not use."""
    unexplained = set(names)
    for purpose, pattern in _UNUSED.items():
        unused = {name for name in unexplained if pattern.search(name)}
        # A tensor counts once, for the first purpose that fits.
        unexplained -= unused
        if unused:
            log.info(
                "model: %s: %d tensors for %s are not used, such as %s; only text is trained",
                place,
                len(unused),
                purpose,
                min(unused),
            )
    return sorted(unexplained)


def _shapes(mismatched: Sequence[tuple[str, Sequence[int], Sequence[int]]]) -> list[str]:
    return [f"{name} {list(stored)}, not {list(needed)}" for name, stored, needed in mismatched]


def _listed(fault: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        ending = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"{fault}: {', '.join(sorted(names)[:_NAMED])}{ending}"


@contextmanager
def _reported() -> Iterator[list[str]]:
    """Collect the tables that transformers logs of a load, instead of printing them; other warnings stay."""
    logger, reports = logging.getLogger("transformers.modeling_utils"), list[str]()

    def is_other(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "LOAD REPORT" not in text:
            return True
        reports.append(text)
        return False

    logger.addFilter(is_other)
    try:
        yield reports
    finally:
        logger.removeFilter(is_other)
