"""Rows in the schemas of the hub, with those that break a naive loader, as repositories on disk."""

import io
import json

from datasets import ClassLabel, Dataset, Features, Image, List, Value
from hub_repository import write_repository
from PIL import Image as PILImage

S = Value("string")
TEXTVQA = Features(
    {"image_id": S, "question_id": Value("int32"), "question": S, "question_tokens": List(S),
     "image": Image(), "image_width": Value("int32"), "image_height": Value("int32"),
     "flickr_original_url": S, "flickr_300k_url": S, "answers": List(S), "image_classes": List(S),
     "set_name": S, "ocr_tokens": List(S)}
)  # fmt: skip
CHARTQA = Features(
    {
        "image": Image(),
        "query": S,
        "label": List(S),
        "human_or_machine": ClassLabel(names=["human", "machine"]),
    }
)
SCIENCEQA = Features(
    {"image": Image(), "question": S, "choices": List(S), "answer": Value("int8"), "hint": S, "task": S,
     "grade": S, "subject": S, "topic": S, "category": S, "skill": S, "lecture": S, "solution": S}
)  # fmt: skip
DOCVQA = Features(
    {"questionId": S, "question": S, "question_types": List(S), "image": Image(), "docId": Value("int64"),
     "ucsf_document_id": S, "ucsf_document_page_no": S, "answers": List(S), "data_split": S}
)  # fmt: skip
CAULDRON = Features({"images": List(Image()), "texts": List({"user": S, "assistant": S, "source": S})})
VSFT = Features(
    {"messages": List({"content": List({"index": Value("int64"), "text": S, "type": S}), "role": S}),
     "images": List(Image())}
)  # fmt: skip


def encoded(mode="RGB", form="PNG", size=(30, 20), colour=0):
    """The bytes of a picture as a table holds them."""
    buffer = io.BytesIO()
    PILImage.new(mode, size, colour).save(buffer, form)
    return {"bytes": buffer.getvalue(), "path": f"picture.{form.lower()}"}


def complete(features, **values):
    """A row with all columns of a schema, those not given empty."""
    return {name: values.get(name) for name in features}


def textvqa(folder):
    answers = ["b", "a", "a", "b", *"cdefgh"]
    rows = [
        complete(TEXTVQA, question="what does the small red sign say?", answers=answers, image=encoded()),
        complete(TEXTVQA, question="was steht auf dem großen Schild?", answers=["naïve"] * 10,
                 image=encoded("P")),
        complete(TEXTVQA, question="what is written on this tiny dot?", answers=[""] * 10,
                 image=encoded(size=(1, 1))),
        complete(TEXTVQA, question="what is the brand of it?", answers=["x"] * 10,
                 image=encoded("CMYK", "JPEG")),
        complete(TEXTVQA, question="what does the cut picture say?", answers=["x"] * 10,
                 image={"bytes": b"no picture", "path": "x.jpg"}),
    ]  # fmt: skip
    return write_repository(folder, {"train": rows, "validation": rows[:1]}, TEXTVQA)


def scienceqa(folder):
    rows = [
        complete(SCIENCEQA, question="Which of these is a mammal?", choices=["bat", "ant"], answer=0,
                 hint="nan", solution="", image=encoded(colour=1)),
        complete(SCIENCEQA, question="Which of these is text only?", choices=["a", "b"], answer=1, hint=""),
        complete(SCIENCEQA, question="Which ocean is shown <image> in blue?", choices=["a", "b"], answer=1,
                 hint="Look at the map.", solution="It is b.", image=encoded("RGBA", colour=2)),
    ]  # fmt: skip
    return write_repository(folder, {"train": rows, "test": rows[:1]}, SCIENCEQA)


