"""The data module: splits, mixtures, loaders, errors, and a killed fit that resumes."""

from collections import Counter

import pytest
import torch
from helpers import fresh_backbone
from toy_fit import Killed, Toy, fit

from data_modules import Batch, Example, SyntheticDataModule
from data_modules.filters import QuestionFilter
from data_modules.sources import SOURCES
from data_modules.world_rows import KIND_OF_SOURCE
from tiger.backbones.base import Prompt


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    backbone = fresh_backbone()
    backbone.model.save_pretrained(folder / "verifier")
    backbone.processor.save_pretrained(folder / "verifier")
    return {"verifier": str(folder / "verifier"), "cache_dir": str(folder / "cache")}


def module(folders, **options):
    defaults = {"num_train": 20, "num_validation": 6, "num_test": 4, "batch_size": 3, "responses": "dataset"}
    return SyntheticDataModule(**{**folders, **defaults, "max_new_tokens": 4, **options})


def ready(folders, stage="fit", **options):
    data = module(folders, **options)
    data.setup(stage)
    return data


def test_fit_gives_typed_batches(folders):
    data = ready(folders)
    batches = list(data.train_dataloader())
    assert [len(batch) for batch in batches] == [3] * 6 + [2]
    examples = [example for batch in batches for example in batch]
    assert all(isinstance(batch, Batch) for batch in batches)
    assert all(isinstance(e, Example) and isinstance(e.prompt, Prompt) and e.prompt.images for e in examples)
    assert len({example.prompt.id for example in examples}) == 20
    eos = data.form.processor.tokenizer.eos_token_id
    assert all(e.response.dtype == torch.int64 and e.response[-1] == eos for e in examples)
    assert sum(len(batch) for batch in data.val_dataloader()) == 6


def test_test_and_predict_read_the_test_split(folders):
    data = ready(folders, "test")
    assert set(data.mixtures) == {"test"}
    names = [
        [e.prompt.id for b in loader for e in b]
        for loader in (data.test_dataloader(), data.predict_dataloader())
    ]
    assert names[0] == names[1] == [data.mixtures["test"].key(i) for i in range(4)]
    assert all(name.startswith("test/") for name in names[0])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"llava": 17, "textvqa": 15, "scienceqa": 3, "docvqa": 2, "tallyqa": 2, "chartqa": 1}),
        (
            {"mixture": "align"},
            {"llava": 19, "textvqa": 10, "scienceqa": 3, "docvqa": 5, "tallyqa": 2, "chartqa": 1},
        ),
        ({"mixture": "uniform", "kinds": ["sign", "chart"]}, {"textvqa": 20, "chartqa": 20}),
    ],
    ids=["kd", "align", "kinds"],
)
def test_mixtures(folders, options, expected):
    data = ready(folders, num_train=40, **options)
    assert Counter(record.source for record in data.mixtures["train"]) == expected
    assert "requested" in data.report()
    assert set(expected) <= set(SOURCES) == set(KIND_OF_SOURCE)


def test_verifier_answers_replace_the_training_responses_only(folders):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    own, given = ready(folders, responses="verifier", num_train=6), ready(folders, num_train=6)
    assert torch.equal(before, torch.get_rng_state())
    assert "verifier answers: 6, " in own.report()
    for index in range(6):
        one, two = own.examples["train"][index], given.examples["train"][index]
        assert one.prompt.text == two.prompt.text
        assert 1 <= len(one.response) <= 4 < len(two.response)
        assert one.response.tolist() == own.answers(one.prompt.id)
    assert torch.equal(own.examples["validation"][0].response, given.examples["validation"][0].response)


def test_a_loop_over_examples_ends(folders):
    examples = ready(folders, num_train=6).examples["train"]
    for index in (6, 7, -1):
        with pytest.raises(IndexError, match=f"no example {index} among 6"):
            examples[index]
    assert len(list(examples)) == 6


def test_long_responses_are_cut_and_long_prompts_dropped(folders):
    lengths = [e.response.numel() + 88 for e in ready(folders).examples["train"]]
    data = ready(folders, max_length=95)
    assert max(lengths) > 95
    for example in data.examples["train"]:
        assert data.form.length(example.prompt.text, [(128, 128)]) + len(example.response) <= 95
    with pytest.raises(ValueError, match=r"train split is empty.*prompt_too_long"):
        ready(folders, max_length=60)


def test_an_empty_split_names_the_filter(folders):
    with pytest.raises(ValueError, match=r"train split is empty.*too_few_words.*min_words=30"):
        ready(folders, question_filter=QuestionFilter(min_words=30))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixture": "paper"}, "mixture is 'paper'; choose from kd, align, uniform"),
        ({"evaluation_mixture": "x"}, "evaluation_mixture is 'x'"),
        ({"kinds": ["scene", "cat"]}, r"kinds\[1\] is 'cat'; choose from scene"),
        ({"responses": "none"}, "responses is 'none'; choose from dataset, verifier"),
        ({"num_train": 0}, "num_train >= 1"),
        ({"batch_size": 0}, "batch_size >= 1"),
    ],
)
def test_bad_options_are_refused(folders, options, message):
    with pytest.raises(ValueError, match=message):
        module(folders, **options)


def test_no_validation_examples_give_no_loader(folders):
    assert ready(folders, num_validation=0).val_dataloader() == []


def test_batches_move_their_responses():
    batch = Batch([Example(Prompt("a", id="n"), torch.tensor([1]), "llava", "ocr")]).to("meta")
    assert batch.examples[0].response.device.type == "meta"
    assert repr(batch) == "Batch(['n'])"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_killed_fit_sees_the_remaining_batches(folders, tmp_path, num_workers):
    options = {"num_workers": num_workers, "num_validation": 0 if num_workers else 6}
    whole = fit(module(folders, **options), Toy(), tmp_path / "whole")
    with pytest.raises(Killed):
        fit(module(folders, **options), Toy(kill_at=10), tmp_path / "killed")
    resumed = fit(module(folders, **options), Toy(), tmp_path / "killed", tmp_path / "killed" / "last.ckpt")
    assert len(whole.seen) == 14
    assert resumed.seen == whole.seen[10:]
    assert torch.equal(resumed.weight, whole.weight)


@pytest.mark.parametrize(
    "change", [{"mixture": "align"}, {"max_pixels": 10_000}, {"prompt_template": "{question} Explain."}]
)
def test_resuming_with_other_data_is_refused(folders, tmp_path, change):
    with pytest.raises(Killed):
        fit(module(folders), Toy(kill_at=3), tmp_path)
    with pytest.raises(ValueError, match=r"made with identity = .*start a new run"):
        fit(module(folders, **change), Toy(), tmp_path, tmp_path / "last.ckpt")


def test_half_precision_leaves_prompts_alone(folders, tmp_path):
    assert len(fit(module(folders), Toy(), tmp_path, precision="bf16-true").seen) == 14
