"""What all evaluation sets share: rows, a seeded subset, two styles of prompts, references."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from string import ascii_uppercase
from typing import Any, ClassVar

from PIL import Image

from data_modules.hub import open_rows, require_columns
from data_modules.sources import Row, SkipRow, picture
from tiger.backbones.base import Prompt
from tiger.backbones.videos import Video
from tiger.metrics.judge import Judge
from tiger.metrics.task import Reference, TaskMetric

STYLES = ("score", "speed")
LONG_ANSWER = 1024  # tokens of an answer in the style `speed`
LETTER = "Answer with the option's letter from the given choices directly."
SHORT = "Answer the question using a single word or phrase."
# What papers on speculative decoding ask for, so that answers are long enough to time (ViSpec's protocol).
EXPLAIN = "Please answer with an explanation."
READ = (
    "Perform an OCR task on the provided image. Please extract the text accurately and provide a detailed "
    "explanation of the process. Ensure the response is comprehensive and well-structured."
)
SYSTEM = (
    "A chat between a curious human and an artificial intelligence assistant. The assistant gives helpful, "
    "detailed, and polite answers to the human's questions."
)

Entry = tuple[int, int]  # a row, and which of its questions


@dataclass(frozen=True)
class SetOptions:
    """Where an evaluation set is read from, if not from where it was published.

    Attributes:
        hub_ids: Hub ids to try in place of the known ones.
        path: Local copy of the data set, see `data_modules.hub.open_rows`.
        media_root: Folder of the image or video files that rows name.
        split: Another split than the usual one.
        max_frames: Most frames of a video.
        frames_as_images: Give the frames of a video as pictures, for model families that read no videos.
        judge: Grades the answers of MM-Vet in place of the rule.
    """

    hub_ids: tuple[str, ...] = ()
    path: Path | None = None
    media_root: Path | None = None
    split: str | None = None
    max_frames: int = 64
    frames_as_images: bool = False
    judge: Judge | None = None


AS_PUBLISHED = SetOptions()


@dataclass(frozen=True)
class Media:
    """The pictures and videos of one sample."""

    images: tuple[Image.Image, ...] = ()
    videos: tuple[Video, ...] = ()


class EvaluationSet(ABC):
    """Samples of one benchmark, in a seeded order, of which a subset may be taken.

    Every sample is looked at once, so that what cannot be used is known beforehand; pictures are decoded
    again when a prompt is made, and nothing is kept of them.

    Args:
        style: "score" for the prompts that the benchmark's scores are made with (short answers), "speed" for
            prompts that ask for long answers.
        limit: Most samples, or most questions where a question has copies; None for all.
        seed: Seed of the order; a smaller subset is the beginning of a larger one.
        options: Where the set is read from.

    Attributes:
        references: What each sample is judged by.
        skipped: Ids of samples that cannot be used, by reason.

    Raises:
        FileNotFoundError: If the data set or its media cannot be found.
        ValueError: If the style is unknown, the limit below one, columns are missing, or no sample is left.
    """

    name: ClassVar[str]
    hub_ids: ClassVar[tuple[str, ...]] = ()
    config: ClassVar[str | None] = None
    split: ClassVar[str] = "test"
    columns: ClassVar[tuple[str, ...]]
    id_column: ClassVar[str | None] = None  # where the rows have names of their own
    instruction: ClassVar[str]
    speed_instruction: ClassVar[str] = EXPLAIN
    max_new_tokens: ClassVar[int] = 16  # of an answer in the style `score`

    def __init__(
        self,
        style: str = "score",
        limit: int | None = None,
        seed: int = 0,
        options: SetOptions = AS_PUBLISHED,
    ) -> None:
        check_subset(self.name, style, limit)
        self.style, self.limit, self.seed, self.options = style, limit, seed, options
        self.rows = self.open()
        self.entries: list[Entry] = []
        self.references: list[Reference] = []
        self.unit_of: list[int] = []  # number of the unit of each sample
        self.skipped: dict[str, list[str]] = {}
        self._select()
        self.content = _content(self.references)
        self.files = _files(options.path)

    def __len__(self) -> int:
        return len(self.entries)

    def drop(self, prompt_ids: Collection[str], reason: str) -> None:
        """Leaves out samples, with all copies of their questions, from now on."""
        ids = self.prompt_ids
        units = {unit for unit, prompt_id in zip(self.unit_of, ids, strict=True) if prompt_id in prompt_ids}
        kept = [index for index, unit in enumerate(self.unit_of) if unit not in units]
        dropped = [r.id for r, unit in zip(self.references, self.unit_of, strict=True) if unit in units]
        self.skipped.setdefault(reason, []).extend(dropped)
        self.entries = [self.entries[index] for index in kept]
        self.references = [self.references[index] for index in kept]
        self.unit_of = [self.unit_of[index] for index in kept]

    @property
    def label(self) -> str:
        """Name and, unless it is `score`, style."""
        return self.name if self.style == "score" else f"{self.name}@{self.style}"

    @property
    def prompt_ids(self) -> list[str]:
        """Ids of all prompts, without making them."""
        return [f"{self.label}/{reference.id}" for reference in self.references]

    def settings(self) -> dict[str, Any]:
        """What prompts and references depend on beside their ids; `drop` leaves it as it is."""
        options = self.options
        names = ("hub_ids", "split", "max_frames", "frames_as_images")
        paths = {name: str(getattr(options, name) or "") for name in ("path", "media_root")}
        data = {"references": self.content, "files": self.files}
        return {name: getattr(options, name) for name in names} | paths | data

    @property
    def answer_limit(self) -> int:
        """Longest answer, tokens."""
        return self.max_new_tokens if self.style == "score" else LONG_ANSWER

    def prompt(self, index: int) -> Prompt:
        """Makes the request of one sample, pictures and videos decoded."""
        row, media = self.row(self.entries[index]), self.media(self.entries[index])
        return Prompt(
            self.score_text(row) if self.style == "score" else self.speed_text(row),
            media.images,
            SYSTEM if self.style == "speed" else "",
            f"{self.label}/{self.references[index].id}",
            media.videos,
        )

    @abstractmethod
    def question(self, row: Row) -> str:
        """What is asked, with its options, before any instruction."""

    @abstractmethod
    def answers(self, row: Row) -> Sequence[str]:
        """Accepted answers, captions, or the letter of the right choice; empty where there are none."""

    @abstractmethod
    def metrics(self) -> tuple[TaskMetric, ...]:
        """New metrics of this set; the first figure of the first one is the set's score."""

    def export(self, answers: Mapping[str, str]) -> str | None:
        """Answers by id as a grader outside reads them; None where there is none."""
        return None

    def choices(self, row: Row) -> Mapping[str, str]:
        """Text of each choice by its letter; empty for open questions."""
        return {}

    def group(self, row: Row) -> str:
        """What a sample belongs to, see `Reference`."""
        return ""

    def score_text(self, row: Row) -> str:
        """The user's text in the style `score`."""
        return f"{self.question(row)}\n{self.instruction}"

    def speed_text(self, row: Row) -> str:
        """The user's text in the style `speed`."""
        return f"{self.question(row)}\n{self.speed_instruction}"

    def open(self) -> Any:
        """Opens the rows."""
        given = self.options
        names, split = given.hub_ids or self.hub_ids, given.split or self.split
        rows = open_rows(names, given.path, split, self.config)
        require_columns(rows.column_names, self.columns, f"{self.name} ({given.path or ', '.join(names)})")
        return rows

    def units(self) -> list[list[Entry]]:
        """Entries that are taken or left together."""
        return [[(number, 0)] for number in range(len(self.rows))]

    def row(self, entry: Entry) -> Row:
        """The row of an entry."""
        row: Row = self.rows[entry[0]]
        return row

    def key(self, entry: Entry, row: Row) -> str:
        """Name of a sample, its own within the set."""
        return str(row[self.id_column]) if self.id_column else str(entry[0])

    def pictures(self, row: Row) -> Sequence[Any]:
        """The encoded pictures of a row, or their paths under `media_root`."""
        return [row["image"]]

    def media(self, entry: Entry) -> Media:
        """The decoded pictures or videos of an entry.

        Raises:
            SkipRow: If there is none, or one cannot be decoded.
        """
        found = self.pictures(self.row(entry))
        if not found or any(value is None for value in found):
            raise SkipRow("no_image")
        root = self.options.media_root or Path()
        return Media(tuple(picture(value, root).decode() for value in found))

    def check(self, entry: Entry) -> None:
        """Raises `SkipRow` for an entry whose pictures cannot be used."""
        self.media(entry)

    def reference(self, entry: Entry) -> Reference:
        """What a sample is judged by.

        Raises:
            SkipRow: If it has no answer or its fields are of another kind.
        """
        row = self.row(entry)
        try:
            answers = tuple(text for answer in self.answers(row) if (text := str(answer).strip()))
            key, question, choices = self.key(entry, row), self.question(row), self.choices(row)
            group = self.group(row)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise error if isinstance(error, SkipRow) else SkipRow("malformed") from error
        if not answers:
            raise SkipRow("no_answer")
        if choices and answers[0] not in choices:
            raise SkipRow("answer_is_no_choice")
        return Reference(key, answers, choices, group, question)

    def _select(self) -> None:
        """Takes the first usable units of the seeded order."""
        units, taken = self.units(), 0
        Random(f"{self.name}-{self.seed}").shuffle(units)
        for unit in units:
            if taken == self.limit:
                break
            try:
                references = [self.reference(entry) for entry in unit]
                for entry in unit:
                    self.check(entry)
            except SkipRow as skip:
                name = self.key(unit[0], self.row(unit[0])) if skip.reason != "malformed" else str(unit[0][0])
                self.skipped.setdefault(skip.reason, []).append(name)
                continue
            self.unit_of += [taken] * len(unit)
            taken += 1
            self.entries += unit
            self.references += references
        if not self.entries:
            reasons = ", ".join(f"{reason} ({len(ids)})" for reason, ids in self.skipped.items())
            raise ValueError(
                f"{self.name} has no sample that can be used: {len(units)} were read and left out because of "
                f"{reasons or 'nothing, as there are none'}. Answers of test splits are often hidden: choose "
                "another split; for pictures that are missing, check media_root."
            )


def check_subset(name: str, style: str, limit: int | None) -> None:
    """Raises ValueError for a style that does not exist and a limit below one."""
    if style not in STYLES:
        raise ValueError(f"Unknown style {style!r} of {name}; choose one of {', '.join(STYLES)}.")
    if limit is not None and limit < 1:
        raise ValueError(f"num_prompts is {limit}; take one sample of {name} or more, or null for all.")


def _content(references: Sequence[Reference]) -> str:
    """Hash of what is asked and what is right."""
    rows = [[r.id, r.question, r.answers, dict(r.choices)] for r in references]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _files(path: Path | None) -> list[list[Any]]:
    """Names, sizes and times of the files of a local copy."""
    if path is None:
        return []
    found = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return [[str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns] for file in found]


def lettered(texts: Sequence[str]) -> dict[str, str]:
    """Choices by letter."""
    return dict(zip(ascii_uppercase, texts, strict=False))


def listed(choices: Mapping[str, str]) -> str:
    """Choices as lines, "A. first" and so on."""
    return "\n".join(f"{letter}. {text}" for letter, text in choices.items())


def given(value: Any) -> str:
    """A text field, empty where it is missing; tables write "nan" for that."""
    return "" if value is None or str(value) in ("nan", "None") else str(value)
