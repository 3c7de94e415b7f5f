"""Videos are read frame by frame, upright and within limits."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from emat.images import Reading
from emat.images.stacks import open_stack
from emat.images.videos import Video
from tests.raises import raises_code

av = pytest.importorskip("av", reason="needs PyAV (the extra video)")
SIZE = (48, 64)


def moving_box(path: Path, frames: int = 5) -> list[NDArray[np.uint8]]:
    """A white box that goes to the right, 6 pixels with every frame."""
    shown = []
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = SIZE[1], SIZE[0], "yuv420p", 4_000_000
        for number in range(frames):
            frame = np.zeros((*SIZE, 3), np.uint8)
            frame[16:32, 4 + 6 * number : 20 + 6 * number] = 255
            shown.append(frame)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return shown


def test_frames_come_in_order_and_again(tmp_path: Path) -> None:
    shown = moving_box(tmp_path / "a.mp4")
    video = Video(tmp_path / "a.mp4")
    assert (video.count, video.size) == (5, SIZE)
    for number in (0, 3, 4, 1):
        assert np.abs(video.frame(number).astype(int) - shown[number]).mean() < 12
    with raises_code("damaged-file"):
        video.frame(5)


def test_a_video_is_a_stack_of_times(tmp_path: Path) -> None:
    moving_box(tmp_path / "a.mkv")
    stack = open_stack(tmp_path / "a.mkv", Reading())
    assert stack is not None
    assert stack.shape == (5, 3, 1, *SIZE)
    assert [plane.position for plane in stack.planes("none")] == [{"t": number} for number in range(5)]


def test_what_is_no_video_or_too_large_is_refused(tmp_path: Path) -> None:
    moving_box(tmp_path / "a.mp4")
    with raises_code("photo-too-large"):
        open_stack(tmp_path / "a.mp4", Reading(max_pixels=1000))
    (tmp_path / "b.mp4").write_bytes(b"no video")
    (tmp_path / "list.mp4").write_text("#EXTM3U\n#EXTINF:1,\na.mp4\n")  # a playlist that refers to another file
    for name in ("b.mp4", "list.mp4"):
        with raises_code("damaged-file"):
            open_stack(tmp_path / name, Reading())


def test_a_video_that_was_cut_off_is_refused_in_plain_words(tmp_path: Path) -> None:
    moving_box(tmp_path / "a.mp4")
    content = (tmp_path / "a.mp4").read_bytes()
    for share in (0.2, 0.5, 0.8):
        (tmp_path / "cut.mp4").write_bytes(content[: int(share * len(content))])
        with raises_code("damaged-file") as caught:
            Video(tmp_path / "cut.mp4")
        assert "NoneType" not in str(caught.value)
