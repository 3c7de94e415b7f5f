"""Bulk prediction on Ray Data: from folders or buckets of photos to Parquet files, on any number of machines.

Photos are put into numbered batches once, and the output remembers which (`plan/`). An actor, which holds a segmenter,
reads the bytes of a batch's photos and writes their rows as one Parquet file named for the batch, whole or not at all.
So a job that was killed leaves whole files, the next one does the batches that have none, and a batch that is done
twice, because a worker was lost at the wrong moment, replaces its own file: every photo has its rows exactly once.
A photo that cannot be read is a row with the reason.
"""

import hashlib
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.formats.run_lengths import counts_of_mask, pack
from emat.images import PHOTO_SUFFIXES
from emat.inference.prediction import Prediction, Thresholds
from emat.inference.segmenter import Segmenter

PARTS, PLAN = "parts", "plan"  # folders of Parquet files inside the output: rows, and which photos a batch has
BATCH = 16  # photos of one file: what is lost when a worker is killed
BLOCKS_A_WORKER = 4


@dataclass(frozen=True)
class RayOptions:
    """How a bulk prediction is run."""

    address: str | None = None  # of a Ray cluster; None starts one on this machine
    workers: int | None = None  # actors; by default one for each GPU, or for each group of cores
    cores: int = 1  # of an actor
    gpus: float = 0.0  # of an actor
    batch: int = BATCH


@dataclass(frozen=True)
class BulkResult:
    """What a bulk prediction has done."""

    photos: int  # in the source
    done_before: int
    predicted: int
    failed: int  # photos of this run that could not be read


def predict_in_bulk(
    segmenter: Path,
    source: Sequence[str],
    out: str,
    options: RayOptions,
    thresholds: Thresholds | None = None,
) -> BulkResult:
    """Predict all photos below `source` and write rows to Parquet files in `out`.

    A row is one class of one photo: path, class, score, present, area, height, width, counts (COCO's compressed run
    lengths) and problem. A photo that cannot be read has one row, without a class.

    Args:
        segmenter: A fitted segmenter's file on this machine; its content is sent to the workers.
        source: Folders or files: local paths, or addresses such as s3://bucket/photos and gs://bucket/photos.
        out: A folder, of the same kinds.
        options: How it is run.
        thresholds: Thresholds in place of the segmenter's own.

    Raises:
        EmatError: If Ray is missing, there is no photo, or the output belongs to another segmenter.
    """
    ray, pyarrow_fs = _packages()
    fitted = segmenter.read_bytes()
    kept = (thresholds.presence, thresholds.mask) if thresholds is not None else None
    mark = hashlib.sha256(fitted + repr(kept).encode()).hexdigest()
    store = _Store(pyarrow_fs, out)
    paths = list(_photos(pyarrow_fs, source))
    if not paths:
        raise EmatError(f"no photos in {', '.join(source)}; photos are files that end in {', '.join(PHOTO_SUFFIXES)}")
    store.claim(mark)
    plan = store.plan(paths, options.batch)
    done = store.done()
    todo = [{"batch": number, "paths": batch} for number, batch in plan.items() if number not in done]
    before = sum(len(plan[number]) for number in done if number in plan)
    failed = _run(ray, todo, (fitted, kept, out), options) if todo else 0
    photos = sum(map(len, plan.values()))
    return BulkResult(photos, before, photos - before - failed, failed)


def _run(ray: Any, todo: list[dict[str, Any]], arguments: tuple[Any, ...], options: RayOptions) -> int:
    """Work off batches on Ray; returns how many photos could not be read."""
    began_here = not ray.is_initialized()
    if began_here:
        # Workers of a cluster have emat installed; those of this machine find it where this process did.
        folder = str(Path(__file__).parents[2])
        paths = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {} if options.address else {"runtime_env": {"env_vars": {"PYTHONPATH": paths}}}
        try:
            ray.init(
                address=options.address,
                num_cpus=None if options.address or options.workers is None else options.workers * options.cores,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                **environment,
            )
        except Exception as error:  # Ray has no error of its own for this
            raise EmatError(f"Ray did not start or cannot be reached ({str(error).strip().splitlines()[0]})") from None
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        resources = ray.cluster_resources()
        fitting = (
            int(resources.get("GPU", 0) / options.gpus) if options.gpus else resources.get("CPU", 1) / options.cores
        )
        workers = max(1, min(options.workers or int(fitting), len(todo)))
        batches = ray.data.from_items(todo, override_num_blocks=min(len(todo), BLOCKS_A_WORKER * workers))
        answered = batches.map(
            _Worker,
            fn_constructor_args=arguments,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=options.cores,
            num_gpus=options.gpus or None,
        )  # Ray starts a worker that is lost again, and gives its batches to another one
        return sum(int(row["failed"]) for row in answered.iter_rows())
    finally:
        if began_here:
            ray.shutdown()


class _Worker:
    """An actor: a segmenter, and the output that it writes to."""

    def __init__(self, fitted: bytes, thresholds: tuple[float, float] | None, out: str) -> None:
        import tempfile

        import pyarrow.fs

        with tempfile.NamedTemporaryFile(suffix=".emat") as file:
            file.write(fitted)
            file.flush()
            self._segmenter = Segmenter.load(file.name)
        if thresholds is not None:
            self._segmenter.thresholds = Thresholds(*thresholds)
        self._store, self._files = _Store(pyarrow.fs, out), pyarrow.fs

    def __call__(self, row: dict[str, Any]) -> dict[str, int]:
        number, paths = int(row["batch"]), [str(path) for path in row["paths"]]
        rows = [row for path in paths for row in self._rows(path)]
        self._store.write(number, rows)
        return {"batch": number, "failed": sum(one["class"] is None for one in rows)}

    def _rows(self, path: str) -> list[dict[str, Any]]:
        try:
            files, inner = filesystem(self._files, path)
            try:
                with files.open_input_stream(inner) as stream:
                    content = stream.read()
            except OSError as error:
                raise EmatError(f"{path} cannot be read: {error}") from None
            prediction = self._segmenter.predict(content)
        except EmatError as error:
            nothing = dict.fromkeys(("class", "score", "present", "area", "height", "width", "counts"))
            return [{"path": path, **nothing, "problem": str(error)}]
        return _rows_of(path, prediction)


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


