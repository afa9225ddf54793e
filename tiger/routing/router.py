"""The router: which visual tokens matter for the text about to be written (paper Eq. 6-9)."""

from __future__ import annotations

import math

from torch import Tensor, nn


class Router(nn.Module):
    """Scores bank tokens against the drafter's hidden state: s_i = (W_q h) . (W_v v_i) / sqrt(D).

    Args:
        hidden_size: Width D of the drafter.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)
        self.norm = nn.RMSNorm(hidden_size, elementwise_affine=False)
        self.scale = 1.0 / math.sqrt(hidden_size)

    def project(self, bank: Tensor) -> Tensor:
        """Keys W_v V [..., N, D] of bank tokens [..., N, D], computed once per request.

        The tokens are normalised first, because their scale differs between families and from that of `h`.
        """
        keys: Tensor = self.key(self.norm(bank))
        return keys

    def forward(self, hidden: Tensor, keys: Tensor) -> Tensor:
        """Scores [B, A, N] of keys [B, N, D] for hidden states [B, A, D]."""
        return (self.query(hidden) @ keys.transpose(-1, -2)) * self.scale
