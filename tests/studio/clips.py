"""Videos and stacks with red boxes that move, drawn by rule, as files to be dropped."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from tests.studio.conftest import GREY, RED

SIZE = (96, 128)
STEP = 6  # pixels that each box goes to the right from frame to frame
FRAMES = 6


def frames(count: int = FRAMES) -> NDArray[np.uint8]:
    """Grey frames (T, H, W, 3) with two red boxes; the lower one is not in the third frame."""
    shown = np.full((count, *SIZE, 3), GREY, np.uint8)
    for number, frame in enumerate(shown):
        frame[16:40, 8 + STEP * number : 32 + STEP * number] = RED
        if number != 2:
            frame[56:80, 40 + STEP * number : 64 + STEP * number] = RED
    return shown


def video(path: Path, count: int = FRAMES) -> bytes:
    """The file of these frames as a video."""
    import av

    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = SIZE[1], SIZE[0], "yuv420p", 8_000_000
        for frame in frames(count):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return path.read_bytes()


def tiff(values: NDArray[np.generic], axes: str | None = None, channels: tuple[str, ...] = ()) -> bytes:
    """The file of a stack; without axes, of pages that do not say what they are."""
    data = io.BytesIO()
    metadata: dict[str, Any] = {"axes": axes}
    if channels:
        metadata["Channel"] = {"Name": list(channels)}
    options: dict[str, Any] = {"ome": True, "metadata": metadata} if axes else {}
    photometric = "rgb" if axes is None and values.ndim == 4 else "minisblack"
    tifffile.imwrite(data, values, photometric=photometric, **options)
    return data.getvalue()
