"""Photos and results of bulk prediction in local folders or buckets, through pyarrow's file systems.

Photos are put into numbered batches once, and the output remembers which (`plan/`). The rows of a batch are one
Parquet file in `parts/`, which is written last and whole or not at all. So the files say what is done: a job that was
killed leaves whole batches, and a batch that is done twice replaces its own files.
"""

import io
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.images import PHOTO_SUFFIXES

PARTS, PLAN, COCO = "parts", "plan", "coco-parts"  # folders inside the output
FEWEST, MOST = 16, 512  # photos of a batch: what is lost when a worker is killed
MOST_PARTS = 20_000  # beyond so many files, batches are made larger
COCO_FILE = "annotations.json"  # the one file of a format that is for all photos


@dataclass(frozen=True)
class Photo:
    """A photo of the source."""

    path: str  # its address, without a query
    name: str  # relative to its source, which is how its results are named
    state: str = ""  # size and time of its file


@dataclass(frozen=True)
class Storage:
    """A folder or file, local or in a bucket.

    Attributes:
        files: pyarrow's file system.
        root: The path inside it.
        start: What addresses of files in it begin with, such as "s3://"; nothing for local paths.
    """

    files: Any
    root: str
    start: str

    @classmethod
    def at(cls, address: str) -> "Storage":
        """Open an address. A plain path is one of this machine.

        Raises:
            EmatError: If there is no such file system.
        """
        import pyarrow.fs

        if "://" not in address:
            return cls(pyarrow.fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(address)), "")
        try:
            files, root = pyarrow.fs.FileSystem.from_uri(address)
        except (OSError, ValueError) as error:
            raise EmatError(
                "bad-address", f"{address} cannot be opened ({error}); give a local path, s3://… or gs://…"
            ) from None
        return cls(files, root.rstrip("/"), address.partition("://")[0] + "://")

    @property
    def address(self) -> str:
        """Where it is, without keys or options that the address was given with."""
        return self.start + self.root

    def holds(self, address: str) -> bool:
        """Whether an address is this storage or below it."""
        return address == self.address or address.startswith(self.address + "/")

    def read(self, address: str) -> bytes:
        """Return the content of a file of this storage.

        Raises:
            EmatError: If it cannot be read.
        """
        try:
            with self.files.open_input_stream(address.removeprefix(self.start)) as stream:
                content: bytes = stream.read()
        except OSError as error:
            raise EmatError("cannot-read", f"{address} cannot be read: {error}") from None
        return content

    def write(self, inner: str, content: bytes) -> None:
        """Write a file below the root, whole or not at all.

        Raises:
            EmatError: If it cannot be written.
        """
        import pyarrow.fs

        target = f"{self.root}/{inner}"
        folder, _, name = target.rpartition("/")
        try:
            if not isinstance(self.files, pyarrow.fs.LocalFileSystem):
                with self.files.open_output_stream(target) as stream:  # an object appears when all of it has arrived
                    stream.write(content)
                return
            self.files.create_dir(folder, recursive=True)
            unfinished = f"{folder}/.{name}.{uuid.uuid4().hex}"
            with self.files.open_output_stream(unfinished) as stream:
                stream.write(content)
            self.files.move(unfinished, target)
        except OSError as error:
            raise EmatError("cannot-write", f"{self.start}{target} cannot be written: {error}") from None

    def entries(self, folder: str, suffix: str) -> list[str]:
        """The addresses of the files of a folder in order; what a killed writer left is hidden and ignored."""
        import pyarrow.fs

        found = self.files.get_file_info(pyarrow.fs.FileSelector(f"{self.root}/{folder}", allow_not_found=True))
        whole = [one for one in found if one.base_name.endswith(suffix) and not one.base_name.startswith(".")]
        return sorted(self.start + one.path for one in whole)


def find_bulk_photos(source: Sequence[str], leave_out: Storage) -> list[Photo]:
    """Return every photo below the addresses of `source` once, folders in the order of names.

    Args:
        source: Folders or files.
        leave_out: The output, whose pictures are not photos.

    Raises:
        EmatError: If an address does not exist, or there is no photo.
    """
    import pyarrow.fs

    photos: dict[str, Photo] = {}
    for address in source:
        storage = Storage.at(address)
        try:
            info = storage.files.get_file_info(storage.root)
            if info.type == pyarrow.fs.FileType.NotFound:
                raise EmatError("no-such-file", f"{address} does not exist")
            if info.type == pyarrow.fs.FileType.File:
                name = storage.root.rpartition("/")[2]
                photos.setdefault(storage.address, Photo(storage.address, name, _state(info)))
                continue
            inside = storage.files.get_file_info(pyarrow.fs.FileSelector(storage.root, recursive=True))
        except OSError as error:
            raise EmatError("cannot-read", f"{address} cannot be listed: {error}") from None
        for one in sorted((one for one in inside if one.is_file), key=lambda one: one.path):
            name, path = one.path.removeprefix(storage.root).lstrip("/"), storage.start + one.path
            if _is_photo(name) and not leave_out.holds(path):
                photos.setdefault(path, Photo(path, name, _state(one)))
    if not photos:
        raise EmatError(
            "no-photos", f"no photos in {', '.join(source)}; photos are files that end in {', '.join(PHOTO_SUFFIXES)}"
        )
    return list(photos.values())


def _state(info: Any) -> str:
    return f"{info.size} {info.mtime_ns}"


def _is_photo(name: str) -> bool:
    hidden = any(part.startswith(".") for part in name.split("/"))
    return name.lower().endswith(tuple(PHOTO_SUFFIXES)) and not hidden


