"""Prompts as the chat templates and processors of transformers read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import numpy as np

    from tiger.backbones.base import Prompt
    from tiger.backbones.videos import Video


IMAGE = "<image>"  # stands in a text where a picture belongs


class UnusablePrompt(ValueError):
    """A prompt that a model cannot read; in data, a reason to leave a row out.

    Attributes:
        reason: A short name, counted in reports.
    """

    reason: ClassVar[str]


class ImageToken(UnusablePrompt):
    """A text marks pictures that are not there."""

    reason = "image_token"


def messages(prompt: Prompt) -> list[dict[str, Any]]:
    """A prompt as a chat: images, videos, then text; images inside the text where it marks their places."""
    images = [{"type": "image", "image": image.convert("RGB")} for image in prompt.images]
    videos = [{"type": "video", "video": _frames(video)} for video in prompt.videos]
    texts = prompt.text.split(IMAGE)
    inline = images if len(texts) > 1 else []
    content: list[dict[str, Any]] = [*([] if inline else images), *videos]
    for index, text in enumerate(texts):
        content += [{"type": "text", "text": text}] if text else []
        content += inline[index : index + 1]
    system = [{"role": "system", "content": [{"type": "text", "text": prompt.system}]}]
    return [*(system if prompt.system else []), {"role": "user", "content": content}]


def marks(processor: Any) -> list[str]:
    """Tokens by which a processor marks visual tokens, without the mark of a picture's place."""
    names = ("image_token", "video_token")
    return sorted({getattr(processor, name, None) or IMAGE for name in names} - {IMAGE})


def check_text(text: str, num_images: int, processor: Any, name: str) -> None:
    """Checks that a user's text marks no pictures that are not there.

    Args:
        text: The text.
        num_images: Pictures of the prompt.
        processor: The processor that is going to read it.
        name: Name of the prompt, for messages.

    Raises:
        ImageToken: If it holds a token by which the processor marks visual tokens, or another number of
            places than there are pictures.
    """
    if found := [mark for mark in marks(processor) if mark in text]:
        raise ImageToken(
            f"The text of prompt {name!r} holds {', '.join(found)}, which marks visual tokens. Take it "
            f"out; a picture's place in the text is {IMAGE}."
        )
    if (places := text.count(IMAGE)) not in (0, num_images):
        raise ImageToken(
            f"The prompt {name!r} has {num_images} images and {places} places {IMAGE}. Mark a place for each "
            "image, or none to put all of them first."
        )


def _frames(video: Video) -> np.ndarray:
    """The frames; a single one twice, because processors join frames in pairs and refuse one alone."""
    return video.frames if len(video.frames) > 1 else video.frames.repeat(2, axis=0)


def video_options(videos: Sequence[Video]) -> dict[str, Any]:
    """What the processor must know about frames that are already chosen."""
    if not videos:
        return {}
    indices = [list(range(len(v.frames))) if len(v.frames) > 1 else [0, 0] for v in videos]
    metadata = [
        {"total_num_frames": len(places), "fps": video.fps, "frames_indices": places}
        for video, places in zip(videos, indices, strict=True)
    ]
    return {"videos_kwargs": {"video_metadata": [metadata], "do_sample_frames": False}}
