"""The visual bank: what the vision side of a model makes of a request's images and videos."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiger.backbones.grids import Grid


@dataclass(frozen=True)
class VisualBank:
    """The visual tokens of one request after the projector, encoded once.

    Attributes:
        tokens: Visual tokens [N, D].
        position_ids: Positions [A, N].
        deepstack: Rows [N, D] to add after each of the first language layers (empty for most families).
        grids: Where the tokens lie on the images and videos, in token order; an image may have several.
        importance: How much attention the vision tower pays to each token [N], 0 for newline tokens; None
            unless asked for, see `Backbone.encode`.
    """

    tokens: Tensor
    position_ids: Tensor
    deepstack: tuple[Tensor, ...] = ()
    grids: tuple[Grid, ...] = ()
    importance: Tensor | None = None

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def with_global(self) -> VisualBank:
        """The bank with the pooled global token as row N (paper Eq. 6), at the mean position."""
        mean = self.position_ids.float().mean(1, keepdim=True).round().long()
        weights = self.importance
        return VisualBank(
            torch.cat([self.tokens, self.tokens.mean(0, keepdim=True)]),
            torch.cat([self.position_ids, mean], dim=1),
            tuple(torch.cat([rows, rows.mean(0, keepdim=True)]) for rows in self.deepstack),
            self.grids,
            None if weights is None else torch.cat([weights, weights.mean(0, keepdim=True)]),
        )
