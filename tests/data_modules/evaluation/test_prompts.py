"""Texts of both styles, references and metrics of every set, from repositories in the hub's schemas."""

import json

import av
import numpy as np
import pytest
from fixtures import (
    CHARTQA,
    CHARTQA_LMMS,
    COCO,
    DOCVQA,
    GQA_IMAGES,
    GQA_QUESTIONS,
    KARPATHY,
    MMBENCH,
    MMVET,
    MUIR,
    POPE,
    SCIENCEQA,
    TALLYQA,
    TEXTVQA,
    VIDEOMME,
    picture,
    repository,
)

from data_modules.evaluation import SetOptions, load_set
from tiger.metrics.task import Reference

LETTER = "Answer with the option's letter from the given choices directly."
SHORT = "Answer the question using a single word or phrase."
EXPLAIN = "Please answer with an explanation."
READ = (
    "Perform an OCR task on the provided image. Please extract the text accurately and provide a detailed "
    "explanation of the process. Ensure the response is comprehensive and well-structured."
)
TEXTVQA_ROW = {"question_id": 7, "question": "what is the BRAND?", "image": picture(mode="P")}
TEXTVQA_ROW |= {"answers": ["coca cola"] * 7 + ["coke"] * 3}
SCIENCEQA_ROW = {"question": "Which is larger?", "choices": ["an ant", "a cow"], "answer": 1}
SCIENCEQA_ROW |= {"hint": "Look at it.", "subject": "natural science", "image": picture(mode="L")}


def check(name, options, text, long, reference, tokens, figure, sizes=((6, 4),)):
    """One sample of a set in both styles."""
    score, speed = (load_set(name + style, options=options) for style in ("", "@speed"))
    assert (len(score), score.skipped, score.references) == (1, {}, [reference])
    prompt, slow = score.prompt(0), speed.prompt(0)
    assert (prompt.text, prompt.system, prompt.id) == (text, "", f"{name}/{reference.id}")
    assert (slow.text, slow.id) == (long, f"{name}@speed/{reference.id}")
    assert slow.system.startswith("A chat between a curious human")
    assert tuple(image.size for image in prompt.images) == sizes
    assert {image.mode for image in prompt.images} <= {"RGB"}
    assert (score.answer_limit, speed.answer_limit) == (tokens, 1024)
    metric = score.metrics()[0]
    metric.update([reference.answers[0]], score.references)
    assert next(iter(metric.compute())) == figure
    return score


def test_mmbench(tmp_path):
    row = {"index": 5, "question": "What is it?", "hint": "nan", "answer": "B", "A": "cat", "B": "dog"}
    row |= {"C": "nan", "category": "animals", "image": picture()}
    options = repository(tmp_path, MMBENCH, [row], "dev", "en")
    body = "What is it? There are several options:\nA. cat\nB. dog\n"
    choices = {"A": "cat", "B": "dog"}
    for name, group, figure in (
        ("mmbench", "5", "circular_accuracy"),
        ("mmbench_vanilla", "animals", "accuracy"),
    ):
        reference = Reference("5", ("B",), choices, group, body.rstrip("\n"))
        check(name, options, f"{body}\n{LETTER}", body + EXPLAIN, reference, 1024, figure)


def test_mmbench_hint_comes_first(tmp_path):
    row = {"index": 5, "question": "What is it?", "hint": "It barks.", "answer": "A", "A": "dog", "B": "cat"}
    tasks = load_set(
        "mmbench", options=repository(tmp_path, MMBENCH, [row | {"image": picture()}], "dev", "en")
    )
    assert tasks.prompt(0).text.startswith(
        "It barks. What is it? There are several options:\nA. dog\nB. cat\n"
    )


def test_scienceqa(tmp_path):
    options = repository(tmp_path, SCIENCEQA, [SCIENCEQA_ROW], config="ScienceQA-IMG")
    body = "Context: Look at it.\nWhich is larger?\nA. an ant\nB. a cow"
    reference = Reference("0", ("B",), {"A": "an ant", "B": "a cow"}, "natural science", body)
    check("scienceqa", options, f"{body}\n{LETTER}", f"{body}\n{EXPLAIN}", reference, 16, "accuracy")


def test_textvqa(tmp_path):
    options = repository(tmp_path, TEXTVQA, [TEXTVQA_ROW], "validation")
    body = "What is the brand?"
    reference = Reference("7", ("coca cola",) * 7 + ("coke",) * 3, question=body)
    check("textvqa", options, f"{body}\n{SHORT}", f"{body}\n{READ}", reference, 128, "vqa_accuracy")


