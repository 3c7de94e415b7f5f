"""From settings to what is trained and validated on: data sets opened, lists read or made, test classes kept apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emat.datasets import Dataset, open_dataset
from emat.datasets.circulated_lists import load_fold_list
from emat.datasets.class_areas import ClassAreas
from emat.datasets.fold_lists import FOLDS, FoldList, fold_classes, fold_list_from_areas
from emat.datasets.listing import lists_from_masks
from emat.datasets.opening import LAYOUTS
from emat.errors import EmatError
from emat.formats.whole_files import read_names
from emat.tasks.benchmark import Watch
from emat.tasks.published import published_protocol
from emat.tasks.sampling import Queries, TaskSampler
from emat.tasks.training_tasks import LEAST_IMAGES, TrainingList, TrainingSource, TrainingTasks, class_key
from emat.training.settings import Settings

ONE_CELL = 1 / 400  # of EMAT's support grid of 20 x 20: a smaller object may leave nothing to look at


@dataclass(frozen=True)
class Validation:
    """The tasks a run is judged by, and the data set they are from."""

    dataset: Dataset
    sampler: TaskSampler


@dataclass(frozen=True)
class RunData:
    """What a run trains on and is judged by."""

    tasks: TrainingTasks
    validation: Validation | None
    excluded: frozenset[str]  # names of the classes that are kept from training


def open_run_data(settings: Settings, watch: Watch = iter) -> RunData:
    """Open everything that `settings` name; whatever does not fit together is told before training starts."""
    if not settings.data:
        raise EmatError("there is no data set to train on; give one with --data DIR")
    if settings.folds is not None and settings.fold is None:
        raise EmatError("--folds cuts the classes for --fold; name the fold to train without")
    # Beside lists the data set's name may be one of theirs, which is no layout.
    kind = settings.dataset if settings.lists is None or settings.dataset in LAYOUTS else None
    datasets = [_open(root, kind if place == 0 else None) for place, root in enumerate(settings.data)]
    if len({dataset.root for dataset in datasets}) < len(datasets):
        raise EmatError("a data set is given twice by --data; its photos would count twice")
    chosen = _chosen_names(datasets, settings.names)
    validation = _validation(settings, datasets, chosen, watch)
    excluded = _known_classes(settings.exclude_classes, datasets)
    if settings.fold is not None:
        excluded |= _test_classes(settings, datasets[0], settings.fold)
    sources = [_source(settings, datasets, place, chosen, watch) for place in range(len(datasets))]
    drawn_from = TrainingList(sources, excluded)
    queries = settings.queries or ("listed" if [each.name for each in datasets] == ["pascal"] else "drawn")
    tasks = TrainingTasks(drawn_from, settings.seed, settings.positive, Queries(queries), settings.flip)
    return RunData(tasks, validation, frozenset(excluded))


def _open(root: Path, kind: str | None = None) -> Dataset:
    dataset = open_dataset(root, kind)
    if not dataset.has_photos:
        raise EmatError(f"{dataset.root} holds masks alone; training needs the photos as well")
    return dataset


def _check_photos(dataset: Dataset, entries: Sequence[tuple[str, int]]) -> None:
    """Every entry has mask and photo: one that has not is told now, and not hours later when it is drawn."""
    known = set(dataset.names)
    for name in dict.fromkeys(name for name, _ in entries):
        if name not in known:
            raise dataset.unknown(name)
        dataset.photo_file(name)  # which tells if it is missing


def _chosen_names(datasets: Sequence[Dataset], files: Sequence[Path]) -> dict[int, tuple[str, ...]]:
    """The names of every data set that a file restricts, by its place."""
    chosen: dict[int, tuple[str, ...]] = {}
    for order, file in enumerate(files):
        names = read_names(file)
        fitting = [place for place, dataset in enumerate(datasets) if set(names) <= set(dataset.names)]
        if len(files) == len(datasets) and order in fitting:
            fitting = [order]
        if not fitting:
            stranger = next((name for name in names if name not in datasets[0].names), names[0])
            raise EmatError(f"no data set has all the photos named in {file}, for example {stranger!r}; check the file")
        roots = " and ".join(str(datasets[place].root) for place in fitting)
        if len(fitting) > 1:
            raise EmatError(f"{roots} all have the photos named in {file}; give a --names for each --data, in order")
        if fitting[0] in chosen:
            raise EmatError(f"two --names files have photos of {roots}; write them into one")
        chosen[fitting[0]] = names
    return chosen


def _known_classes(names: Sequence[str], datasets: Sequence[Dataset]) -> set[str]:
    known = {class_key(name) for dataset in datasets for name in dataset.classes}
    for name in names:
        if class_key(name) not in known:
            raise EmatError(f"no data set has the class {name!r} that is to be excluded; check its name")
    return set(names)


def _test_classes(settings: Settings, dataset: Dataset, fold: int) -> set[str]:
    """The names of the fold's classes."""
    if settings.folds is None and dataset.name in ("pascal", "coco"):
        ids = fold_classes(dataset.name, fold)
    else:
        made = lists_from_masks(dataset, settings.folds, follow=lambda _: ())  # no mask: the classes are wanted alone
        if not 0 <= fold < len(made):
            raise EmatError(f"there is no fold {fold}; {dataset.root} has folds 0 to {len(made) - 1}")
        ids = made[fold].class_ids
    return {dataset.classes[class_id - 1] for class_id in ids}


