"""What a run has written so far, kept beside the results, so that an interrupted run continues where it stopped."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.formats.whole_files import write_text


class Journal:
    """A file with a line of JSON for the run and one for each photo, which is gone once the run is complete.

    A journal of another run counts as none. A line that was cut off in the middle counts as not written.
    """

    def __init__(self, path: Path, run: dict[str, Any]) -> None:
        self._path = path
        kept = self._lines_of(run) or []
        self._is_empty = not kept
        write_text(path, "".join([json.dumps(run) + "\n", *kept]))
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise EmatError(f"{path} cannot be written: {error.strerror}; choose another folder") from None

    def add(self, record: dict[str, Any]) -> None:
        """Keep `record`, also when the process is ended the next moment."""
        try:
            self._file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
            self._file.flush()
            self._is_empty = False
        except OSError as error:
            raise EmatError(f"{self._path} cannot be written: {error.strerror}; make room and run again") from None

    def records(self) -> Iterator[dict[str, Any]]:
        """All records, one at a time, in the order they were added."""
        with self._path.open(encoding="utf-8") as file:
            next(file)
            for line in file:
                yield json.loads(line)

    def leave(self) -> None:
        """Close the file and leave it for a run that continues, if there is anything to go on from."""
        self._file.close()
        if self._is_empty:
            self._path.unlink(missing_ok=True)

    def remove(self) -> None:
        """The run is complete."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _lines_of(self, run: dict[str, Any]) -> list[str] | None:
        try:
            with self._path.open(encoding="utf-8") as file:
                if json.loads(file.readline()) != run:
                    return None
                return [line for line in file if _is_record(line)]
        except (OSError, ValueError):
            return None


def _is_record(line: str) -> bool:
    try:
        return line.endswith("\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False
