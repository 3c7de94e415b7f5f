"""The data of a run: the tasks to train on, without the classes of the test, and the tasks to validate on.

`open_run_data` opens the data sets and lists. `TaskTensors` turns training tasks into batches of tensors: features come
from the cache, and masks are resized once and kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from emat.datasets import Dataset, open_dataset
from emat.datasets.fold_lists import (
    FOLDS,
    FoldList,
    fold_classes,
    fold_list_from_areas,
    lists_from_masks,
    load_fold_list,
)
from emat.datasets.layouts import LAYOUTS
from emat.errors import EmatError
from emat.features import FeatureCache
from emat.files import read_names
from emat.formats.drawing import LabelMap
from emat.images import VOID, Pixels, resize_photo
from emat.methods.base import Features, Method, TrainingBatch
from emat.model.encoding import support_mask
from emat.tasks.benchmark import Watch
from emat.tasks.sampling import TaskRequest, TaskSampler, published_protocol
from emat.tasks.task import Queries
from emat.tasks.training_tasks import (
    LEAST_PHOTOS,
    SourcePhoto,
    TrainingList,
    TrainingSource,
    TrainingTask,
    TrainingTasks,
    class_key,
)
from emat.training.options import TrainingOptions

MASK_MEMORY = 2 * 2**30  # bytes of resized masks that are kept
PHOTO_MEMORY = 2 * 2**30  # bytes of resized photos that are kept if the method trains its backbone
ONE_CELL = 1 / 400  # share of one cell of EMAT's 20 x 20 support grid; the mask of a smaller object may keep no token


@dataclass(frozen=True)
class ValidationTasks:
    """The tasks that a run is validated on, and their data set."""

    dataset: Dataset
    sampler: TaskSampler


@dataclass(frozen=True)
class RunData:
    """What a run trains on and what it is validated on."""

    tasks: TrainingTasks
    validation: ValidationTasks | None
    excluded: frozenset[str]  # names of the classes that are kept out of training


def open_run_data(options: TrainingOptions, watch: Watch = iter) -> RunData:
    """Open all data sets and lists of a run.

    Args:
        options: The options of the run.
        watch: Wraps a sequence of photo names while their masks are read, to show how far that is.

    Raises:
        EmatError: If data sets, lists, names and classes do not fit together. All of this is checked before training.
    """
    if not options.data:
        raise EmatError("missing-option", "there is no data set to train on; give one with --data DIR")
    if options.folds is not None and options.fold is None:
        raise EmatError("missing-option", "--folds needs --fold; give the fold whose classes are kept out of training")
    # With lists, --dataset may be the name of the lists, which need not be a layout.
    kind = options.dataset if options.lists is None or options.dataset in LAYOUTS else None
    first, *others = options.data
    datasets = [_open(first, kind, options.masks), *map(_open, others)]
    if len({dataset.root for dataset in datasets}) < len(datasets):
        raise EmatError("given-twice", "a data set is given twice with --data; give it once")
    chosen = _chosen_names(datasets, options.names)
    validation = _validation(options, datasets, chosen, watch)
    excluded = _known_classes(options.exclude_classes, datasets)
    if options.fold is not None:
        excluded |= _test_classes(options, datasets[0], options.fold)
    sources = [_source(options, datasets, index, chosen, watch) for index in range(len(datasets))]
    drawn_from = TrainingList(sources, excluded)
    queries = options.queries or ("listed" if [dataset.name for dataset in datasets] == ["pascal"] else "drawn")
    tasks = TrainingTasks(drawn_from, options.seed, options.positive, Queries(queries), options.flip)
    return RunData(tasks, validation, frozenset(excluded))


def _open(root: Path, kind: str | None = None, masks: Path | None = None) -> Dataset:
    dataset = open_dataset(root, kind, masks)
    if not dataset.has_photos:
        raise EmatError("no-photos", f"{dataset.root} holds only masks; training needs the photos as well")
    return dataset


def _check_photos(dataset: Dataset, entries: Sequence[tuple[str, int]]) -> None:
    """Raise an error if an entry has no mask or no photo, now and not hours later when it is drawn."""
    names_here = set(dataset.names)
    for name in dict.fromkeys(name for name, _ in entries):
        if name not in names_here:
            raise dataset.unknown(name)
        dataset.photo_file(name)  # raises if it is missing


def _chosen_names(datasets: Sequence[Dataset], files: Sequence[Path]) -> dict[int, tuple[str, ...]]:
    """Return the photo names of each data set that one of the files restricts, by the index of the data set."""
    chosen: dict[int, tuple[str, ...]] = {}
    for order, file in enumerate(files):
        names = read_names(file)
        fitting = [index for index, dataset in enumerate(datasets) if set(names) <= set(dataset.names)]
        if len(files) == len(datasets) and order in fitting:
            fitting = [order]
        if not fitting:
            unknown = next((name for name in names if name not in datasets[0].names), names[0])
            raise EmatError(
                "names-do-not-match",
                f"no data set has all the photos named in {file}, for example {unknown!r}; check the file",
            )
        roots = " and ".join(str(datasets[index].root) for index in fitting)
        if len(fitting) > 1:
            raise EmatError(
                "names-do-not-match",
                f"{roots} all have the photos named in {file}; give one --names for each --data, in order",
            )
        if fitting[0] in chosen:
            raise EmatError("names-do-not-match", f"two --names files have photos of {roots}; join them into one file")
        chosen[fitting[0]] = names
    return chosen


def _known_classes(names: Sequence[str], datasets: Sequence[Dataset]) -> set[str]:
    keys = {class_key(name) for dataset in datasets for name in dataset.classes}
    for name in names:
        if class_key(name) not in keys:
            raise EmatError(
                "unknown-class", f"no data set has the class {name!r} that --exclude-classes names; check the spelling"
            )
    return set(names)


def _test_classes(options: TrainingOptions, dataset: Dataset, fold: int) -> set[str]:
    """Return the names of the fold's classes."""
    if options.folds is None and dataset.name in ("pascal", "coco"):
        ids = fold_classes(dataset.name, fold)
    else:
        # Only the classes are needed, so `follow` leaves out all masks.
        lists = lists_from_masks(dataset, options.folds, follow=lambda _: ())
        if not 0 <= fold < len(lists):
            raise EmatError("unknown-fold", f"there is no fold {fold}; {dataset.root} has folds 0 to {len(lists) - 1}")
        ids = lists[fold].class_ids
    return {dataset.classes[class_id - 1] for class_id in ids}


