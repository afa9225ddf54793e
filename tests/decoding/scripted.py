"""Drafters that follow a script."""

from dataclasses import dataclass

import torch

from tiger.drafting.base import TokenTree


@dataclass
class ScriptState:
    """Position of each request in its script."""

    scripts: list
    done: list


class ScriptedDrafter:
    """Proposes the known answer, every n-th token of it spoiled; deterministic, so without probabilities.

    Args:
        answers: Answer token ids by prompt id.
        spoil: Every how many tokens a wrong one is proposed, 0 for never.
        vocab_size: Size of the vocabulary.
    """

    feature_layers = ()

    def __init__(self, answers, spoil=0, vocab_size=100):
        self.answers, self.spoil, self.vocab_size = answers, spoil, vocab_size
        self.batch_sizes = []

    def begin(self, prompts, reserve, sampling, generators):
        scripts = []
        for prompt in prompts:
            script = list(self.answers[prompt.id])
            if self.spoil:
                script[self.spoil :: self.spoil] = [
                    (t + 1) % self.vocab_size for t in script[self.spoil :: self.spoil]
                ]
            scripts.append(script)
        return ScriptState(scripts, [0] * len(prompts))

    def num_nodes(self, block_size):
        return block_size

    def observe(self, state, reading):
        pass

    def commit(self, state, decided):
        state.done = [n + len(new) for n, new in zip(state.done, decided, strict=True)]

    def select_rows(self, state, rows):
        state.scripts = [state.scripts[row] for row in rows]
        state.done = [state.done[row] for row in rows]

    def propose(self, state, block_size, timer):
        self.batch_sizes.append(len(state.done))
        with timer("draft"):
            blocks = [
                (script[n : n + block_size] + [0] * block_size)[:block_size]
                for script, n in zip(state.scripts, state.done, strict=True)
            ]
            return TokenTree(torch.tensor(blocks))
