"""Reasons for rejecting a tensor body, one class each. `slug` is the last part of the problem type."""

from __future__ import annotations

from typing import ClassVar


class BodyRefused(ValueError):
    """A rejected tensor body; nothing of it was stored."""

    slug: ClassVar[str]
    title: ClassVar[str]
    status: ClassVar[int] = 422


class DecompressedTooLarge(BodyRefused):
    """The decoded body is larger than allowed."""

    slug, title, status = "decompressed-too-large", "The decoded body is larger than allowed", 413


class CodecWindow(BodyRefused):
    """The zstd frame needs a larger window than RFC 9659 allows."""

    slug, title = "codec-window", "The zstd window is larger than 8 MiB"


class CodecTruncated(BodyRefused):
    """The zstd frame ends early."""

    slug, title = "codec-truncated", "The zstd frame is truncated"


class CodecTrailing(BodyRefused):
    """The body has other bytes than the one zstd frame."""

    slug, title = "codec-trailing", "The body is not exactly one zstd frame"


class CodecCorrupt(BodyRefused):
    """The zstd frame is damaged, or has no checksum."""

    slug, title = "codec-corrupt", "The zstd frame is damaged or has no checksum"


class TensorHeader(BodyRefused):
    """The safetensors header cannot be read."""

    slug, title = "tensor-header", "The safetensors header is malformed"


class TensorSchema(BodyRefused):
    """Tensor names or shapes differ from the expected ones."""

    slug, title = "tensor-schema", "Tensor names or shapes differ from the layout"


class TensorDtype(BodyRefused):
    """The dtype of a tensor is not allowed."""

    slug, title = "tensor-dtype", "A tensor has a dtype that is not allowed"


class TensorLayout(BodyRefused):
    """Tensors overlap or leave gaps, or bytes follow the last tensor."""

    slug, title = "tensor-layout", "Tensor data overlap, leave gaps, or bytes follow them"


class TensorNonfinite(BodyRefused):
    """NaN, infinity, or mostly denormal values."""

    slug, title = "tensor-nonfinite", "A tensor has NaN, infinite or mostly denormal values"


class ManifestRefused(BodyRefused):
    """The manifest is missing, malformed or of the wrong kind."""

    slug, title = "metadata", "The manifest is missing, malformed or of another kind"


class RecipeRefused(BodyRefused):
    """The recipe of a body is not the plan's, or its encoding does not match its recipe."""

    slug, title = "recipe", "The recipe must be dense or the plan's"


class SparseIndex(BodyRefused):
    """The positions of sparse values are not in canonical form, or do not match the number of values."""

    slug, title = "sparse-index", "The positions of sparse values are malformed, or do not match the values"


class StreamLength(BodyRefused):
    """The codes of a dense update have the wrong number of bytes."""

    slug, title = "stream-length", "The number of codes does not match the layout"


class QuantScale(BodyRefused):
    """A scale is not a positive finite number, or there is not one per block."""

    slug, title = "quant-scale", "A scale is missing, negative, not finite, or 0 with non-zero codes"


class QuantCode(BodyRefused):
    """A code is outside the range of its format."""

    slug, title = "quant-code", "A quantised code is out of range"
