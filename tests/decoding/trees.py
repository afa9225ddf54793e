"""Drafters that propose trees: one by a script, one from the enumerable model."""

from random import Random

import torch
from hypothesis import strategies as st

from tests.decoding.scripted import ScriptedDrafter
from tiger.decoding.acceptance import Sampling
from tiger.drafting.base import TokenTree


def random_parents(random, count):
    """Parents of a random tree, each in front of its children."""
    return [random.randrange(-1, node) for node in range(count)]


@st.composite
def parent_lists(draw, most=12):
    """Parents of any tree of up to `most` tokens."""
    count = draw(st.integers(0, most))
    return [draw(st.integers(-1, node - 1)) for node in range(count)]


class ScriptedTrees(ScriptedDrafter):
    """Proposes random trees of other sizes in every row and round, with the answer hidden in it.

    Args:
        answers: Answer token ids by prompt id.
        seed: Seed of the trees.
        hidden: Chance that a token in the right place is the answer's.
        most: Largest number of tokens.
        vocab_size: Size of the vocabulary.
    """

    def __init__(self, answers, seed=0, hidden=0.7, most=12, vocab_size=100):
        super().__init__(answers, vocab_size=vocab_size)
        self.random, self.hidden, self.most = Random(seed), hidden, most

    def num_nodes(self, block_size):
        return self.most

    def propose(self, state, block_size, timer):
        self.batch_sizes.append(len(state.done))
        with timer("draft"):
            rows = [self._tree(script[n:]) for script, n in zip(state.scripts, state.done, strict=True)]
        return TokenTree.of_rows([t for t, _ in rows], [p for _, p in rows], torch.device("cpu"))

    def _tree(self, future):
        parents = random_parents(self.random, self.random.randint(0, self.most))
        tokens, right = [], {-1: 0}
        for node, parent in enumerate(parents):
            place = right.get(parent)
            if place is not None and place < len(future) and self.random.random() < self.hidden:
                tokens.append(future[place])
                right[node] = place + 1
            else:
                tokens.append(self.random.randrange(self.vocab_size))
        return tokens, parents


class TableTrees:
    """Proposes trees of a table's likeliest tokens, or of tokens drawn from it without replacement.

    Args:
        table: Logits [V, V, V] by previous and last token.
        widths: Children of each token, by depth; fewer where the sampled distribution has fewer tokens.
        is_sampled: Whether children are drawn.
    """

    feature_layers = ()

    def __init__(self, table, widths, is_sampled):
        self.table, self.widths, self.is_sampled = table, widths, is_sampled

    def num_nodes(self, block_size):
        return sum(torch.tensor(self.widths).cumprod(0).tolist())

    def begin(self, prompts, reserve, sampling, generators):
        self.sampling = Sampling(1.0) if sampling.is_greedy else sampling
        return {
            "texts": [[int(letter) for letter in p.text] for p in prompts],
            "generators": list(generators),
        }

    def observe(self, state, reading):
        pass

    def commit(self, state, decided):
        state["texts"] = [text + new for text, new in zip(state["texts"], decided, strict=True)]

    def select_rows(self, state, rows):
        for name in state:
            state[name] = [state[name][row] for row in rows]

    def propose(self, state, block_size, timer):
        rows = [self._tree(*row) for row in zip(state["texts"], state["generators"], strict=True)]
        tree = TokenTree.of_rows([r[0] for r in rows], [r[1] for r in rows], torch.device("cpu"))
        if self.is_sampled:
            blank = torch.zeros(self.num_nodes(block_size), self.table.shape[0])
            stacked = [torch.cat([torch.stack(r[2]), blank])[: tree.tokens.shape[1]] for r in rows]
            tree.probabilities = torch.stack(stacked)
        return tree

    def _tree(self, text, generator):
        tokens, parents, sources, level = [], [], [], [(-1, tuple(text[-2:]))]
        for width in self.widths:
            below = []
            for parent, context in level:
                source = self.sampling.probabilities(self.table[context])
                for token in self._children(source, width, generator):
                    below.append((len(tokens), (context[1], token)))
                    tokens.append(token)
                    parents.append(parent)
                    sources.append(source)
            level = below
        return tokens, parents, sources

    def _children(self, source, width, generator):
        count = min(width, int((source > 0).sum()))
        if self.is_sampled:
            return torch.multinomial(source, count, generator=generator).tolist()
        return source.topk(count).indices.tolist()
