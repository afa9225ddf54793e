"""A language model small enough to enumerate."""

from types import SimpleNamespace

import torch
from torch import Tensor

from tiger.backbones.bank import VisualBank
from tiger.backbones.base import Backbone, ModelInputs, Prompt
from tiger.backbones.cache import BlockCache


class TableBackbone(Backbone):
    """A language model whose logits [V] are looked up by its last two tokens.

    It finds the earlier token through mask, positions and cache: a mistake in any of them changes its output.

    Args:
        table: Logits [V, V, V] by previous and last token.
        eos_ids: Ids that end an answer.
    """

    hidden_size = property(lambda self: 2 * self.vocab_size)
    num_layers = property(lambda self: 1)
    vocab_size = property(lambda self: self.table.shape[0])
    max_positions = property(lambda self: 64)
    device = property(lambda self: self.table.device)
    dtype = property(lambda self: self.table.dtype)
    tokenizer = property(lambda self: self)

    def __init__(self, table, eos_ids=()):
        torch.nn.Module.__init__(self)
        self.table, self.eos_ids = table, eos_ids
        self.processor = SimpleNamespace(chat_template=object())  # reads like no other model
        self.text_config = SimpleNamespace(num_attention_heads=2, intermediate_size=16, rms_norm_eps=1e-6)
        output = torch.nn.Linear(self.hidden_size, self.vocab_size)  # what heads may start from
        self.model = SimpleNamespace(get_output_embeddings=lambda: output)

    def get_vocab(self):
        return {str(token): token for token in range(self.vocab_size)}

    def decode(self, tokens, skip_special_tokens=True):
        return "".join(map(str, tokens))

    def prepare(self, prompt: Prompt) -> ModelInputs:
        ids = torch.tensor([int(letter) for letter in prompt.text])
        return ModelInputs(ids, torch.arange(len(ids))[None], torch.zeros(len(ids), dtype=torch.bool))

    def unbatch(self, input_ids, attention_mask=None, **pixels):
        raise NotImplementedError

    def encode(self, inputs, use_importance=False) -> list[VisualBank]:
        empty = torch.zeros(0, self.hidden_size), torch.zeros(1, 0, dtype=torch.long)
        return [VisualBank(*empty) for _ in inputs]

    def embed(self, ids: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(ids, self.hidden_size).to(self.table.dtype)

    def new_cache(self, batch_size: int, capacity: int) -> BlockCache:
        return BlockCache(1, batch_size, capacity)

    def run(self, embeddings, position_ids, mask, cache=None, visual=None, deepstack=()) -> Tensor:
        places = position_ids[0][:, None, :, None].to(embeddings.dtype)
        keys, values = cache.layers[0].update(embeddings[:, None], places)
        earlier = (values[:, 0, :, 0][:, None, :] == position_ids[0][:, :, None] - 1).to(embeddings.dtype)
        if mask is not None:
            earlier = earlier * mask[:, 0]
        size = self.vocab_size
        return torch.cat([earlier @ keys[:, 0, :, :size], embeddings[..., :size]], dim=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        size = self.vocab_size
        return torch.einsum("...i,...j,ijv->...v", hidden[..., :size], hidden[..., size:], self.table)
