"""The verifier's answers are generated once, survive a kill, and are found again."""

import hashlib
import io
import json
import shutil
from array import array

import pytest
import torch
from helpers import fresh_backbone, tiny_backbone
from hub_rows import encoded
from PIL import Image

from data_modules import responses
from data_modules.examples import Examples, PromptFormat
from data_modules.index import Share
from data_modules.mixture import mix
from data_modules.responses import FINISHED, PARTIAL, ResponseSettings, fingerprint, load_or_generate
from data_modules.sources import ChartQA, DocVQA, Llava
from data_modules.table_rows import TableRows
from data_modules.world_rows import WorldRows
from tiger.decoding.autoregressive import AutoregressiveDecoder

SETTINGS = ResponseSettings(max_new_tokens=5)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verifier")
    backbone = fresh_backbone()
    backbone.model.save_pretrained(folder)
    backbone.processor.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def form(verifier):
    return PromptFormat(verifier)


@pytest.fixture(scope="module")
def mixture():
    return mix(
        "train", [Share(source(), WorldRows(source.name, "train", 0, 20), 5) for source in (Llava, ChartQA)]
    )


def answer(mixture, form, verifier, folder, settings=SETTINGS, load=tiny_backbone):
    return load_or_generate(mixture, form, verifier, settings, folder, load, batch_size=3)


def refuse():
    pytest.fail("the verifier was loaded again")


