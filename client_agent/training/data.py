"""Split a silo's examples into training, validation and test set, and a probe set where experts are chosen.

The split depends on the examples' text only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path

from client_agent.console_counts import counted
from client_agent.data.load import BY_COLUMNS, RowOptions, load_examples
from client_agent.data.unread_parts import ALL_USED, UnreadParts
from client_agent.errors import DataInvalid
from client_agent.model.examples import Example
from client_agent.settings import MetricName
from client_agent.training.metrics import reference_number

TEST_SHARE = 0.2
VALIDATION_SHARE = 0.1
LARGEST_PROBE_SHARE = 1 / 3
MIN_PROBE = 8
MIN_VALIDATION = 16
"""The fewest validation examples that decide: about the rate, the personal model, or an expert."""

_FEWEST_DIFFERENT = 5

_Examples = tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class SiloData:
    """A silo's examples, and the errors of rows that were skipped.

    Attributes:
        train: examples of the training steps.
        validation: examples that choose the learning rate and the personal model; may be empty.
        test: examples of the reported scores; nothing is chosen by them.
        unused: what of the rows is not read.
        probe: examples whose losses choose among experts, see `with_probe`; empty by other strategies.
    """

    train: _Examples
    validation: _Examples
    test: _Examples
    skipped: tuple[str, ...] = ()
    unused: UnreadParts = ALL_USED
    probe: _Examples = ()

    @property
    def all(self) -> tuple[Example, ...]:
        held_out = (*self.validation, *self.test)
        return (*self.train, *held_out, *(e for e in self.probe if e not in self.validation))


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of the three sets of a silo; None = a share of the others."""

    train: str
    validation: str | None
    test: str | None


def resolved(
    train: Path | str, validation: Path | str | None = None, test: Path | str | None = None
) -> Sources:
    """Return the sources of a silo's data; a folder with train.jsonl may hold the others as well."""
    folder = Path(train)
    if not (folder / "train.jsonl").is_file():
        return Sources(str(train), _text(validation), _text(test))
    in_folder = {name: folder / f"{name}.jsonl" for name in ("validation", "test")}
    held_out = {name: str(file) for name, file in in_folder.items() if file.is_file()}
    return Sources(
        str(folder / "train.jsonl"),
        _text(validation) or held_out.get("validation"),
        _text(test) or held_out.get("test"),
    )


def _text(source: Path | str | None) -> str | None:
    return str(source) if source is not None else None


def load_data(
    train: Path | str,
    test: Path | str | None = None,
    *,
    validation: Path | str | None = None,
    test_share: float = TEST_SHARE,
    validation_share: float = VALIDATION_SHARE,
    rows: RowOptions = BY_COLUMNS,
) -> SiloData:
    """Load the examples of a silo; a folder may hold train.jsonl, validation.jsonl and test.jsonl.

    Without a test source, `test_share` of the training source is held out; without a validation source,
    `validation_share` of what is left. Both are chosen by digest (`split_digests`): an example stays in its
    set when the source grows, unless it gets its first twin, and duplicates and examples of one prompt are in
    the same set; `with_test` has another exception. The validation set may be empty.

    Raises:
        DataInvalid: a source cannot be read, is empty or has a bad row, or the training or test set is empty.
    """
    sources = resolved(train, validation, test)
    loaded = {
        name: load_examples(source, rows)
        for name, source in (
            ("train", sources.train),
            ("validation", sources.validation),
            ("test", sources.test),
        )
        if source is not None
    }
    examples = loaded["train"].examples
    # Both sets are chosen by the digests of the whole source: what is left may have too few prompts.
    digests = split_digests(examples)
    if "test" in loaded:
        tests = loaded["test"].examples
    else:
        examples, tests = with_test(examples, str(train), test_share, digests)
    if "validation" in loaded:
        validations = loaded["validation"].examples
    else:
        examples, validations = with_validation(examples, validation_share, digests)
    skipped = tuple(error for source in loaded.values() for error in source.skipped)
    unused = reduce(or_, (source.unused for source in loaded.values()))
    return SiloData(examples, validations, tests, skipped, unused)


def without_held_out(data: SiloData) -> SiloData:
    """Return data without the training examples that have the prompt of a validation or test example.

    Losses of held-out examples leave a silo without noise, so private training leaves these examples out.

    Raises:
        DataInvalid: no training example is left.
    """
    held_out = (*data.validation, *data.test)
    twins = {example.key for example in twins_between(data.train, held_out)}
    if not twins:
        return data
    training = tuple(example for example in data.train if example.key not in twins)
    if not training and len({example.prompt_key for example in data.all}) < _FEWEST_DIFFERENT:
        # A hundred answers to one prompt, which `split_digests` divides by their own digests.
        equal = {example.key for example in held_out}
        training = tuple(example for example in data.train if example.key not in equal)
    if not training:
        raise DataInvalid(
            "every training example has the prompt of a validation or test example, and private training "
            "(privacy.training) leaves these out; name other held-out examples: test in silo.toml"
        )
    return replace(data, train=training)


