"""The present state of photos and masks, so that results of other ones are never taken for theirs."""

import hashlib
from collections.abc import Iterable

from emat.datasets.dataset import Dataset
from emat.errors import EmatError


def data_state(dataset: Dataset, names: Iterable[str]) -> str:
    """A hash that changes with the files of these photos and their masks: by their sizes and times, unread."""
    files = {dataset.root} if dataset.root.is_file() else set()
    for name in set(names):
        files |= {file for file in (dataset.photo_file(name), dataset.mask_file(name)) if file is not None}
    state = hashlib.sha256()
    for file in sorted(files):
        try:
            found = file.stat()
        except OSError as error:
            raise EmatError(f"{file} cannot be read: {error.strerror}; restore it or check the data set") from None
        state.update(f"{file.name}|{found.st_size}|{found.st_mtime_ns}\n".encode())
    return state.hexdigest()