class BulkOutput:
    """The output of a bulk prediction.

    Args:
        address: A folder, local or in a bucket.
    """

    def __init__(self, address: str) -> None:
        self.storage = Storage.at(address)

    def claim(self, mark: str, overwrite: bool = False) -> None:
        """Say which segmenter and options the output is of.

        Raises:
            EmatError: It is of others, or the folder has files of somebody else that were not to be overwritten.
        """
        name = "options.sha256"
        if self.storage.entries("", name):
            if self.storage.read(f"{self.storage.address}/{name}").decode() != mark:
                raise EmatError(
                    "other-run",
                    f"{self.storage.address} holds results of another segmenter or of other options; choose another "
                    "folder with --out",
                )
            return
        if not overwrite and (theirs := self.storage.entries("", "")):
            raise EmatError(
                "refuses-overwrite",
                f"{theirs[0]} is there already, and is not of such a run; choose an empty folder with --out, or "
                "replace files with --overwrite",
            )
        self.storage.write(name, mark.encode())

    def planned(self) -> dict[int, list[Photo]]:
        """Return the photos of every batch of earlier runs."""
        import pyarrow.parquet

        batches: dict[int, list[Photo]] = {}
        for address in self.storage.entries(PLAN, ".parquet"):
            table = pyarrow.parquet.read_table(io.BytesIO(self.storage.read(address)))
            for row in table.to_pylist():
                photo = Photo(row["path"], row["name"], row.get("state") or "")
                batches.setdefault(row["batch"], []).append(photo)
        return batches

    def plan(self, photos: Sequence[Photo]) -> dict[int, list[Photo]]:
        """Return the photos of every batch: those of earlier runs as they were, and new photos in new batches.

        Raises:
            EmatError: A photo was replaced since it was put into a batch, whose results would be those of the old one.
        """
        import pyarrow

        batches = self.planned()
        known = {photo.path: photo.state for batch in batches.values() for photo in batch}
        if changed := [photo.path for photo in photos if known.get(photo.path, photo.state) != photo.state]:
            raise EmatError(
                "other-run",
                f"{changed[0]} was changed since {self.storage.address} was begun ({len(changed)} photos were); choose "
                "another folder with --out",
            )
        new = [photo for photo in photos if photo.path not in known]
        size = min(MOST, max(FEWEST, -(-len(new) // MOST_PARTS)))
        first = max(batches, default=-1) + 1
        for start in range(0, len(new), size):
            batches[first + start // size] = new[start : start + size]
        if new:
            columns = {
                "path": [photo.path for photo in new],
                "name": [photo.name for photo in new],
                "state": [photo.state for photo in new],
                "batch": pyarrow.array([first + index // size for index in range(len(new))], pyarrow.int64()),
            }
            self.storage.write(f"{PLAN}/{first:09}.parquet", _parquet(pyarrow.table(columns)))
        return batches

    def done(self) -> set[int]:
        """The numbers of the batches that have their rows."""
        return {int(Path(address).stem) for address in self.storage.entries(PARTS, ".parquet")}

    def write(self, number: int, rows: list[dict[str, Any]], files: Mapping[str, Path]) -> None:
        """Write the results of a batch; to do it twice changes nothing.

        Args:
            number: The number of the batch.
            rows: Its rows.
            files: Files in other formats, by their path below the output.
        """
        import pyarrow

        for inner, file in files.items():
            self.storage.write(f"{COCO}/{number:09}.json" if inner == COCO_FILE else inner, file.read_bytes())
        table = pyarrow.Table.from_pylist(rows, schema=row_schema())
        self.storage.write(f"{PARTS}/{number:09}.parquet", _parquet(table))

    def join_coco(self) -> None:
        """Make one COCO file of those of the batches, one batch in memory at a time."""
        parts = self.storage.entries(COCO, ".json")
        if not parts:
            return
        target = f"{self.storage.root}/{COCO_FILE}"
        try:
            with self.storage.files.open_output_stream(target) as stream:
                for piece in self._joined(parts):
                    stream.write(piece.encode())
        except OSError as error:
            raise EmatError("cannot-write", f"{self.storage.start}{target} cannot be written: {error}") from None

    def _joined(self, parts: Sequence[str]) -> Iterator[str]:
        """The text of the joined file. Photos and objects are numbered anew from 1, in the order of batches."""
        head = json.loads(self.storage.read(parts[0]))
        del head["images"], head["annotations"]
        yield json.dumps(head, ensure_ascii=False)[:-1]
        for title in ("images", "annotations"):
            yield f', "{title}": ['
            photos = objects = 0
            for address in parts:
                content = json.loads(self.storage.read(address))
                for item in content[title]:
                    if title == "images":
                        item["id"] += photos
                    else:
                        item["id"], item["image_id"] = item["id"] + objects, item["image_id"] + photos
                    first = item["id"] == 1
                    yield ("\n" if first else ",\n") + json.dumps(item, ensure_ascii=False)
                photos += len(content["images"])
                objects += len(content["annotations"])
            yield "]"
        yield "}\n"


def row_schema() -> Any:
    """The columns of the Parquet files."""
    import pyarrow as pa

    return pa.schema(
        [
            ("path", pa.string()),
            ("class", pa.string()),
            ("score", pa.float32()),
            ("present", pa.bool_()),
            ("area", pa.int64()),
            ("height", pa.int32()),
            ("width", pa.int32()),
            ("counts", pa.string()),
            ("problem", pa.string()),
        ]
    )


def _parquet(table: Any) -> bytes:
    import pyarrow.parquet

    content = io.BytesIO()
    pyarrow.parquet.write_table(table, content)
    return content.getvalue()