def _source(
    settings: Settings, datasets: Sequence[Dataset], place: int, chosen: dict[int, tuple[str, ...]], watch: Watch
) -> TrainingSource:
    dataset = datasets[place]
    names = chosen.get(place, dataset.names)
    if settings.lists is not None and place == 0:
        return TrainingSource(dataset, _published_entries(settings, dataset, chosen.get(place)))
    minimum = ONE_CELL if settings.min_area is None else settings.min_area
    listed = _list_from_masks(dataset, names, range(1, len(dataset.classes) + 1), minimum, watch, "train")
    _check_photos(dataset, listed.entries)
    return TrainingSource(dataset, listed.entries)


def _published_entries(
    settings: Settings, dataset: Dataset, names: Sequence[str] | None
) -> tuple[tuple[str, int], ...]:
    """Those of the photos `names`, if given. PASCAL's list of a fold has that fold's classes, COCO's the others'."""
    assert settings.lists is not None
    name = settings.dataset or dataset.name
    if name == "coco" and settings.fold is not None:
        folds: Sequence[int] = (settings.fold,)
    else:
        folds = [fold for fold in range(FOLDS) if fold != settings.fold]
    lists = [load_fold_list(settings.lists, name, fold, "train") for fold in folds]
    entries = tuple(dict.fromkeys(entry for each in lists for entry in each.entries))
    if names is not None:
        wanted = set(names)
        entries = tuple(entry for entry in entries if entry[0] in wanted)
    _check_photos(dataset, entries)
    if settings.min_area:
        areas = ClassAreas.of_source(dataset.mask, dataset.root)
        minimum = settings.min_area
        entries = tuple((name, c) for name, c in entries if areas[name].get(c, 0.0) > minimum)
        areas.keep()
    return entries


def _list_from_masks(
    dataset: Dataset, names: Sequence[str], class_ids: Sequence[int], minimum: float, watch: Watch, split: str
) -> FoldList:
    areas = ClassAreas.of_source(dataset.mask, dataset.root)
    counted = list(areas.of(watch(names)))
    areas.keep()
    return fold_list_from_areas(dataset.name, 0, split, class_ids, counted, minimum)


def _validation(
    settings: Settings, datasets: Sequence[Dataset], chosen: dict[int, tuple[str, ...]], watch: Watch
) -> Validation | None:
    if settings.val_tasks == 0:
        return None
    dataset = datasets[0] if settings.val_data is None else _open(settings.val_data)
    if settings.lists is not None and settings.fold is not None and settings.val_data is None:
        fold_list = load_fold_list(settings.lists, settings.dataset or dataset.name, settings.fold, "val")
    else:
        names = _validation_names(settings, dataset, chosen)
        if names is None:
            return None
        wanted = None if settings.fold is None else _test_classes(settings, datasets[0], settings.fold)
        fold_list = _made_validation_list(dataset, names, wanted, settings.fold or 0, watch)
    _check_photos(dataset, fold_list.entries)
    protocol = published_protocol(fold_list, way=1, shot=1, tasks=settings.val_tasks)
    return Validation(dataset, TaskSampler(fold_list, protocol))


def _validation_names(
    settings: Settings, dataset: Dataset, chosen: dict[int, tuple[str, ...]]
) -> tuple[str, ...] | None:
    """The photos to validate on; None where neither a file, held-out photos nor unseen classes give any."""
    if settings.val_names is not None:
        return read_names(settings.val_names)
    if settings.val_data is None and 0 in chosen:
        trained = set(chosen[0])
        return tuple(name for name in dataset.names if name not in trained)
    return dataset.names if settings.val_data is not None or settings.fold is not None else None


def _made_validation_list(
    dataset: Dataset, names: Sequence[str], wanted: set[str] | None, fold: int, watch: Watch
) -> FoldList:
    keys = None if wanted is None else {class_key(name) for name in wanted}
    ids = [place for place, name in enumerate(dataset.classes, start=1) if keys is None or class_key(name) in keys]
    found = _list_from_masks(dataset, names, ids, 0.0, watch, "val")
    enough = tuple(class_id for class_id, count in found.counts.items() if count >= LEAST_IMAGES)
    if not enough:
        raise EmatError(
            f"no class to validate on has two photos in {dataset.root}; name other photos with --val-names, or train "
            "without validation: --val-tasks 0"
        )
    entries = tuple(entry for entry in found.entries if entry[1] in enough)
    return FoldList(found.dataset, fold, "val", entries, enough)
