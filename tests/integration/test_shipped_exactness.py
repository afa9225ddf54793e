"""The shipped pair answers exactly as the verifier alone does under transformers' own `generate`."""

import pytest
import torch

from tiger.backbones.loading import load_backbone
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.saving import load_drafter
from tiger.evaluation.prompts import load_prompts

LIMIT = 96


def plain_answer(backbone, prompt):
    inputs = backbone.prepare(prompt)
    output = backbone.model.generate(
        input_ids=inputs.ids[None],
        attention_mask=torch.ones_like(inputs.ids)[None],
        mm_token_type_ids=inputs.visual[None].int(),
        max_new_tokens=LIMIT,
        do_sample=False,
        **inputs.pixels,
    )
    return output[0, len(inputs.ids) :].tolist()


@pytest.mark.parametrize("count", [12, pytest.param(500, marks=pytest.mark.slow)])
def test_greedy_answers_equal_transformers(count):
    verifier = load_backbone("tiny/verifier")
    prompts = load_prompts("synthetic", count)
    expected = [plain_answer(verifier, prompt) for prompt in prompts]
    decoder = SpeculativeDecoder(verifier, load_drafter("tiny/tiger"), block_size=8, max_new_tokens=LIMIT)
    for size in (1, 4):
        answers = [a for i in range(0, count, size) for a in decoder.generate(prompts[i : i + size])]
        assert [answer.tokens for answer in answers] == expected
