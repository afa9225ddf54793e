"""Rows of the synthetic world in the schemas of the public training sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import Image

from data_modules.synthetic.types import IMAGE_SIZE, LABELS, Sample, Turn

Row = dict[str, Any]


def to_row(sample: Sample, turn_index: int) -> tuple[str, Row]:
    """Converts one turn into a row as the matching public data set has it.

    Args:
        sample: A generated sample.
        turn_index: Which of its turns.

    Returns:
        The name of the source and the row, whose image is a PIL image, or None if the sample is not drawn.
    """
    source, build = _SCHEMAS[sample.kind]
    return source, build(sample, sample.turns[turn_index], sample.seed * 8 + turn_index)


def _image(sample: Sample) -> Image.Image | None:
    return Image.fromarray(sample.image) if sample.image.size else None


def _llava(sample: Sample, turn: Turn, number: int) -> Row:
    return {
        "id": f"{number:012d}",
        "image": _image(sample),
        "conversations": [
            {"from": "human", "value": f"<image>\n{turn.question}"},
            {"from": "gpt", "value": turn.answer},
        ],
    }


def _tallyqa(sample: Sample, turn: Turn, number: int) -> Row:
    return {
        "answer": turn.number,
        "full_answer": turn.answer,
        "data_source": "synthetic",
        "image": _image(sample),
        "image_id": sample.seed,
        "question": turn.question,
        "question_id": number,
    }


def _textvqa(sample: Sample, turn: Turn, number: int) -> Row:
    chars = sorted((mark.x, mark.value) for mark in sample.marks if mark.label == "char")
    return {
        "image_id": f"{sample.seed:016x}",
        "question_id": number,
        "question": turn.question,
        "question_tokens": turn.question.lower().rstrip("?.").split(),
        "image": _image(sample),
        "image_width": IMAGE_SIZE,
        "image_height": IMAGE_SIZE,
        "flickr_original_url": "",
        "flickr_300k_url": "",
        "answers": [turn.answer] * 10,
        "image_classes": ["Sign"],
        "set_name": "train",
        "ocr_tokens": ["".join(LABELS["char"][value] for _, value in chars)],
    }


def _docvqa(sample: Sample, turn: Turn, number: int) -> Row:
    return {
        "questionId": str(number),
        "question": turn.question,
        "question_types": ["form"],
        "image": _image(sample),
        "docId": sample.seed,
        "ucsf_document_id": f"synthetic{sample.seed}",
        "ucsf_document_page_no": "1",
        "answers": [turn.answer],
        "data_split": "val",
    }


def _chartqa(sample: Sample, turn: Turn, number: int) -> Row:
    return {
        "image": _image(sample),
        "query": turn.question,
        "label": [turn.answer],
        "human_or_machine": number % 2,
    }


def _scienceqa(sample: Sample, turn: Turn, number: int) -> Row:
    return {
        "image": _image(sample),
        "question": turn.question,
        "choices": list(turn.choices),
        "answer": turn.answer_index,
        "hint": "",
        "task": "closed choice",
        "grade": "grade2",
        "subject": "natural science",
        "topic": "physics",
        "category": "Measurement",
        "skill": "Read levels and heights",
        "lecture": "",
        "solution": turn.answer,
    }


_SCHEMAS: dict[str, tuple[str, Callable[[Sample, Turn, int], Row]]] = {
    "scene": ("llava", _llava),
    "count": ("tallyqa", _tallyqa),
    "sign": ("textvqa", _textvqa),
    "document": ("docvqa", _docvqa),
    "chart": ("chartqa", _chartqa),
    "science": ("scienceqa", _scienceqa),
}
