"""A draft head for tests of training: one linear layer per token behind the root."""

import torch
from torch import nn

from tiger.drafting.base import TokenTree
from tiger.drafting.heads.base import DraftHead


class LinearHead(DraftHead):
    """Predicts each token from the feature before the root and the root's embedding.

    Args:
        verifier: The verifier.
        length: Tokens that it can draft.
        layers: Layers of the verifier whose inputs it reads.
        ids: Vocabulary ids that it can draft.
    """

    method = "linear"
    num_layers = 0

    def __init__(self, verifier, length=4, layers=(), ids=None):
        super().__init__(verifier)
        self.settings = {"length": length, "layers": list(layers), "ids": ids}
        self.feature_layers = tuple(layers)
        self.draft_ids = None if ids is None else torch.tensor(ids)
        generator, width = torch.Generator().manual_seed(0), verifier.hidden_size
        self.steps = nn.ModuleList(nn.Linear(self.feature_size + width, width) for _ in range(length))
        for parameter in self.parameters():
            parameter.data.normal_(0.0, 0.05, generator=generator)

    def restrict(self, ids):
        self.draft_ids = torch.tensor(ids)

    def score(self, hidden, depths=None):
        logits = super().score(hidden)
        return logits if self.draft_ids is None else logits[..., self.draft_ids]

    def unroll(self, text, roots, depth):
        index = roots[..., None]
        known = torch.cat([text.features, text.embeddings], -1)
        known = known.gather(1, index.expand(-1, -1, known.shape[-1]))
        return torch.stack([step(known) for step in self.steps[:depth]], 2)

    def draft(self, state, text, block_size):
        last = torch.tensor(text.lengths)[:, None] - 1
        tokens = self.score(self.unroll(text, last, block_size)[:, 0]).argmax(-1)
        return TokenTree(tokens if self.draft_ids is None else self.draft_ids[tokens])