def _source(
    options: TrainingOptions, datasets: Sequence[Dataset], index: int, chosen: dict[int, tuple[str, ...]], watch: Watch
) -> TrainingSource:
    dataset = datasets[index]
    names = chosen.get(index, dataset.names)
    if options.lists is not None and index == 0:
        return TrainingSource(dataset, _published_entries(options, dataset, chosen.get(index)))
    minimum = ONE_CELL if options.min_area is None else options.min_area
    listed = _list_from_masks(dataset, names, range(1, len(dataset.classes) + 1), minimum, watch, "train")
    _check_photos(dataset, listed.entries)
    return TrainingSource(dataset, listed.entries)


def _published_entries(
    options: TrainingOptions, dataset: Dataset, names: Sequence[str] | None
) -> tuple[tuple[str, int], ...]:
    """Return the entries of the lists to train on; only those of the photos `names`, if they are given.

    The training list of a PASCAL fold has the classes of that fold, that of a COCO fold has those of the other folds.
    """
    assert options.lists is not None
    name = options.dataset or dataset.name
    if name == "coco" and options.fold is not None:
        folds: Sequence[int] = (options.fold,)
    else:
        folds = [fold for fold in range(FOLDS) if fold != options.fold]
    lists = [load_fold_list(options.lists, name, fold, "train") for fold in folds]
    entries = tuple(dict.fromkeys(entry for fold_list in lists for entry in fold_list.entries))
    if names is not None:
        wanted = set(names)
        entries = tuple(entry for entry in entries if entry[0] in wanted)
    _check_photos(dataset, entries)
    if options.min_area:
        areas = dataset.class_areas()
        minimum = options.min_area
        entries = tuple((name, c) for name, c in entries if areas[name].get(c, 0.0) > minimum)
        areas.keep()
    return entries


