"""What heads read in tests: prompts with answers, as the verifier read them, and short trainings."""

import torch

from tiger.backbones.base import assemble
from tiger.backbones.features import with_features
from tiger.drafting.heads.base import HeadRow


@torch.no_grad()
def read_texts(head, prompts, answers):
    """The text of prompts and answers, and the places [B, 1] whose next token is the first of an answer."""
    backbone = head.verifier
    inputs = [backbone.prepare(prompt) for prompt in prompts]
    ids = [torch.cat([entry.ids, torch.tensor(a)]) for entry, a in zip(inputs, answers, strict=True)]
    batch = assemble(
        inputs,
        backbone.encode(inputs),
        [backbone.embed(entry.ids) for entry in inputs],
        suffixes=[backbone.embed(torch.tensor(answer)) for answer in answers],
    )
    _, features = with_features(backbone, head.feature_layers, lambda: backbone.run_assembled(batch))
    rows = [
        HeadRow(features[i, : end - 1], ids[i][1:], batch.embeddings[i, 1:end], batch.visual[i, 1:end])
        for i, end in enumerate(batch.lengths)
    ]
    return head.text(rows), torch.tensor([[len(entry.ids) - 1] for entry in inputs])


def every_root(first, answers, depth):
    """Places [B, A] of all roots in answers of one length with `depth` tokens behind them."""
    return first + torch.arange(len(answers[0]) - depth)


def fit(head, prompts, answers, depth=2, steps=20, lr=3e-3):
    """Trains a head to say given answers [B, R] of one length; returns the first and last loss."""
    text, first = read_texts(head, prompts, answers)
    roots = every_root(first, answers, depth)
    targets = torch.tensor(answers).unfold(1, depth, 1)[:, 1:]
    optimizer, losses = torch.optim.AdamW(head.parameters(), lr=lr), []
    for _ in range(steps):
        logits = head.score(head.unroll(text, roots, depth))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]