def test_mmvet(tmp_path):
    row = {"question_id": "v1_0", "question": "Solve x.", "answer": "x<OR>-1", "capability": "ocr,math"}
    options = repository(tmp_path, MMVET, [row | {"image": picture(mode="RGBA")}])
    text = (
        "First please perform reasoning, and think step by step to provide best answer to the following "
        "question: \n\nSolve x."
    )
    reference = Reference("v1_0", ("x<OR>-1",), group="ocr,math", question="Solve x.")
    tasks = check("mmvet", options, text, f"Solve x.\n{EXPLAIN}", reference, 1024, "rule_proxy")
    assert tasks.metrics()[0].score("-1", reference) == 100


def test_coco_captions(tmp_path):
    captions = ("A cat.", "Café, 猫")
    row = {"question_id": "000000000139.jpg", "image": picture(), "answer": list(captions)}
    text = "Provide a one-sentence caption for the provided image."
    long = "Please provide a detailed description of the given image."
    options = repository(tmp_path / "2017", COCO, [row], "val")
    reference = Reference("000000000139.jpg", captions, question=text)
    check("coco_caption", options, text, long, reference, 64, "cider")
    row = {"filepath": "val2014", "filename": "a.jpg", "imgid": 4, "sentences": list(captions[:1])}
    rows = [row, row | {"sentences": list(captions[1:])}]
    (tmp_path / "val2014").mkdir()
    picture().save(tmp_path / "val2014" / "a.jpg")
    ids = repository(tmp_path / "karpathy", KARPATHY, rows).hub_ids
    options = SetOptions(ids, media_root=tmp_path)
    brief = "Describe the image briefly."
    reference = Reference("4", captions, question=brief)
    check("coco_karpathy", options, brief, long, reference, 64, "cider")


def test_muirbench_pictures_stand_where_they_are_named(tmp_path):
    row = {"idx": "9", "task": "ordering", "question": "Which follows <image>?", "answer": "B"}
    row |= {"options": ["<image>", "None"], "image_list": [picture(6), picture(7)]}
    options = repository(tmp_path, MUIR, [row])
    body = "Which follows <image>?\nA. <image>\nB. None"
    reference = Reference("9", ("B",), {"A": "<image>", "B": "None"}, "ordering", body)
    long = f"{body}\n{EXPLAIN}"
    sizes = ((6, 4), (7, 4))
    check("muirbench", options, f"{body}\n{LETTER}", long, reference, 16, "accuracy", sizes)


def test_muirbench_with_other_markers_than_pictures(tmp_path):
    row = {"idx": "9", "task": "ordering", "question": "Which follows <image>?", "answer": "B"}
    row |= {"options": ["this", "that"], "image_list": [picture(6), picture(7)]}
    tasks = load_set("muirbench", options=repository(tmp_path, MUIR, [row]))
    assert tasks.prompt(0).text == f"Which follows ?\nA. this\nB. that\n{LETTER}"


def test_nlvr2(tmp_path):
    for side, width in ((0, 6), (1, 7)):
        picture(width).save(tmp_path / f"test1-0-1-img{side}.png")
    row = {"sentence": "Two dogs run.", "label": "True", "identifier": "test1-0-1-2", "query": "dogs"}
    (tmp_path / "test1.json").write_text(json.dumps(row | {"validation": {"worker 5": "True"}}) + "\n")
    options = SetOptions(path=tmp_path / "test1.json", media_root=tmp_path)
    body = "Here is a statement about the images. Is it true or false?\nTwo dogs run."
    reference = Reference("test1-0-1-2", ("True",), group="test1-0-2", question=body)
    text, sizes = f"{body}\nAnswer true or false.", ((6, 4), (7, 4))
    check("nlvr2", options, text, f"{body}\n{EXPLAIN}", reference, 16, "accuracy", sizes)


@pytest.mark.parametrize("group", ["simple", "complex"])
def test_tallyqa(tmp_path, group):
    turn = {"question": "How many?", "answer": "3", "is_simple": group == "simple"}
    options = repository(tmp_path, TALLYQA, [{"image": picture(), "qa": [turn]}])
    reference = Reference("0-0", ("3",), group=group, question="How many?")
    check("tallyqa", options, f"How many?\n{SHORT}", f"How many?\n{EXPLAIN}", reference, 16, "accuracy")


def test_tallyqa_in_its_original_file(tmp_path):
    (tmp_path / "VG_100K").mkdir()
    picture().save(tmp_path / "VG_100K" / "2.jpg")
    row = {"answer": 4, "data_source": "amt", "image": "VG_100K/2.jpg", "image_id": 92, "issimple": False}
    (tmp_path / "test.json").write_text(json.dumps([row | {"question": "How many?", "question_id": 30}]))
    options = SetOptions(path=tmp_path / "test.json", media_root=tmp_path)
    reference = Reference("30", ("4",), group="complex", question="How many?")
    check("tallyqa", options, f"How many?\n{SHORT}", f"How many?\n{EXPLAIN}", reference, 16, "accuracy")


