"""Click-to-mask in the editor: photos are encoded in the background, then each click is answered at once."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from emat.errors import EmatError
from emat.inference.example import Mask
from emat.refine.click import Clicker
from emat.refine.mobilesam import find_mobilesam
from emat.studio.photos import StudioPhoto

MOST_ENCODED = 16  # photos, of about 4 MB each
ABSENT = (
    "clicking needs MobileSAM, which is not on this machine; run `emat weights fetch mobilesam` and reload the page"
)


class Clicks:
    """Answers clicks on the photos of all tabs. MobileSAM is loaded when the first photo is encoded."""

    def __init__(self) -> None:
        self._work = ThreadPoolExecutor(1, thread_name_prefix="emat studio clicks")
        self._clickers: OrderedDict[str, Future[Clicker]] = OrderedDict()  # by the file of the photo
        self._lock = threading.Lock()

    def available(self) -> bool:
        """Whether MobileSAM's weights are on this machine."""
        return find_mobilesam() is not None

    def prepare(self, photo: StudioPhoto) -> None:
        """Encode a photo in the background, unless that was begun already."""
        if self.available():
            self._clicker(photo)

    def is_ready(self, photo: StudioPhoto) -> bool:
        """Whether a click on the photo is answered at once."""
        clicker = self._clickers.get(str(photo.file))
        return clicker is not None and clicker.done()

    def mask(
        self,
        photo: StudioPhoto,
        points: Sequence[tuple[float, float]],
        labels: Sequence[int],
        box: tuple[float, float, float, float] | None,
    ) -> Mask:
        """Return the mask (h, w) of the object that was clicked, at the photo's working size.

        Raises:
            EmatError: The weights are not here, or a point lies outside the photo.
        """
        if not self.available():
            raise EmatError(ABSENT)
        return self._clicker(photo).result().mask(points, labels, box)

    def forget(self) -> None:
        """Free the memory of all encodings; photos are encoded again when they are clicked."""
        with self._lock:
            self._clickers.clear()

    def close(self) -> None:
        """End the work in the background."""
        self._work.shutdown(wait=False, cancel_futures=True)

    def _clicker(self, photo: StudioPhoto) -> "Future[Clicker]":
        with self._lock:
            clicker = self._clickers.pop(str(photo.file), None)
            if clicker is None or clicker.cancelled():
                clicker = self._work.submit(lambda: Clicker(photo.pixels))
            self._clickers[str(photo.file)] = clicker
            while len(self._clickers) > MOST_ENCODED:
                self._clickers.popitem(last=False)[1].cancel()
            return clicker
