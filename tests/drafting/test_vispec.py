"""What ViSpec heads do with images."""

import pytest
import torch
from helpers import prompts, tiny_backbone

from tests.decoding.test_greedy_equality import tokens
from tests.drafting.head_texts import read_texts
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.records import PhaseTimer
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.heads.base import HeadText
from tiger.drafting.heads.eagle2 import Eagle2
from tiger.drafting.heads.vispec import ViSpec

BATCH = prompts(3)  # one image, two images, none


def new_head(num_q=2):
    torch.manual_seed(5)
    head = ViSpec(tiny_backbone(), num_q, 14, 2, 3).eval()
    with torch.no_grad():  # so that global vectors are seen
        head.img_fc.weight[:, 192:].normal_(std=0.1)
    return head


def text_of(visual, lengths):
    """A text of random features whose visual places are given."""
    generator = torch.Generator().manual_seed(1)
    features, embeddings = torch.randn(2, *visual.shape, 192, generator=generator)
    return HeadText(features, torch.full(visual.shape, 7), embeddings, visual, lengths)


def flags(words):
    return torch.tensor([[letter == "i" for letter in word] for word in words])


@torch.no_grad()
def test_images_become_vectors_at_their_last_places():
    head, text = new_head(3), text_of(flags(["tiiititt", "iittiiit", "ttttt..."]), [8, 8, 5])
    before = torch.randn(3, 192, generator=torch.Generator().manual_seed(2))
    short = head.compress(text, before)
    # The second image of the first row has one place: only the last of its two vectors stands there.
    assert short.lengths == [7, 7, 5]
    assert short.places[0].tolist() == [0, 2, 3, 4, 5, 6, 7]
    assert short.places[1].tolist() == [0, 1, 2, 3, 5, 6, 7]
    assert short.places[2, :5].tolist() == [0, 1, 2, 3, 4]
    vectors = head.adaptor(text.embeddings[0, 1:4])
    single = head.adaptor(text.embeddings[0, 5:6])
    assert torch.equal(short.inputs[0, 1:3], vectors[:2])
    assert torch.equal(short.inputs[0, 4], single[1])
    for place, view in enumerate([before[0], *[None] * 3, vectors[2], None, single[2], single[2]]):
        if view is not None:
            assert torch.equal(short.views[0, place], view)
            wanted = head.join(text.embeddings[0, place], text.features[0, place], view)
            column = short.columns[0, place]
            assert (short.inputs[0, column] - wanted).abs().max() < 1e-5
    assert torch.equal(short.views[2], before[2].expand(8, -1))


@torch.no_grad()
def test_a_text_without_images_is_read_as_by_the_plain_head():
    head, plain = new_head(), Eagle2(tiny_backbone())
    plain.load_state_dict({k: v for k, v in head.state_dict().items() if k in plain.state_dict()})
    head.img_fc.weight[:, 192:].zero_()
    text, first = read_texts(head, BATCH[2:], [[5, 6, 7]])
    assert (head.unroll(text, first, 2) - plain.unroll(text, first, 2)).abs().max() < 1e-5


@torch.no_grad()
def test_no_image_is_a_zero_vector():
    head = new_head()
    assert torch.equal(head.adaptor(torch.zeros(1, 192)), torch.zeros(2, 192))


@torch.no_grad()
def test_new_heads_pass_the_features_on():
    head = ViSpec(tiny_backbone())
    embeddings, features, views = torch.randn(3, 1, 2, 192)
    joined = head.fc(torch.cat([embeddings, features], dim=-1))
    assert (head.join(embeddings, features, views) - joined).abs().max() < 1e-5


@torch.no_grad()
def test_images_are_seen_through_both_vectors():
    head = new_head()
    text, first = read_texts(head, BATCH, [[5, 6, 7]] * 3)
    found = head.unroll(text, first, 2)
    text.embeddings = torch.where(text.visual[..., None], text.embeddings.flip(-1), text.embeddings)
    changed = (head.unroll(text, first, 2) - found).abs().amax(dim=(1, 2, 3))
    assert (changed > 1e-3).tolist() == [True, True, False]


def test_the_cache_is_short_and_positions_are_not():
    verifier, head = tiny_backbone(), new_head()
    verifier.eos_ids = ()
    counts, propose = [], head.propose

    def spy(state, block_size, timer: PhaseTimer):
        tree = propose(state, block_size, timer)
        counts.append((list(state.cache.lengths), [note.length for note in state.notes]))
        return tree

    head.propose = spy
    found = SpeculativeDecoder(verifier, head, 3, 6).generate(BATCH)
    assert tokens(found) == tokens(AutoregressiveDecoder(verifier, 6).generate(BATCH))
    inputs = [verifier.prepare(prompt) for prompt in BATCH]
    lengths = [len(entry.ids) for entry in inputs]
    images = [int((entry.visual.int().diff() == 1).sum()) for entry in inputs]
    kept = [n - int(e.visual.sum()) + m for n, e, m in zip(lengths, inputs, images, strict=True)]
    assert images == [1, 2, 0]
    assert counts[0] == (kept, lengths)
    for short, long in counts[1:]:
        if len(long) == 3:
            differences = [b - a for a, b in zip(short, long, strict=True)]
            assert differences == [b - a for a, b in zip(kept, lengths, strict=True)]


def test_too_few_vectors_are_refused():
    with pytest.raises(ValueError, match="num_q is 1; an image needs 2 or more"):
        ViSpec(tiny_backbone(), num_q=1)