def with_test(
    examples: _Examples,
    source: str,
    test_share: float = TEST_SHARE,
    digests: Mapping[str, str] | None = None,
) -> tuple[_Examples, _Examples]:
    """Split examples into the others and the test set, by digest.

    With five or more different examples, neither set is empty: if no digest is below the share, the example
    with the smallest is a test example; if all are, the one with the largest is not.

    Raises:
        DataInvalid: one of both is empty; `source` names the data.
    """
    digests = split_digests(examples) if digests is None else digests
    training, tests = _split(examples, test_share, digests, digits=slice(0, 8))
    keys = sorted({digests[example.key] for example in examples})
    if len(keys) >= _FEWEST_DIFFERENT and not (training and tests):
        # By digest again, so that the choice does not depend on the order of rows.
        moved = keys[:1] if training else keys[:-1]
        training = tuple(example for example in examples if digests[example.key] not in moved)
        tests = tuple(example for example in examples if digests[example.key] in moved)
    if training and tests:
        return training, tests
    missing = "hold one out for scores" if training else "leave one to train on"
    different = "" if len(keys) > 1 or len(examples) == 1 else "; they are equal, so that all are in one set"
    raise DataInvalid(
        f"{source} has too few examples ({len(examples)}) for a share of {test_share:.0%}, chosen by their "
        f"text, to {missing}{different}; add examples until {_FEWEST_DIFFERENT} are different, or name "
        "held-out ones: test in silo.toml, --test of `tessera agent init`"
    )


def with_validation(
    examples: _Examples,
    validation_share: float = VALIDATION_SHARE,
    digests: Mapping[str, str] | None = None,
) -> tuple[_Examples, _Examples]:
    """Split training examples into training and validation set by digest; the training set is never empty."""
    digests = split_digests(examples) if digests is None else digests
    # Other digits than those of the test set: the same ones would be below no second share.
    training, validation = _split(examples, validation_share, digests, digits=slice(8, 16))
    return (training, validation) if training else (examples, ())


def with_probe(data: SiloData, most: int) -> SiloData:
    """Return data with a probe set, by which experts are chosen: examples that are not trained on.

    The probe set is the validation set if 16 or more of its examples are not in training. Otherwise about
    `most` different training examples, at most a third, are held out by digest. With fewer than 8 there is no
    probe set, and all examples stay in training. Examples that are in the validation or test set stay too.
    The share falls while the source grows and digests are fixed, so a trained example never becomes a probe.
    """
    trained = {example.key for example in data.train}
    validation = tuple(example for example in data.validation if example.key not in trained)
    if len({example.key for example in validation}) >= MIN_VALIDATION:
        return replace(data, probe=validation)
    held_out = {example.key for example in (*data.validation, *data.test)}
    candidates = {example.key for example in data.train} - held_out
    # The share falls while the source grows, so that no trained example becomes a probe later.
    share = min(LARGEST_PROBE_SHARE, most / len(candidates)) if candidates else 0.0
    below = tuple(example for example in data.train if example.key in candidates)
    # Digests of all examples: a prompt must be in one set, with the validation and the test set as well.
    _, chosen = _split(below, share, split_digests(data.all), digits=slice(16, 24))
    keys = {example.key for example in chosen}
    if len(keys) < MIN_PROBE:
        return data
    training = tuple(example for example in data.train if example.key not in keys)
    return replace(data, train=training, probe=chosen)


def with_metrics(examples: _Examples, metrics: tuple[MetricName, ...] | None) -> _Examples:
    """Return test examples that are scored by the metrics of the settings; None = by their format's.

    Raises:
        DataInvalid: an example cannot be scored by one of them.
    """
    if metrics is None:
        return examples
    for example in examples:
        for name in metrics:
            if fault := _unscored(example, name):
                raise DataInvalid(
                    f"metrics: {name} {fault}, such as {example.completion[:40]!r}; remove {name} from "
                    "metrics, or set format to one that it fits"
                )
    return tuple(replace(example, metrics=metrics) for example in examples)


def _unscored(example: Example, metric: MetricName) -> str | None:
    """Return the reason why a metric cannot score an example; None if it can."""
    if metric == "option_accuracy":
        return None if example.options else "cannot score an answer without options"
    if example.is_raw_text:
        return "cannot score raw text"
    references = example.references or (example.completion,)
    if metric == "number" and all(reference_number(reference) is None for reference in references):
        return "cannot score an answer without a number"
    return None


def _split(
    examples: _Examples, share: float, digests: Mapping[str, str], *, digits: slice
) -> tuple[_Examples, _Examples]:
    """Return the others and the chosen: those whose digits of the digest are below the share."""
    keys = {example.key for example in examples}
    chosen = {key for key in keys if int(digests[key][digits], 16) < share * 2**32}
    return (
        tuple(e for e in examples if e.key not in chosen),
        tuple(e for e in examples if e.key in chosen),
    )


def split_digests(examples: Sequence[Example]) -> dict[str, str]:
    """Return by each example's key the digest that puts it in a set.

    Examples that share a prompt get the digest of the prompt, so that they are in one set; others get their
    own. If there are fewer than five different prompts, all get their own.
    """
    counted_examples = counted(examples, "comparing prompts", len(examples))
    prompts = {example.key: example.prompt_key for example in counted_examples}
    counts = Counter(prompts.values())
    if len(counts) < _FEWEST_DIFFERENT:
        return {key: key for key in prompts}
    return {key: prompt if counts[prompt] > 1 else key for key, prompt in prompts.items()}


def twins_between(first: Sequence[Example], second: Sequence[Example]) -> _Examples:
    """Return the examples of the first set whose prompt is one of the second, up to case, spaces and form."""
    if not second:
        return ()
    prompts = {example.prompt_key for example in second}
    return tuple(example for example in first if example.prompt_key in prompts)
