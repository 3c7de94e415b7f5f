"""Bulk prediction on Ray Data: from folders or buckets of photos to Parquet rows and files, on any number of machines.

An actor holds the segmenter. It reads the bytes of a batch's photos, predicts them, and writes the batch's results.
A photo that cannot be read is a row with the reason. `emat.scale.bulk_output` says how a killed job goes on.
"""

import hashlib
import logging
import os
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emat.errors import EmatError, needs_extra
from emat.files import inner_name
from emat.formats.run_lengths import counts_of_mask, pack
from emat.formats.writing import WriteOptions, open_writer
from emat.images import Pixels, Reading, read_photo
from emat.inference.prediction import Prediction, Thresholds
from emat.inference.segmenter import AS_FITTED, Segmenter
from emat.progress import follow
from emat.scale.bulk_output import BulkOutput, Photo, Storage, find_bulk_photos

BLOCKS_A_WORKER = 4
READ_AHEAD = 4  # photos that a worker fetches while it predicts one


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
            with self._writer(out) as writer:
                for photo, pixels in self._read(photos):
                    rows += self._rows(photo, pixels, writer)
            files = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
            self._output.write(number, rows, files)
        return {"batch": number, "failed": sum(one["class"] is None for one in rows)}

    def _writer(self, out: Path) -> Any:
        return open_writer(self._options.formats, out, self._segmenter.classes_, options=self._options.written)

    def _read(self, photos: Sequence[Photo]) -> Iterator[tuple[Photo, Pixels | EmatError]]:
        """Fetch and decode photos in a thread while earlier ones are predicted."""
        waiting: deque[tuple[Photo, Future[Pixels | EmatError]]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="emat-reader") as reader:
            for photo in photos:
                waiting.append((photo, reader.submit(self._pixels, photo)))
                if len(waiting) > READ_AHEAD:
                    done, pixels = waiting.popleft()
                    yield done, pixels.result()
            while waiting:
                done, pixels = waiting.popleft()
                yield done, pixels.result()

    def _pixels(self, photo: Photo) -> Pixels | EmatError:
        try:
            storage = next((one for one in self._sources if one.holds(photo.path)), None) or Storage.at(photo.path)
            return read_photo(storage.read(photo.path), name=photo.path, reading=self._segmenter.reading)
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
        found = {"class": name, "score": prediction.scores[name], "present": area > 0, "area": area}
        size = {"height": height, "width": width, "counts": pack(counts_of_mask(mask))}
        rows.append({"path": path, **found, **size, "problem": None})
    return rows


def _ray() -> Any:
    with needs_extra("--engine ray", "ray"):
        import pyarrow.parquet  # noqa: F401
        import ray
        import ray.data
    return ray