def _list_from_masks(
    dataset: Dataset, names: Sequence[str], class_ids: Sequence[int], minimum: float, watch: Watch, split: str
) -> FoldList:
    areas = dataset.class_areas()
    counted = list(areas.of(watch(names)))
    areas.keep()
    return fold_list_from_areas(dataset.name, 0, split, class_ids, counted, minimum)


def _validation(
    options: TrainingOptions, datasets: Sequence[Dataset], chosen: dict[int, tuple[str, ...]], watch: Watch
) -> ValidationTasks | None:
    if options.val_tasks == 0:
        return None
    dataset = datasets[0] if options.val_data is None else _open(options.val_data)
    if options.lists is not None and options.fold is not None and options.val_data is None:
        fold_list = load_fold_list(options.lists, options.dataset or dataset.name, options.fold, "val")
    else:
        names = _validation_names(options, dataset, chosen)
        if names is None:
            return None
        wanted = None if options.fold is None else _test_classes(options, datasets[0], options.fold)
        fold_list = _made_validation_list(dataset, names, wanted, options.fold or 0, watch)
    _check_photos(dataset, fold_list.entries)
    protocol = published_protocol(fold_list, TaskRequest(way=1, shot=1, tasks=options.val_tasks))
    return ValidationTasks(dataset, TaskSampler(fold_list, protocol))


def _validation_names(
    options: TrainingOptions, dataset: Dataset, chosen: dict[int, tuple[str, ...]]
) -> tuple[str, ...] | None:
    """Return the photos to validate on; None if there are neither named photos, held-out photos nor unseen classes."""
    if options.val_names is not None:
        return read_names(options.val_names)
    if options.val_data is None and 0 in chosen:
        trained = set(chosen[0])
        return tuple(name for name in dataset.names if name not in trained)
    return dataset.names if options.val_data is not None or options.fold is not None else None


def _made_validation_list(
    dataset: Dataset, names: Sequence[str], wanted: set[str] | None, fold: int, watch: Watch
) -> FoldList:
    keys = None if wanted is None else {class_key(name) for name in wanted}
    ids = [number for number, name in enumerate(dataset.classes, start=1) if keys is None or class_key(name) in keys]
    fold_list = _list_from_masks(dataset, names, ids, 0.0, watch, "val")
    enough = tuple(class_id for class_id, count in fold_list.counts.items() if count >= LEAST_PHOTOS)
    if not enough:
        raise EmatError(
            "too-few-photos",
            f"no class to validate on has two photos in {dataset.root}; name other photos with --val-names, or train "
            "without validation with --val-tasks 0",
        )
    entries = tuple(entry for entry in fold_list.entries if entry[1] in enough)
    return FoldList(fold_list.dataset, fold, "val", entries, enough)


