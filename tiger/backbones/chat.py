"""Prompts as the chat templates and processors of transformers read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from tiger.backbones.base import Prompt
    from tiger.backbones.videos import Video


IMAGE = "<image>"  # stands in a text where a picture belongs


def messages(prompt: Prompt) -> list[dict[str, Any]]:
    """A prompt as a chat: images, videos, then text; images inside the text where it marks their places.

    Raises:
        ValueError: If the text marks another number of places than there are images.
    """
    images = [{"type": "image", "image": image.convert("RGB")} for image in prompt.images]
    videos = [{"type": "video", "video": _frames(video)} for video in prompt.videos]
    texts = prompt.text.split(IMAGE)
    if len(texts) > 1 and len(texts) != len(images) + 1:
        raise ValueError(
            f"The prompt {prompt.id!r} has {len(images)} images and {len(texts) - 1} places {IMAGE}. Mark "
            "a place for each image, or none to put all of them first."
        )
    inline = images if len(texts) > 1 else []
    content: list[dict[str, Any]] = [*([] if inline else images), *videos]
    for index, text in enumerate(texts):
        content += [{"type": "text", "text": text}] if text else []
        content += inline[index : index + 1]
    system = [{"role": "system", "content": [{"type": "text", "text": prompt.system}]}]
    return [*(system if prompt.system else []), {"role": "user", "content": content}]


def check_text(prompt: Prompt, processor: Any) -> None:
    """Checks that a prompt's text holds no token by which the processor marks visual tokens.

    Raises:
        ValueError: If it does.
    """
    names = ("image_token", "video_token")
    marks = {getattr(processor, name, None) or IMAGE for name in names} - {IMAGE}
    if found := sorted(mark for mark in marks if mark in prompt.text):
        raise ValueError(
            f"The text of prompt {prompt.id!r} holds {', '.join(found)}, which marks visual tokens. Take it "
            f"out; a picture's place in the text is {IMAGE}."
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
