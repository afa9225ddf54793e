import pytest
import torch
from helpers import prompts, tiny_backbone

from tests.drafting.head_texts import read_texts
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.heads.base import HeadText
from tiger.drafting.heads.saving import build_head

SIZE = 192


def build(**settings):
    torch.manual_seed(0)
    return build_head("specflash", tiny_backbone(), **settings).eval()


def text_of(*rows):
    """Random text; a row's letters say which tokens j + 1 are visual ("v")."""
    generator = torch.Generator().manual_seed(0)
    width = max(map(len, rows))
    visual = torch.tensor([[letter == "v" for letter in row.ljust(width)] for row in rows])
    features, embeddings = torch.randn(2, *visual.shape, SIZE, generator=generator)
    return HeadText(features, torch.zeros_like(visual).long(), embeddings, visual, list(map(len, rows)))


@torch.no_grad()
def test_each_run_of_visual_tokens_is_compressed_by_itself():
    head = build(num_latents=2)
    text = text_of("t" + "v" * 5 + "tt" + "v" * 3 + "t", "ttvvtt", "tt")
    hidden, kept = head.read(text)
    assert kept[0].nonzero()[:, 0].tolist() == [0, 1, 2, 6, 7, 8, 9, 11]
    assert kept.sum(1).tolist() == [8, 6, 2]
    fused = head.fuse(torch.cat([text.embeddings, text.features], dim=-1))
    torch.testing.assert_close(hidden[0, [0, 3, 4, 7]], fused[0, [0, 6, 7, 11]])
    for run, places in ((slice(2, 7), [1, 2]), (slice(9, 12), [5, 6])):
        features = text.features[0, run]  # of the visual tokens themselves
        weights = (head.latents @ features.T).softmax(-1)
        torch.testing.assert_close(hidden[0, places], weights @ features)
    torch.testing.assert_close(hidden[1, 2:4], text.features[1, 3:5])  # no more than the latents: as they are
    torch.testing.assert_close(hidden[2, :2], fused[2, :2])


def test_the_cache_keeps_what_the_compression_left(monkeypatch):
    batch, lengths = prompts(3), []
    head = build(num_latents=4)
    draft = head.draft

    def spy(state, text, block_size):
        tree = draft(state, text, block_size)
        lengths.append(list(state.cache.lengths))
        return tree

    monkeypatch.setattr(head, "draft", spy)
    answers = SpeculativeDecoder(tiny_backbone(), head, 5, 6).generate(batch)
    text, first = read_texts(head, batch, [answer.tokens for answer in answers])
    _, kept = head.read(text)
    for row in range(3):
        assert lengths[0][row] == kept[row, : first[row] + 1].sum()
    images = [len(prompt.images) for prompt in batch]
    assert [first[row].item() + 1 - lengths[0][row] for row in range(3)] == [
        text.visual[row].sum().item() - 4 * count for row, count in enumerate(images)
    ]


def test_roots_are_found_behind_compressed_images():
    head = build(num_latents=3)
    text = text_of("tt" + "v" * 9 + "ttt", "ttt")
    roots = torch.tensor([[11, 13], [0, 2]])
    with torch.no_grad():
        found = head.unroll(text, roots, 5)
        assert found.shape == (2, 2, 5, SIZE)
        hidden, _ = head.read(text)
        places = torch.arange(hidden.shape[1])
        mask = (places <= places[:, None]).expand(2, 1, -1, -1)
        states = head.layer(hidden, mask, position_embeddings=head.rope(hidden, places[None]))
        torch.testing.assert_close(found[0], head.predict(states[0, [5, 7]], 5))
        torch.testing.assert_close(found[1], head.predict(states[1, [0, 2]], 5))


def test_latents_are_trained_by_the_images():
    head = build(num_latents=3)
    head.unroll(text_of("t" + "v" * 9 + "tt"), torch.tensor([[10]]), 5).sum().backward()
    assert head.latents.grad.abs().sum() > 0


def test_nodes_are_those_of_block_and_offsets():
    assert [build().num_nodes(size) for size in (1, 2, 5, 9)] == [4, 12, 25, 25]
    assert build(num_offsets=3).num_nodes(5) == 20


def test_unusable_settings_are_refused():
    for settings in ({"num_offsets": 0}, {"num_latents": 0}):
        with pytest.raises(ValueError, match=r"num_offsets is \d and num_latents \d+; give one or more"):
            build(**settings)
    with pytest.raises(ValueError, match="no tree 'oak'"):
        build(tree="oak")
