"""Bulk prediction on Ray Data: from folders or buckets of photos to Parquet rows and files, on any number of machines.

An actor holds the segmenter. It reads the bytes of a batch's photos, predicts them, and writes the batch's results.
A photo that cannot be read is a row with the reason.

Photos and results are in local folders or buckets, through pyarrow's file systems. Photos are put into numbered batches
once, and the output remembers which (`plan/`). The rows of a batch are one Parquet file in `parts/`, which is written
last and whole or not at all. So the files say what is done: a job that was killed leaves whole batches, and a batch
that is done twice replaces its own files.
"""

import hashlib
import io
import json
import logging
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emat.errors import EmatError, needs_extra
from emat.files import inner_name
from emat.formats.run_lengths import counts_of_mask, pack
from emat.formats.writing import WriteOptions, open_writer
from emat.images import PHOTO_SUFFIXES, Pixels, Reading, read_channels
from emat.inference.photos import in_advance
from emat.inference.prediction import Prediction, Thresholds
from emat.inference.segmenter import AS_FITTED, Segmenter
from emat.progress import follow

BLOCKS_A_WORKER = 4
READ_AHEAD = 4  # photos that a worker fetches while it predicts one
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

        files = self.files.get_file_info(pyarrow.fs.FileSelector(f"{self.root}/{folder}", allow_not_found=True))
        whole = [one for one in files if one.base_name.endswith(suffix) and not one.base_name.startswith(".")]
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
        states = {photo.path: photo.state for batch in batches.values() for photo in batch}
        if changed := [photo.path for photo in photos if states.get(photo.path, photo.state) != photo.state]:
            raise EmatError(
                "other-run",
                f"{changed[0]} was changed since {self.storage.address} was begun ({len(changed)} photos were); choose "
                "another folder with --out",
            )
        new = [photo for photo in photos if photo.path not in states]
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


@dataclass(frozen=True)
class RayOptions:
    """Where a bulk prediction runs."""

    address: str | None = None  # of a Ray cluster; None starts one on this machine
    workers: int | None = None  # actors; by default one for each GPU, or for each group of cores
    cores: int = 1  # of an actor


@dataclass(frozen=True)
class BulkOptions:
    """What is predicted and written. None stands for what the segmenter's file says."""

    thresholds: Thresholds | None = None
    tiles: Any = AS_FITTED
    refine: Any = "auto"  # as fitted
    reading: Reading | None = None
    formats: tuple[str, ...] = ()  # beside the rows
    written: WriteOptions = field(default_factory=WriteOptions)
    instances: bool = False


@dataclass(frozen=True)
class BulkResult:
    """What a bulk prediction has done."""

    photos: int  # in the source and in earlier runs
    done_before: int
    predicted: int
    failed: int  # photos of this run that could not be read


@dataclass(frozen=True)
class _Job:
    """What every worker is given."""

    fitted: bytes
    source: tuple[str, ...]
    out: str
    options: BulkOptions


def predict_in_bulk(
    segmenter: Path,
    source: Sequence[str],
    out: str,
    where: RayOptions,
    options: BulkOptions | None = None,
    overwrite: bool = False,
) -> BulkResult:
    """Predict all photos below `source` and write rows to Parquet files in `out`.

    A row is one class of one photo: path, class, score, present, area, height, width, counts (COCO's compressed run
    lengths) and problem. A photo that cannot be read has one row, without a class. Files in other formats are laid out
    as `emat predict` lays them out.

    Args:
        segmenter: A fitted segmenter's file on this machine; its content is sent to the workers.
        source: Folders or files: local paths, or addresses such as s3://bucket/photos and gs://bucket/photos.
        out: A folder, of the same kinds.
        where: Where it runs.
        options: What is predicted and written.
        overwrite: Whether `out` may have files of somebody else, which are then replaced.

    Raises:
        EmatError: If Ray is missing or fails, there is no photo, two photos would have the same result, the output
            belongs to another segmenter, or it cannot be written.
    """
    ray = _ray()
    options = options or BulkOptions()
    job = _Job(segmenter.read_bytes(), tuple(source), out, options)
    output = BulkOutput(out)
    photos = find_bulk_photos(source, leave_out=output.storage)
    classes = Segmenter.load(segmenter, device="cpu").classes_
    output.claim(hashlib.sha256(job.fitted + repr(options).encode()).hexdigest(), overwrite)
    earlier = [photo for batch in output.planned().values() for photo in batch]
    _refuse_same_results([*earlier, *photos], classes, options)
    plan = output.plan(photos)
    done = output.done()
    todo = [
        {"batch": number, "paths": [photo.path for photo in batch], "names": [photo.name for photo in batch]}
        for number, batch in plan.items()
        if number not in done
    ]
    before = sum(len(plan[number]) for number in done if number in plan)
    failed = _run(ray, todo, job, where) if todo else 0
    if "coco" in options.formats:
        output.join_coco()
    count = sum(map(len, plan.values()))
    return BulkResult(count, before, count - before - failed, failed)


def _refuse_same_results(photos: Sequence[Photo], classes: Sequence[str], options: BulkOptions) -> None:
    """Raise an EmatError if two photos would be written to the same file, or the formats cannot hold the classes."""
    with tempfile.TemporaryDirectory() as folder:
        for form in options.formats:
            taken: dict[str, str] = {}
            with open_writer([form], Path(folder) / form, classes, options=options.written) as writer:
                for photo in photos:
                    path = writer.result_path(inner_name(photo.name))
                    other = taken.setdefault(path, photo.path)
                    if other != photo.path:
                        raise EmatError(
                            "same-output-name",
                            f"{other} and {photo.path} would both be written to {path}; rename one of the photos",
                        )