class TaskTensors:
    """Turns training tasks into batches of tensors.

    Args:
        method: The method that is trained.
        drawn_from: The photos and classes that the tasks are drawn from.
        cache: The features of photos. None if the method trains its backbone: features are then computed for every
            batch, with gradients.
        mask_size: Side of the masks of queries, in pixels. Masks of supports have the size of the prepared photos.
    """

    def __init__(self, method: Method, drawn_from: TrainingList, cache: FeatureCache | None, mask_size: int) -> None:
        self._method, self._cache = method, cache
        self._can_mirror = True  # until the method says that it cannot mirror features
        self._size, self._mask_size = method.preparation.image_size, mask_size
        self._sources = [source.dataset for source in drawn_from.sources]
        self._values = drawn_from.mask_values
        self._mask = lru_cache(maxsize=MASK_MEMORY // max(self._size, mask_size) ** 2)(self._resized_mask)
        self._photo = lru_cache(maxsize=PHOTO_MEMORY // (3 * self._size**2))(self._resized_photo)

    def batch(self, tasks: Sequence[TrainingTask]) -> TrainingBatch:
        """Return the tensors of `tasks`, on the method's device."""
        device = next(self._method.parameters()).device
        supports = [self._object(task.support, task.way, None, task.flip_support) for task in tasks]
        queries = [self._object(task.query, task.way, self._mask_size, task.flip_query) for task in tasks]
        return TrainingBatch(
            [self._features(task.query, task.flip_query) for task in tasks],
            [self._features(task.support, task.flip_support) for task in tasks],
            [torch.from_numpy(mask).to(device, torch.float32) for mask in supports],
            torch.from_numpy(np.stack(queries)).to(device),
        )

    def _object(self, photo: SourcePhoto, way: int, size: int | None, flip: bool) -> LabelMap:
        """Return 1 where the photo shows the class; void and other classes count as background.

        A query's mask has the side `size`. A support has none: it is encoded with the mask of an evaluation.
        """
        value = self._values[way].get(photo.source)
        mask = self._mask(photo, size)
        inside = np.zeros(mask.shape, np.uint8) if value is None else (mask == value).astype(np.uint8)
        return np.ascontiguousarray(inside[:, ::-1]) if flip else inside

    def _resized_mask(self, photo: SourcePhoto, size: int | None) -> LabelMap:
        mask = self._sources[photo.source].mask(photo.name)
        return _at_side(mask, self._size) if size is None else shrink(mask, size)

    def _features(self, photo: SourcePhoto, flip: bool) -> Features:
        if self._cache is not None:
            return self._cached_features(photo, flip)
        small = self._photo(photo)
        return self._method.features(self._method.prepare(_mirrored(small) if flip else small))[0]

    def _cached_features(self, photo: SourcePhoto, flip: bool) -> Features:
        """Return features from the cache. If the method can mirror features, mirrored photos are not cached."""
        assert self._cache is not None
        if flip:
            plain = self._cached_features(photo, flip=False) if self._can_mirror else None
            mirrored = None if plain is None else self._method.mirror(plain)
            if mirrored is not None:
                return mirrored
            self._can_mirror = False
        # Validation uses the same cache with plain photo names, which never begin with a slash.
        return self._cache.features_of(f"/{photo.source}/{flip:d}/{photo.name}", lambda _: self._read(photo, flip))

    def _read(self, photo: SourcePhoto, flip: bool) -> Pixels:
        pixels = self._sources[photo.source].image(photo.name)
        return _mirrored(pixels) if flip else pixels

    def _resized_photo(self, photo: SourcePhoto) -> Pixels:
        # Kept at the method's size to save memory and time; `prepare` does not resize such a photo again.
        return resize_photo(self._read(photo, flip=False), (self._size, self._size))


def _mirrored(photo: Pixels) -> Pixels:
    return np.ascontiguousarray(photo[:, ::-1])


def _at_side(label_map: LabelMap, side: int) -> LabelMap:
    """Resize a label map to (side, side) by the rule of support masks."""
    return support_mask(torch.from_numpy(label_map.astype(np.float32)), side).numpy().astype(label_map.dtype)


def shrink(mask: LabelMap, size: int) -> LabelMap:
    """Resize a query's label map to (size, size), but keep one pixel of a class that would vanish.

    Otherwise a small object would count as absent in the loss. A class does vanish if every pixel that it could take is
    the last pixel of another class.

    >>> mask = np.zeros((90, 90), np.uint8)
    >>> mask[31, 61] = 7
    >>> np.argwhere(shrink(mask, 3) == 7).tolist()
    [[1, 2]]
    """
    small = _at_side(mask, size)
    counts = {value: int(count) for value, count in zip(*np.unique(small, return_counts=True), strict=True)}
    for lost in np.setdiff1d(np.unique(mask), [*counts, 0, VOID]):
        rows, columns = np.nonzero(mask == lost)
        indices = np.unique(rows * size // mask.shape[0] * size + columns * size // mask.shape[1])
        taken_from = small.flat[indices]
        indices = indices[[value in (0, VOID) or counts[value] > 1 for value in taken_from]]
        if len(indices):
            index = indices[len(indices) // 2]
            counts[small.flat[index]] -= 1
            counts[lost] = 1
            small.flat[index] = lost
    return small
