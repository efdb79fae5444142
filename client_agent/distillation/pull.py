"""The divergence of a model from the mixture of its peers' outputs on public texts, as a loss term."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from client_agent.adapters.base import Penalty
from client_agent.model.next_bytes import NextBytes
from schemas.wire.outputs import Outputs

TEXTS_PER_STEP = 6
"""How many texts a step reads: half of the laboratory's twelve on every second step, for the same work."""


def pull_to_peers(public: NextBytes, mixture: Outputs, factor: float) -> Penalty:
    """Return factor * mean over rows of KL(q || p) [H(q) < H(p)], up to H(q), of mixture q and model p.

    The condition H(q) < H(p) means that a client learns only where its peers are more certain. Without it,
    the best clients become worse (docs/decisions/0069). The condition has no gradient. Bytes that the mixture
    does not list have probability zero.
    """
    listed = torch.from_numpy(mixture.bytes.astype(np.int64))  # (rows, TOP)
    shares = torch.from_numpy(mixture.shares.astype(np.float32))
    totals = shares.sum(dim=1, keepdim=True)
    # A row of zeros is one that no peer answered; it stays zero and pulls to nothing.
    shares = torch.where(totals > 0, shares / totals.clamp_min(1e-6), shares)
    entropies = -torch.special.xlogy(shares, shares).sum(dim=1)  # (rows,)

    def penalty(_: Mapping[str, nn.Parameter]) -> Tensor:
        # From torch's generator, whose state is in the checkpoint: a resumed round draws the same texts.
        drawn = torch.randperm(len(public.texts))[:TEXTS_PER_STEP].tolist()
        logs, rows = public.log_shares([public.texts[number] for number in drawn])  # (m, VALUES), (m,)
        listed_here, shares_here = listed[rows].to(logs.device), shares[rows].to(logs.device)
        divergence = -(shares_here * logs.gather(1, listed_here)).sum(dim=1)  # (m,)
        # Detached: with a gradient, the model could escape the pull by becoming overconfident.
        entropy = -(logs.detach().exp() * logs.detach()).sum(dim=1)
        is_surer = entropies[rows].to(logs.device) < entropy
        compared = int((shares_here.sum(dim=1) > 0).sum())
        return factor * divergence[is_surer].sum() / max(compared, 1)

    return penalty