def _run(ray: Any, todo: list[dict[str, Any]], job: _Job, where: RayOptions) -> int:
    """Work off batches on Ray; returns how many photos could not be read."""
    began_here = not ray.is_initialized()
    if began_here:
        _start(ray, where)
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # an error is raised, and said in one sentence
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        fitting = gpus or int(resources.get("CPU", 1)) // where.cores
        workers = max(1, min(where.workers or fitting, len(todo)))
        batches = ray.data.from_items(todo, override_num_blocks=min(len(todo), BLOCKS_A_WORKER * workers))
        answered = batches.map(
            _Worker,
            fn_constructor_args=(job,),
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=where.cores,
            num_gpus=1 if gpus else None,
        )  # Ray starts a worker that is lost again, and gives its batches to another one
        return sum(int(row["failed"]) for row in follow(answered.iter_rows(), len(todo), "batches predicted"))
    except ray.exceptions.RayError as error:
        raise EmatError("ray-failed", _reason(error)) from None
    finally:
        if began_here:
            ray.shutdown()


def _start(ray: Any, where: RayOptions) -> None:
    # Workers of a cluster have emat installed; those of this machine find it where this process did.
    folder = str(Path(__file__).parents[2])
    paths = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {} if where.address else {"runtime_env": {"env_vars": {"PYTHONPATH": paths}}}
    try:
        ray.init(
            address=where.address,
            num_cpus=None if where.address or where.workers is None else where.workers * where.cores,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            **environment,
        )
    except Exception as error:  # Ray has no error of its own for this
        raise EmatError(
            "ray-failed", f"Ray did not start or cannot be reached ({str(error).strip().splitlines()[0]})"
        ) from None


def _reason(error: Any) -> str:
    """One sentence about why Ray stopped: what a worker said if it is known."""
    cause = error
    while cause is not None:
        if isinstance(cause, EmatError):
            return str(cause)
        cause = getattr(cause, "cause", None) or cause.__cause__
    lines = str(error).strip().splitlines()
    for line in reversed(lines):  # Ray may hand over the text of a worker's error instead of the error
        if "EmatError: " in line:
            return line.split("EmatError: ", 1)[1]
    return f"the job on Ray failed ({lines[-1] if lines else type(error).__name__}); the same command continues it"


class _Worker:
    """An actor: a segmenter, and the output that it writes to."""

    def __init__(self, job: _Job) -> None:
        self._options = job.options
        with tempfile.NamedTemporaryFile(suffix=".emat") as file:
            file.write(job.fitted)
            file.flush()
            self._segmenter = Segmenter.load(file.name, tiles=job.options.tiles, refine=job.options.refine)
        self._segmenter.thresholds = job.options.thresholds or self._segmenter.thresholds
        self._segmenter.reading = job.options.reading or self._segmenter.reading
        self._output = BulkOutput(job.out)
        self._sources = [Storage.at(address) for address in job.source]

    def __call__(self, row: dict[str, Any]) -> dict[str, int]:
        photos = [Photo(str(path), str(name)) for path, name in zip(row["paths"], row["names"], strict=True)]
        number = int(row["batch"])
        rows: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "results"
            classes, options = self._segmenter.classes_, self._options
            with open_writer(options.formats, out, classes, options=options.written) as writer:
                # Photos are fetched and decoded in a thread while earlier ones are predicted.
                for photo, pixels in zip(photos, in_advance(self._pixels, photos, READ_AHEAD), strict=True):
                    rows += self._rows(photo, pixels, writer)
            files = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
            self._output.write(number, rows, files)
        return {"batch": number, "failed": sum(one["class"] is None for one in rows)}

    def _pixels(self, photo: Photo) -> Pixels | EmatError:
        try:
            storage = next((one for one in self._sources if one.holds(photo.path)), None) or Storage.at(photo.path)
            return read_channels(storage.read(photo.path), name=photo.path, reading=self._segmenter.reading)
        except EmatError as error:
            return error

    def _rows(self, photo: Photo, pixels: Pixels | EmatError, writer: Any) -> list[dict[str, Any]]:
        try:
            if isinstance(pixels, EmatError):
                raise pixels
            prediction = self._segmenter.predict(pixels)
        except EmatError as error:
            nothing = dict.fromkeys(("class", "score", "present", "area", "height", "width", "counts"))
            return [{"path": photo.path, **nothing, "problem": str(error)}]
        objects = prediction.object_image if self._options.instances else None
        writer.write(inner_name(photo.name), prediction.label_map, prediction.photo, None, objects)
        return _rows_of(photo.path, prediction)


def _rows_of(path: str, prediction: Prediction) -> list[dict[str, Any]]:
    """One row for each class."""
    height, width = prediction.photo.shape[:2]
    rows = []
    for name in prediction.classes:
        mask = prediction.mask(name)
        area = int(mask.sum())
        verdict = {"class": name, "score": prediction.scores[name], "present": area > 0, "area": area}
        size = {"height": height, "width": width, "counts": pack(counts_of_mask(mask))}
        rows.append({"path": path, **verdict, **size, "problem": None})
    return rows


def _ray() -> Any:
    with needs_extra("--engine ray", "ray"):
        import pyarrow.parquet  # noqa: F401
        import ray
        import ray.data
    return ray