def docvqa(folder):
    """Validation with answers; a test split whose answers have the type null, as on the hub."""
    rows = [
        complete(DOCVQA, question="What is the date of the letter?", answers=["1 May", "May 1"],
                 image=encoded("L", colour=n))
        for n in (3, 4)
    ]  # fmt: skip
    path = write_repository(folder, {"validation": rows, "test": rows}, DOCVQA, config="DocVQA")
    features = Features({**DOCVQA, "answers": Value("null"), "question_types": Value("null")})
    hidden = [{**row, "answers": None, "question_types": None, "question": "Who wrote the letter here?"}
              for row in rows]  # fmt: skip
    (file,) = (folder / "DocVQA").glob("test-*")
    Dataset.from_list(hidden, features).to_parquet(file)
    return path


def chartqa(folder):
    row = complete(CHARTQA, query="Is the blue bar tall?", label=["Yes"], human_or_machine=0, image=encoded())
    other = {**row, "query": "What is the value of the blue bar?", "label": ["1,000"], "human_or_machine": 1}
    return write_repository(folder, {"test": [row, other, other]}, CHARTQA)


def cauldron(folder):
    texts = [{"user": "How many dogs are on the grass?", "assistant": "2.", "source": "TallyQA"},
             {"user": "How many?", "assistant": "3.", "source": "TallyQA"}]  # fmt: skip
    rows = [{"images": [encoded()], "texts": texts}, {"images": [], "texts": texts}]
    return write_repository(folder, {"train": rows}, CAULDRON)


def vsft(folder):
    said = [
        {"role": "user", "content": [
            {"index": None, "text": "Describe the scene in detail.\n", "type": "text"},
            {"index": 0, "text": None, "type": "image"}]},
        {"role": "assistant", "content": [{"index": None, "text": "A dog.", "type": "text"}]},
    ]  # fmt: skip
    return write_repository(folder, {"train": [{"messages": said, "images": [encoded()]}]}, VSFT)


def llava(folder, count=6, missing=()):
    """LLaVA's JSON and its folder of images; a row lacks its picture, has another source, or no image."""
    root = folder / "coco" / "train2017"
    root.mkdir(parents=True)
    rows = []
    for number in range(count):
        name = f"coco/train2017/{number:012d}.jpg"
        if number not in missing:
            (folder / name).write_bytes(encoded(form="JPEG", colour=number)["bytes"])
        rows.append({"id": number if number % 2 else f"{number:012d}", "image": name, "conversations": [
            {"from": "human", "value": f"What is shown in picture {number}, ça va?\n<image>"},
            {"from": "gpt", "value": f"Nummer „{number}“."}]})  # fmt: skip
    talk = [{"from": "human", "value": "Tell me a joke about cats."}, {"from": "gpt", "value": "No."}]
    rows += [{"id": "wgByO4Y_0", "model": "", "conversations": talk},
             {"id": "1", "image": "vg/VG_100K/1.jpg", "conversations": talk}]  # fmt: skip
    (folder / "llava.json").write_text(json.dumps(rows, ensure_ascii=False, indent=1), encoding="utf-8")
    return str(folder / "llava.json")


def tallyqa(folder):
    """TallyQA's own JSON: three COCO questions, two on one picture, and one of Visual Genome."""
    (folder / "train2017").mkdir(parents=True)
    for number in (1, 2):
        (folder / "train2017" / f"{number:012d}.jpg").write_bytes(
            encoded(form="JPEG", colour=number + 40)["bytes"]
        )
    names = [f"train2014/COCO_train2014_{1:012d}.jpg"] * 2 + [
        f"val2014/COCO_val2014_{2:012d}.jpg",
        f"val2014/COCO_val2014_{3:012d}.jpg",
        "VG_100K_2/2410408.jpg",
    ]
    rows = [
        {"answer": 4, "data_source": "amt", "image": name, "image_id": n, "question_id": n,
         "question": f"How many {thing} are in it?"}
        for n, (name, thing) in enumerate(zip(names, ["cats", "dogs", "owls", "ants", "cows"], strict=True))
    ]  # fmt: skip
    (folder / "train.json").write_text(json.dumps(rows))
    return str(folder / "train.json")
