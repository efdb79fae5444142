"""Bytes that a client sends and receives in a round of a bank of experts, beside the reference of Fed-VEMoE.

    python -m benchmarks.bank_bytes [--experts 6] [--summed 3] [--members 15]

Nothing is run: the bytes follow from the layout of a LoRA of rank 16 on q, k, v, o, gate and up. `summed`
is how many specialists have members enough for a sum, and so have changed when the next round begins. The
reference implementation of Fed-VEMoE serves all of its 13 slots in bfloat16 in every round, and a client
sends two experts back.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from schemas.maths.adapter import lora_layout, size
from schemas.secure_sum.encoding import modulus_for

RANK, BITS = 16, 16
SLOTS, SENT_SLOTS, BFLOAT16 = 13, 2, 2
FLOAT32, FLOAT16 = 4, 2
MODELS = {
    "Qwen2.5-0.5B": (24, 896, 128, 4864),
    "Qwen2.5-7B": (28, 3584, 512, 18944),
}
"""Layers, width, width of keys and values, inner width of the MLP."""


def expert_values(layers: int, width: int, keys: int, inner: int) -> int:
    """Return the number of values of one expert."""
    out = {"q": width, "k": keys, "v": keys, "o": width, "gate": inner, "up": inner}
    return size(lora_layout(layers, {role: (d_out, width) for role, d_out in out.items()}, RANK))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experts", type=int, default=6, help="active specialists")
    parser.add_argument("--summed", type=int, default=3, help="specialists that are summed in a round")
    parser.add_argument("--members", type=int, default=15, help="members of the sum, which set its modulus")
    options = parser.parse_args()
    modulus = modulus_for(options.members, BITS)
    table = Table(title=f"MB per client and round, {options.summed} of {options.experts} specialists summed")
    columns = (
        "model",
        "values",
        "reference down",
        "whole bank down",
        "changed down",
        "reference up",
        "masked up",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, shape in MODELS.items():
        values = expert_values(*shape)
        octets = (
            SLOTS * BFLOAT16 * values,
            (FLOAT32 + options.experts * FLOAT16) * values,
            (FLOAT32 + options.summed * FLOAT16) * values,
            SENT_SLOTS * BFLOAT16 * values,
            modulus.packed_bytes((1 + options.summed) * values),
        )
        table.add_row(name, f"{values:,}", *(f"{count / 1e6:.0f}" for count in octets))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
