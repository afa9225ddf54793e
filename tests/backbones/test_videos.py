import re

import av
import numpy as np
import pytest
from helpers import picture

from tiger.backbones.videos import Video, load_video

RATE, COUNT = 8, 20


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Two and a half seconds that grow brighter by ten with every frame."""
    path = tmp_path_factory.mktemp("video") / "grey.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for index in range(COUNT):
            grey = np.full((64, 96, 3), 10 * index, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize(
    ("fps", "max_frames", "rate", "indices"),
    [
        (1.0, 64, 1.0, [0, 8]),
        (2.0, 64, 2.0, [0, 4, 8, 12, 16]),
        (8.0, 64, 8.0, range(COUNT)),
        (99.0, 64, 8.0, range(COUNT)),  # no more than there is
        (8.0, 4, 1.6, [0, 5, 10, 15]),  # a lower rate, to the end of the file
        (0.1, 64, 0.1, [0]),
    ],
)
def test_frames_are_those_shown_at_even_times(file, fps, max_frames, rate, indices):
    video = load_video(file, fps, max_frames)
    assert video.fps == pytest.approx(rate)
    assert video.frames.shape == (len(indices), 64, 96, 3)
    assert video.frames.dtype == np.uint8
    shades = video.frames.mean((1, 2, 3))
    assert [round(shade / 10) for shade in shades] == list(indices)


def test_missing_video(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no video file .*gone\.mp4"):
        load_video(tmp_path / "gone.mp4")


def test_unreadable_videos(file, tmp_path):
    (tmp_path / "text.mp4").write_text("no video")
    (tmp_path / "cut.mp4").write_bytes(file.read_bytes()[:400])
    with av.open(str(tmp_path / "sound.wav"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), dtype=np.int16), format="s16", layout="mono")
        sound.rate = 8000
        container.mux(stream.encode(sound))
        container.mux(stream.encode())
    for name in ("text.mp4", "cut.mp4", "sound.wav"):
        with pytest.raises(ValueError, match=f"{re.escape(name)}' cannot be read as a video"):
            load_video(tmp_path / name)


def test_a_picture_is_a_video_of_one_frame(tmp_path):
    picture().save(tmp_path / "still.png")
    assert len(load_video(tmp_path / "still.png").frames) == 1


@pytest.mark.parametrize("options", [{"fps": 0.0}, {"max_frames": 0}])
def test_settings_out_of_range(file, options):
    with pytest.raises(ValueError, match="a rate above 0 and one frame or more"):
        load_video(file, **options)


@pytest.mark.parametrize(("shape", "fps"), [((0, 4, 4, 3), 1.0), ((2, 4, 4), 1.0), ((2, 4, 4, 3), 0.0)])
def test_frames_of_another_shape(shape, fps):
    with pytest.raises(ValueError, match=r"frames \[F, rows, columns, 3\]"):
        Video(np.zeros(shape, dtype=np.uint8), fps)
