"""Video-MME: multiple choice about short, medium and long videos, without subtitles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from PIL import Image

from data_modules.evaluation.base import LETTER, Entry, EvaluationSet, Media, given, listed
from data_modules.sources import Row
from tiger.backbones.videos import load_video
from tiger.metrics.multiple_choice import MultipleChoice
from tiger.metrics.task import TaskMetric

SUFFIXES = (".mp4", ".MP4", ".mkv")
SELECT = (
    "Select the best answer to the following multiple-choice question based on the video and the subtitles. "
    "Respond with only the letter (A, B, C, or D) of the correct option."
)


class VideoMMEShort(EvaluationSet):
    """Videos under two minutes at one frame per second.

    `media_root` is the folder of the unpacked videos, `<videoID>.mp4`. A video with more than `max_frames`
    frames at that rate is read at a lower one.
    """

    name, id_column = "video_mme_short", "question_id"
    hub_ids = ("lmms-eval/Video-MME", "lmms-lab/Video-MME")
    config = "videomme"
    columns = ("duration", "domain", "videoID", "question_id", "question", "options", "answer")
    instruction = f"\n{LETTER}"
    duration: ClassVar[str] = "short"
    fps: ClassVar[float] = 1.0

    def units(self) -> list[list[Entry]]:
        """The rows of this length."""
        return [[(row, 0)] for row, name in enumerate(self.rows["duration"]) if name == self.duration]

    def question(self, row: Row) -> str:
        """Question and options."""
        return f"{row['question']}\n{listed(self.choices(row))}"

    def score_text(self, row: Row) -> str:
        """The request to select, the question, the options."""
        return f"{SELECT}\n{super().score_text(row)}"

    def choices(self, row: Row) -> Mapping[str, str]:
        """The options, which come as "A. first"."""
        parts = (option.partition(".") for option in row["options"])
        return {letter.strip(): text.strip() for letter, _, text in parts}

    def answers(self, row: Row) -> Sequence[str]:
        """The right letter."""
        return [given(row["answer"])]

    def group(self, row: Row) -> str:
        """The domain."""
        return given(row["domain"])

    def video(self, entry: Entry) -> Path:
        """The file of a video.

        Raises:
            FileNotFoundError: If there is none.
        """
        root, name = self.options.media_root or Path(), self.row(entry)["videoID"]
        paths = [root / f"{name}{suffix}" for suffix in SUFFIXES]
        if found := [path for path in paths if path.is_file()]:
            return found[0]
        raise FileNotFoundError(
            f"There is no video {name} ({', '.join(SUFFIXES)}) in {str(root)!r}. Unpack the videos of "
            "Video-MME and give their folder as media_root."
        )

    def check(self, entry: Entry) -> None:
        """Raises `FileNotFoundError` for a missing video; decoding all of them beforehand takes too long."""
        self.video(entry)

    def media(self, entry: Entry) -> Media:
        """The frames of the video."""
        video = load_video(self.video(entry), self.fps, self.options.max_frames)
        if self.options.frames_as_images:
            return Media(tuple(Image.fromarray(frame) for frame in video.frames))
        return Media(videos=(video,))

    def metrics(self) -> tuple[TaskMetric, ...]:
        """Accuracy, overall and by domain."""
        return (MultipleChoice("videomme"),)


class VideoMMEMedium(VideoMMEShort):
    """Videos of 4 to 15 minutes at one frame per second."""

    name, duration = "video_mme_medium", "medium"


class VideoMMELong(VideoMMEShort):
    """Videos of 30 to 60 minutes at half a frame per second."""

    name, duration, fps = "video_mme_long", "long", 0.5
