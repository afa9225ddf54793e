"""Reads video files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np

ROUNDING = 1e-3  # seconds; files round the times of their frames


@dataclass(frozen=True)
class Video:
    """Decoded frames at an even rate.

    Attributes:
        frames: RGB frames [F, rows, columns, 3], uint8.
        fps: Frames per second of these frames, not of the file they came from.

    Raises:
        ValueError: If there is no frame, the shape is another, or the rate is not positive.
    """

    frames: np.ndarray
    fps: float

    def __post_init__(self) -> None:
        if self.frames.ndim != 4 or self.frames.shape[3] != 3 or not self.frames.size or self.fps <= 0:
            raise ValueError(
                f"A video has frames [F, rows, columns, 3] and a rate above 0, got shape {self.frames.shape} "
                f"at {self.fps} frames per second."
            )


def load_video(path: str | Path, fps: float = 1.0, max_frames: int = 64) -> Video:
    """Reads frames of a video file, evenly spaced from its first one on.

    Args:
        path: The file.
        fps: Frames to keep per second; at most the file's own rate is used.
        max_frames: Most frames to keep; a longer video is read at a lower rate, to its end.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a setting is out of range, or the file is no video that can be decoded.
    """
    if fps <= 0 or max_frames < 1:
        raise ValueError(
            f"fps is {fps} and max_frames {max_frames}; take a rate above 0 and one frame or more."
        )
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no video file {str(path)!r}.")
    try:
        times, rate = _schedule(_frame_times(path), fps, max_frames)
        return Video(np.stack(_frames_at(path, times)), rate)
    except (av.FFmpegError, IndexError, ValueError) as error:
        raise ValueError(
            f"{str(path)!r} cannot be read as a video ({error}); give a file that FFmpeg decodes, say MP4."
        ) from error


def _frame_times(path: str | Path) -> list[float]:
    """Times of all frames in seconds, read without decoding them."""
    with av.open(str(path)) as file:
        packets = file.demux(file.streams.video[0])
        times = sorted(float(packet.pts * packet.time_base) for packet in packets if packet.pts is not None)
    if not times:
        raise ValueError("it holds no frame with a time")
    return times


def _schedule(times: list[float], fps: float, max_frames: int) -> tuple[list[float], float]:
    """Times at which to look, and their rate."""
    if len(times) == 1:
        return times, fps
    interval = (times[-1] - times[0]) / (len(times) - 1)
    duration = interval * len(times)
    rate = min(fps, 1 / interval, max_frames / duration)
    count = max(int(duration * rate + ROUNDING), 1)
    return [times[0] + index / rate for index in range(count)], rate


def _frames_at(path: str | Path, times: list[float]) -> list[np.ndarray]:
    """The frame that is shown at each of the times."""
    kept: list[np.ndarray] = []
    shown = None
    with av.open(str(path)) as file:
        for frame in file.decode(file.streams.video[0]):
            while shown is not None and len(kept) < len(times) and frame.time > times[len(kept)] + ROUNDING:
                kept.append(shown.to_ndarray(format="rgb24"))
            if len(kept) == len(times):
                return kept
            shown = frame
    if shown is None:
        raise ValueError("no frame of it can be decoded")
    return kept + [shown.to_ndarray(format="rgb24")] * (len(times) - len(kept))