class _Store:
    """The output: Parquet files of whole batches, and the mark of the segmenter that they came from."""

    def __init__(self, pyarrow_fs: Any, out: str) -> None:
        self._fs = pyarrow_fs
        self.files, self.root = filesystem(pyarrow_fs, out)

    def claim(self, mark: str) -> None:
        """Say which segmenter the output is of; EmatError if it is another one's."""
        for folder in (PARTS, PLAN):
            self.files.create_dir(f"{self.root}/{folder}", recursive=True)
        path = f"{self.root}/segmenter.sha256"
        if self.files.get_file_info(path).type == self._fs.FileType.File:
            with self.files.open_input_stream(path) as stream:
                if stream.read().decode() != mark:
                    raise EmatError(
                        f"{self.root} holds the rows of another segmenter; choose another folder with --out"
                    )
            return
        self._whole(path, lambda stream: stream.write(mark.encode()))

    def plan(self, paths: Sequence[str], size: int) -> dict[int, list[str]]:
        """Return the photos of every batch: those of earlier runs as they were, and new photos in new batches."""
        import pyarrow
        import pyarrow.parquet

        batches: dict[int, list[str]] = {}
        for info in self._entries(PLAN):
            table = pyarrow.parquet.read_table(info.path, filesystem=self.files)
            for path, number in zip(table["path"].to_pylist(), table["batch"].to_pylist(), strict=True):
                batches.setdefault(number, []).append(path)
        known = {path for batch in batches.values() for path in batch}
        new = [path for path in paths if path not in known]
        first = max(batches, default=-1) + 1
        for start in range(0, len(new), size):
            batches[first + start // size] = new[start : start + size]
        if new:
            numbers = [first + index // size for index in range(len(new))]
            table = pyarrow.table({"path": new, "batch": pyarrow.array(numbers, pyarrow.int64())})
            name = f"{self.root}/{PLAN}/{first:09}.parquet"
            self._whole(name, lambda stream: pyarrow.parquet.write_table(table, stream))
        return batches

    def done(self) -> set[int]:
        """The numbers of the batches that have their rows."""
        return {int(info.base_name.removesuffix(".parquet")) for info in self._entries(PARTS)}

    def write(self, number: int, rows: list[dict[str, Any]]) -> None:
        """Write the rows of a batch as one file; to do it twice changes nothing."""
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.Table.from_pylist(rows, schema=row_schema())
        target = f"{self.root}/{PARTS}/{number:09}.parquet"
        self._whole(target, lambda stream: pyarrow.parquet.write_table(table, stream))

    def _entries(self, folder: str) -> list[Any]:
        """The Parquet files of a folder in order; what a writer left that was killed is hidden and ignored."""
        found = self.files.get_file_info(self._fs.FileSelector(f"{self.root}/{folder}"))
        whole = [one for one in found if one.base_name.endswith(".parquet") and not one.base_name.startswith(".")]
        return sorted(whole, key=lambda one: one.base_name)

    def _whole(self, target: str, write: Any) -> None:
        folder, _, name = target.rpartition("/")
        unfinished = f"{folder}/.{name}.{uuid.uuid4().hex}"
        with self.files.open_output_stream(unfinished) as stream:
            write(stream)
        self.files.move(unfinished, target)


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


def filesystem(pyarrow_fs: Any, address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path inside it; a plain path is one of this machine."""
    if "://" not in address:
        return pyarrow_fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(address))
    try:
        files, inner = pyarrow_fs.FileSystem.from_uri(address)
    except (OSError, ValueError) as error:
        raise EmatError(f"{address} cannot be opened ({error}); give a local path, s3://… or gs://…") from None
    return files, inner


def _photos(pyarrow_fs: Any, source: Sequence[str]) -> Iterator[str]:
    """The address of every photo below `source`, each once, folders in the order of names."""
    seen: set[str] = set()
    for address in source:
        files, inner = filesystem(pyarrow_fs, address)
        scheme = address.partition("://")[0] + "://" if "://" in address else ""
        info = files.get_file_info(inner)
        if info.type == pyarrow_fs.FileType.NotFound:
            raise EmatError(f"{address} does not exist")
        found = [info]
        if info.type == pyarrow_fs.FileType.Directory:
            inside = files.get_file_info(pyarrow_fs.FileSelector(inner, recursive=True))
            found = sorted((one for one in inside if one.is_file), key=lambda one: one.path)
            found = [one for one in found if _is_photo(one.path[len(inner) :])]
        for one in found:
            path = scheme + one.path
            if path not in seen:
                seen.add(path)
                yield path


def _is_photo(inside: str) -> bool:
    """Whether a path below a folder is a photo that is not hidden."""
    hidden = any(part.startswith(".") for part in inside.split("/") if part)
    return inside.lower().endswith(tuple(PHOTO_SUFFIXES)) and not hidden


def _packages() -> tuple[Any, Any]:
    try:
        import pyarrow.fs
        import pyarrow.parquet
        import ray
        import ray.data
    except ImportError as error:
        raise EmatError(f'--engine ray needs the package {error.name}; run pip install "emat[ray]"') from None
    return ray, pyarrow.fs
