"""Why a body is refused, one class per fact. `slug` is the last part of the problem type on the wire."""

from __future__ import annotations

from typing import ClassVar


class BodyRefused(ValueError):
    """A tensor body that is not what it must be; nothing of it was kept."""

    slug: ClassVar[str]
    title: ClassVar[str]
    status: ClassVar[int] = 422


class DecompressedTooLarge(BodyRefused):
    """The decoded body is larger than allowed."""

    slug, title, status = "decompressed-too-large", "The decoded body is larger than allowed", 413


class CodecWindow(BodyRefused):
    """The zstd frame asks for a larger window than RFC 9659 lets a receiver expect."""

    slug, title = "codec-window", "The zstd window is larger than 8 MiB"


class CodecTruncated(BodyRefused):
    """The zstd frame ends early."""

    slug, title = "codec-truncated", "The zstd frame is cut off"


class CodecTrailing(BodyRefused):
    """There is something beside the one zstd frame."""

    slug, title = "codec-trailing", "The body is not one plain zstd frame"


class CodecCorrupt(BodyRefused):
    """The zstd frame is damaged, or has no checksum to tell."""

    slug, title = "codec-corrupt", "The zstd frame is damaged or has no checksum"


class TensorHeader(BodyRefused):
    """The safetensors header cannot be read."""

    slug, title = "tensor-header", "The safetensors header is malformed"


class TensorSchema(BodyRefused):
    """Names or shapes are not the expected ones."""

    slug, title = "tensor-schema", "Tensor names or shapes are not the expected ones"


class TensorDtype(BodyRefused):
    """A tensor's type is not allowed here."""

    slug, title = "tensor-dtype", "A tensor has a dtype that is not allowed here"


class TensorLayout(BodyRefused):
    """Tensors overlap, leave holes, or the file goes on behind them."""

    slug, title = "tensor-layout", "Tensor data overlap, have holes or trailing bytes"


class TensorNonfinite(BodyRefused):
    """NaN, infinity, or mostly denormal values."""

    slug, title = "tensor-nonfinite", "A tensor has values that are not ordinary finite numbers"


class ManifestRefused(BodyRefused):
    """The manifest is missing, malformed or of the wrong kind."""

    slug, title = "metadata", "The manifest is not acceptable"


class RecipeRefused(BodyRefused):
    """A body says another recipe than the plan's, or is not written in the one that it says."""

    slug, title = "recipe", "The recipe is neither dense nor the plan's"


class SparseIndex(BodyRefused):
    """The places of sparse values are not written in the one way there is, or not as many as the values."""

    slug, title = "sparse-index", "The places of sparse values are malformed, or do not fit the values"


class StreamLength(BodyRefused):
    """All values travel, and their codes have fewer or more bytes than these take."""

    slug, title = "stream-length", "The codes of all values are too few or too many"


class QuantScale(BodyRefused):
    """A scale is no ordinary positive number, or there is not one for each block."""

    slug, title = "quant-scale", "Scales are not one a block, negative, not finite, or 0 where codes are not"


class QuantCode(BodyRefused):
    """A code that no encoder writes."""

    slug, title = "quant-code", "A quantised code is out of its range"