@pytest.fixture(scope="module")
def answered(mixture, form, verifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("answered")
    answer(mixture, form, verifier, folder)
    return folder


@pytest.fixture
def finished(answered, tmp_path):
    shutil.copytree(answered, tmp_path, dirs_exist_ok=True)
    (path,) = tmp_path.rglob(FINISHED)
    return path


def test_answers_are_the_verifiers_own(mixture, form, verifier, tmp_path):
    found = answer(mixture, form, verifier, tmp_path)
    decoder = AutoregressiveDecoder(tiny_backbone(), SETTINGS.max_new_tokens)
    expected = decoder.generate([form.prompt(record) for record in mixture])
    assert {a.id: a.tokens for a in expected} == {key: found(key) for key in found.tokens}
    assert found.truncated == sum(a.finish == "length" for a in expected) > 0
    assert len(found) == len(mixture) == 10


def test_finished_answers_are_read(finished, mixture, form, verifier, tmp_path):
    assert len(answer(mixture, form, verifier, tmp_path, load=refuse)) == 10
    assert not list(tmp_path.rglob(PARTIAL))
    assert json.loads((finished.parent / "settings.json").read_text())["mixture"] == mixture.manifest


@pytest.mark.parametrize("lines", [0, 1, 4, 10])
@pytest.mark.parametrize("tail", ["", '{"id": "train/scene/12', "\x00"])
def test_a_killed_run_is_completed(finished, mixture, form, verifier, tmp_path, lines, tail):
    whole = finished.read_text()
    kept = "".join(whole.splitlines(keepends=True)[:lines])
    finished.unlink()
    (finished.parent / PARTIAL).write_text(kept + tail)
    answer(mixture, form, verifier, tmp_path, load=refuse if lines == 10 else tiny_backbone)
    assert finished.read_text().startswith(kept)
    assert sorted(finished.read_text().splitlines()) == sorted(whole.splitlines())


def test_a_finished_file_that_was_cut_is_completed(finished, mixture, form, verifier, tmp_path):
    whole = finished.read_text()
    finished.write_text(whole[:-5])
    answer(mixture, form, verifier, tmp_path)
    assert sorted(finished.read_text().splitlines()) == sorted(whole.splitlines())


@pytest.mark.parametrize(
    "line", ["{", "3", '{"id": "a"}', '{"id": "a", "tokens": ["x"], "finish": "eos"}', "\xff"]
)
def test_a_damaged_line_is_named(finished, mixture, form, verifier, tmp_path, line):
    lines = finished.read_bytes().splitlines(keepends=True)
    finished.write_bytes(b"".join([*lines[:2], line.encode("latin-1") + b"\n", *lines[3:]]))
    match = rf"{FINISHED} is damaged: line 3 is no answer .*Delete .*generated again"
    with pytest.raises(ValueError, match=match):
        answer(mixture, form, verifier, tmp_path, load=refuse)


def test_a_kill_while_answering_leaves_whole_batches(mixture, form, verifier, tmp_path, monkeypatch):
    generate, calls = AutoregressiveDecoder.generate, []

    def dies(self, prompts):
        calls.append(prompts)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return generate(self, prompts)

    with monkeypatch.context() as patch:
        patch.setattr(AutoregressiveDecoder, "generate", dies)
        with pytest.raises(KeyboardInterrupt):
            answer(mixture, form, verifier, tmp_path)
    (partial,) = tmp_path.rglob(PARTIAL)
    assert len(partial.read_text().splitlines()) == 6
    assert not list(tmp_path.rglob(FINISHED))
    assert len(answer(mixture, form, verifier, tmp_path)) == 10


@pytest.mark.parametrize("change", ["settings", "template", "max_pixels", "mixture", "weights"])
def test_other_answers_have_another_file(change, mixture, form, verifier, tmp_path, monkeypatch):
    answer(mixture, form, verifier, tmp_path)
    settings = SETTINGS
    if change == "settings":
        settings = ResponseSettings(max_new_tokens=4)
    elif change == "template":
        form = PromptFormat(verifier, "{question} Explain.")
    elif change == "max_pixels":
        form = PromptFormat(verifier, max_pixels=10_000)
    elif change == "mixture":
        mixture = mix("train", [Share(Llava(), WorldRows("llava", "train", 1, 20), 3)])
    else:
        monkeypatch.setattr(responses, "fingerprint", lambda name: "other weights")
    answer(mixture, form, verifier, tmp_path, settings)
    assert len(list(tmp_path.rglob(FINISHED))) == 2


def test_without_max_pixels_the_key_is_that_of_older_caches(finished, mixture, verifier):
    parts = {
        "verifier": fingerprint(verifier),
        "template": "{question}",
        "settings": {"max_new_tokens": 5, "temperature": 0.0, "seed": 0, "dtype": "float32"},
        "mixture": mixture.manifest,
    }
    assert finished.parent.name == hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def test_a_finished_file_that_lacks_answers_is_refused(finished, mixture, form, verifier, tmp_path):
    finished.write_text("".join(finished.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(ValueError, match=r"lacks 1 answers.*Delete"):
        answer(mixture, form, verifier, tmp_path, load=refuse)


def test_sampled_answers_do_not_depend_on_their_batch(mixture, form, verifier, tmp_path):
    settings = ResponseSettings(max_new_tokens=5, temperature=1.0, seed=3)
    one = answer(mixture, form, verifier, tmp_path / "1", settings)
    two = load_or_generate(mixture, form, verifier, settings, tmp_path / "2", tiny_backbone, batch_size=10)
    assert one.tokens == two.tokens
    assert all(isinstance(tokens, array) for tokens in one.tokens.values())


def test_fingerprint_reads_content_alone(tmp_path):
    files = {"config.json": b"{}", "model.safetensors": b"12", "tokenizer.json": b"[]"}

    def write(folder, **changes):
        folder.mkdir()
        for name, content in (files | {k.replace("__", "."): v for k, v in changes.items()}).items():
            (folder / name).write_bytes(content)
        return fingerprint(str(folder))

    first = write(tmp_path / "a")
    assert write(tmp_path / "b") == first
    assert write(tmp_path / "c", model__safetensors=b"13") != first
    assert write(tmp_path / "d", config__json=b"[]") != first
    assert write(tmp_path / "e", notes__md=b"no part of the model") == first


def test_prompt_length_is_that_of_the_models_input(mixture, form):
    backbone = tiny_backbone()
    for record in mixture:
        prompt = form.prompt(record)
        sizes = [image.size for image in prompt.images]
        assert form.length(prompt.text, sizes) == len(backbone.prepare(prompt).ids)


def test_room_is_what_the_prompt_leaves(mixture, verifier):
    prompt = PromptFormat(verifier).prompt(mixture[0])
    length = PromptFormat(verifier).length(prompt.text, [image.size for image in prompt.images])
    for limit, wanted, room in [(length + 3, 9, 3), (length + 3, 2, 2), (length, 1, 0), (1000, 9, 9)]:
        assert PromptFormat(verifier, max_length=limit).room(mixture[0], wanted) == room
    assert PromptFormat(verifier, max_length=length).unusable(mixture[0]) == "prompt_too_long"
    assert PromptFormat(verifier, max_length=length + 1).unusable(mixture[0]) is None


def test_texts_that_mark_pictures_are_dropped(verifier, tmp_path):
    image = encoded()
    questions = ["What is <|image_pad|> here?", "What is here?"]
    rows = [{"image": image, "question": question, "answers": ["a"]} for question in questions]
    share = Share(DocVQA(), TableRows("docvqa", {"test": rows}, 0), 2)
    form = PromptFormat(verifier)
    kept = mix("train", [share]).narrow(form.unusable, form.name, tmp_path)
    assert [record.question for record in kept] == questions[1:]
    assert kept.index.reports[0].dropped == {"image_token": 1}
    twice = PromptFormat(verifier, "<image> {question} <image>")
    assert twice.unusable(kept[0]) == "image_token"


def test_reference_answers_end_with_the_end_token(form):
    ids = form.answer_ids("The sign says K7.")
    assert ids.dtype == torch.int64
    assert form.processor.tokenizer.decode(ids[:-1]) == "The sign says K7."
    assert ids[-1] == form.processor.tokenizer.eos_token_id


def test_bad_formats_are_refused(verifier):
    with pytest.raises(ValueError, match=r"must contain \{question\}"):
        PromptFormat(verifier, "Answer this.")
    with pytest.raises(FileNotFoundError, match=r"no folder '\./nowhere'"):
        PromptFormat("./nowhere")


def test_a_damaged_picture_is_replaced_and_named(form, verifier, tmp_path, caplog):
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(buffer, "PNG")
    whole = {"bytes": buffer.getvalue(), "path": None}
    cut = {"bytes": whole["bytes"][:2000], "path": "cut.png"}
    questions = [f"What is written on page {number}?" for number in range(3)]
    rows = [{"image": image, "question": question, "answers": ["a"]}
            for image, question in zip((whole, cut, whole), questions, strict=True)]  # fmt: skip
    mixture = mix("train", [Share(DocVQA(), TableRows("docvqa", {"test": rows}, 0), 3)])
    found = answer(mixture, form, verifier, tmp_path)
    assert found("docvqa/test/1") == []
    assert all(found(f"docvqa/test/{row}") for row in (0, 2))
    examples = Examples(mixture, form, found)
    names = [example.prompt.id for example in (examples[i] for i in range(3))]
    bad = [mixture.key(i) for i in range(3)].index("docvqa/test/1")
    assert names[bad] == mixture.key((bad + 1) % 3)
    assert examples.damaged == {"docvqa/test/1"}
    assert "The picture of docvqa/test/1 cannot be decoded" in caplog.text
    alone = mix("train", [Share(DocVQA(), TableRows("docvqa", {"test": rows[1:2]}, 0), 1)])
    with pytest.raises(ValueError, match="No picture of the train split can be decoded"):
        Examples(alone, form)[0]


def test_large_pictures_are_scaled_down(verifier):
    rows = [{"image": encoded(size=(300, 200)), "question": "What is written here?", "answers": ["a"]}]
    record = mix("train", [Share(DocVQA(), TableRows("docvqa", {"test": rows}, 0), 1)])[0]
    sizes = []
    for limit in (None, 60_000, 15_000):
        form = PromptFormat(verifier, max_pixels=limit)
        prompt = form.prompt(record)
        sizes.append(prompt.images[0].size)
        inputs = tiny_backbone().prepare(prompt).ids
        assert form.length(prompt.text, [sizes[-1]]) == len(inputs)
    assert sizes == [(300, 200), (300, 200), (150, 100)]
    with pytest.raises(ValueError, match="max_pixels is 0; give 1 or more"):
        PromptFormat(verifier, max_pixels=0)
