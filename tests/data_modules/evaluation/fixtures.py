"""Rows in the schemas of the hub's evaluation sets, and repositories made of them."""

from datasets import ClassLabel, Features, Image, List, Value
from hub_repository import write_repository
from PIL import Image as PILImage

from data_modules.evaluation import SetOptions

S, I32, I64 = Value("string"), Value("int32"), Value("int64")
TEXTS = List(S)


def features(strings, **others):
    return Features(dict.fromkeys(strings.split(), S) | others)


MMBENCH = features(
    "question hint answer A B C D category source L2-category comment split", index=I64, image=Image()
)
SCIENCEQA = features(
    "question hint task grade subject topic category skill lecture solution",
    image=Image(),
    choices=TEXTS,
    answer=Value("int8"),
)
TEXTVQA = features(
    "image_id question flickr_original_url flickr_300k_url set_name",
    question_id=I32,
    question_tokens=TEXTS,
    image=Image(),
    image_width=I32,
    image_height=I32,
    answers=TEXTS,
    image_classes=TEXTS,
    ocr_tokens=TEXTS,
)
MMVET = features("question_id question answer image_source capability", image=Image())
COCO = features(
    "question_id question file_name coco_url date_captured",
    image=Image(),
    answer=TEXTS,
    id=I64,
    license=Value("int8"),
    height=I32,
    width=I32,
)
KARPATHY = features("filepath filename split url", imgid=I64, sentids=List(I64), sentences=TEXTS, cocoid=I64)
VIDEOMME = features(
    "video_id duration domain sub_category url videoID question_id task_type question answer", options=TEXTS
)
MUIR = features(
    "idx task image_relation image_type question answer counterpart_idx",
    options=TEXTS,
    image_list=List(Image()),
)
POPE = features("id question_id question answer image_source category", image=Image())
GQA_QUESTIONS = features("id imageId question answer fullAnswer")
GQA_IMAGES = features("id", image=Image())
DOCVQA = features(
    "questionId question ucsf_document_id ucsf_document_page_no data_split",
    question_types=TEXTS,
    image=Image(),
    docId=I64,
    answers=TEXTS,
)
CHARTQA = Features(
    {"image": Image(), "query": S, "label": TEXTS, "human_or_machine": ClassLabel(names=["human", "machine"])}
)
CHARTQA_LMMS = features("type question answer", image=Image())
TALLYQA = Features(
    {"image": Image(), "qa": [{"question": S, "answer": S, "is_simple": Value("bool")}]},
)


def picture(width=6, height=4, mode="RGB"):
    """A picture whose size tells which one it is."""
    return PILImage.new(mode, (width, height))


def full(schema, **row):
    """A row with every other column of the schema empty."""
    return dict.fromkeys(schema) | row


def repository(folder, schema, rows, split="test", config="default"):
    """Options that read a set from a repository of these rows."""
    rows = [full(schema, **row) for row in rows]
    return SetOptions(hub_ids=("nobody/moved", write_repository(folder, {split: rows}, schema, config)))
