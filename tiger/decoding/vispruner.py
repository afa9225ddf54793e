"""VisPruner (arXiv 2412.01818): the verifier's language model reads the chosen visual tokens only. Lossy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tiger.backbones.bank import VisualBank
from tiger.backbones.base import Backbone, ModelInputs
from tiger.backbones.grids import newline_tokens
from tiger.decoding.verifier import Verifier, VerifierState
from tiger.routing.pruning import check_shares, important_and_diverse, kept_of

PUBLISHED = 192 / 576


class VisPruner(Verifier):
    """A verifier that drops visual tokens before its language model, and so answers differently.

    Half of the kept tokens get most attention in the vision tower, half are chosen so that they differ.
    Tokens keep their positions, and newline tokens stay. Changed: the budget is a share, so that pictures of
    any size lose alike; the finer grid of a LLaVA picture is one picture and not tiles; tokens are compared
    behind the projector; a tower without class token gives the attention that patches receive, summed per
    token.

    Args:
        backbone: The verifier's backbone.
        keep: Share of the visual tokens of each picture, video or LLaVA's grid to keep, one token at least.

    Raises:
        ValueError: If `keep` is not above 0 and at most 1.
    """

    def __init__(self, backbone: Backbone, keep: float = PUBLISHED) -> None:
        super().__init__(backbone)
        check_shares([keep])
        self.share = keep

    def prefill(self, inputs: Sequence[ModelInputs], reserve: int) -> tuple[VerifierState, Tensor]:
        """Reads what is kept of the prompts; answers go on at the position behind the whole prompt."""
        state, logits = super().prefill(inputs, reserve)
        state.next_positions = [entry.next_position for entry in inputs]
        return state, logits

    def look(self, inputs: Sequence[ModelInputs]) -> tuple[Sequence[ModelInputs], list[VisualBank]]:
        """Encodes the images of B requests and drops tokens from prompts and banks alike."""
        banks = self.backbone.encode(inputs, use_importance=True)
        kept = [self.rows(bank) for bank in banks]
        pruned = [_prune(*both) for both in zip(inputs, banks, kept, strict=True)]
        return [entry for entry, _ in pruned], [bank for _, bank in pruned]

    def rows(self, bank: VisualBank) -> Tensor:
        """Ascending rows of a bank [N] that are kept."""
        assert bank.importance is not None
        device = bank.tokens.device
        newlines = torch.tensor(newline_tokens(bank.grids), dtype=torch.bool, device=device)
        kept, start = newlines.clone(), 0
        for grid in bank.grids:
            own = torch.arange(start, start + grid.size, device=device)
            own, start = own[~newlines[own]], start + grid.size
            chosen = important_and_diverse(
                bank.importance[own], bank.tokens[own], kept_of(self.share, len(own))
            )
            kept[own[chosen]] = True
        return kept.nonzero()[:, 0]


def _prune(entry: ModelInputs, bank: VisualBank, rows: Tensor) -> tuple[ModelInputs, VisualBank]:
    """A request without the visual tokens that are not among the rows of its bank."""
    stays = ~entry.visual
    stays[entry.visual.nonzero()[rows, 0]] = True
    shown = ModelInputs(entry.ids[stays], entry.position_ids[:, stays], entry.visual[stays])
    deepstack = tuple(layer[rows] for layer in bank.deepstack)
    return shown, VisualBank(bank.tokens[rows], bank.position_ids[:, rows], deepstack)