def test_chartqa(tmp_path):
    text = "What is the sum?\nAnswer the question with a single word."
    reference = Reference("0", ("14",), group="augmented", question="What is the sum?")
    row = {"image": picture(mode="CMYK"), "query": "What is the sum?", "label": ["14"], "human_or_machine": 1}
    old = {"image": picture(), "type": "augmented_test", "question": "What is the sum?", "answer": "14"}
    for name, schema, content in (("m4", CHARTQA, row), ("lmms", CHARTQA_LMMS, old)):
        options = repository(tmp_path / name, schema, [content])
        long = f"What is the sum?\n{EXPLAIN}"
        check("chartqa", options, text, long, reference, 16, "relaxed_accuracy")


def test_docvqa(tmp_path):
    row = {"questionId": "49", "question": "To whom?", "image": picture(), "answers": ["Ann", "ann b."]}
    options = repository(tmp_path, DOCVQA, [row], "validation", "DocVQA")
    reference = Reference("49", ("Ann", "ann b."), question="To whom?")
    check("docvqa", options, f"To whom?\n{SHORT}", f"To whom?\n{READ}", reference, 32, "anls")


def test_pope(tmp_path):
    row = {"question_id": "1", "question": "Is there a dog?", "answer": "no", "category": "popular"}
    options = repository(tmp_path, POPE, [row | {"image": picture()}])
    reference = Reference("0", ("no",), group="popular", question="Is there a dog?")
    text = f"Is there a dog?\n{SHORT}"
    check("pope", options, text, f"Is there a dog?\n{EXPLAIN}", reference, 16, "accuracy")


def test_gqa_joins_questions_and_pictures(tmp_path):
    questions = [{"id": "20", "imageId": "n2", "question": "Is it red?", "answer": "yes"}]
    pictures = [{"id": "n1", "image": picture(9)}, {"id": "n2", "image": picture()}]
    repository(tmp_path, GQA_QUESTIONS, questions, "testdev", "testdev_balanced_instructions")
    options = repository(tmp_path, GQA_IMAGES, pictures, "testdev", "testdev_balanced_images")
    reference = Reference("20", ("yes",), question="Is it red?")
    check("gqa", options, f"Is it red?\n{SHORT}", f"Is it red?\n{EXPLAIN}", reference, 16, "exact_match")


def film(path, seconds=4, rate=2):
    """A film of `rate` frames per second."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        for _ in range(seconds * rate):
            frame = av.VideoFrame.from_ndarray(np.zeros((16, 32, 3), np.uint8), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


def video_options(folder, **changes):
    rows = [
        {"duration": duration, "domain": "Sports", "videoID": f"v{duration}", "question_id": f"00{number}-1"}
        | {"question": "Who wins?", "options": ["A. Ann", "B. Ben"], "answer": "B"}
        for number, duration in enumerate(("short", "medium", "long"))
    ]
    options = repository(folder, VIDEOMME, rows, config="videomme")
    return SetOptions(options.hub_ids, media_root=folder, **changes)


def test_video_mme(tmp_path):
    for number, (length, frames) in enumerate((("short", 4), ("medium", 4), ("long", 2))):
        film(tmp_path / f"v{length}.mp4")
        body = "Who wins?\nA. Ann\nB. Ben"
        text = (
            "Select the best answer to the following multiple-choice question based on the video and the "
            "subtitles. Respond with only the letter (A, B, C, or D) of the correct option.\n"
            f"{body}\n\n{LETTER}"
        )
        reference = Reference(f"00{number}-1", ("B",), {"A": "Ann", "B": "Ben"}, "Sports", body)
        long = f"{body}\n{EXPLAIN}"
        name = f"video_mme_{length}"
        options = video_options(tmp_path)
        tasks = check(name, options, text, long, reference, 16, "accuracy", sizes=())
        (video,) = tasks.prompt(0).videos
        assert video.frames.shape == (frames, 16, 32, 3)


def test_frames_of_a_video_may_be_few_or_pictures(tmp_path):
    film(tmp_path / "vshort.MP4")
    few = load_set("video_mme_short", options=video_options(tmp_path, max_frames=2))
    assert len(few.prompt(0).videos[0].frames) == 2
    still = load_set("video_mme_short", options=video_options(tmp_path, frames_as_images=True)).prompt(0)
    assert ([image.size for image in still.images], still.videos) == ([(32, 16)] * 4, ())


def test_missing_video(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no video vshort .*media_root"):
        load_set("video_mme_short", options=video_options(tmp_path))
