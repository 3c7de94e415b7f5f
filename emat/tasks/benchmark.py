"""A data set cut into folds, ready to draw tasks from: lists from files or from the masks themselves."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from emat.datasets.circulated_lists import DATASETS
from emat.datasets.class_areas import ClassAreas
from emat.datasets.dataset import Dataset
from emat.datasets.fold_lists import FoldList
from emat.datasets.listing import fold_lists_in, lists_from_masks
from emat.datasets.opening import LAYOUTS, open_dataset
from emat.errors import EmatError
from emat.formats.whole_files import read_names
from emat.tasks.published import load_split, published_protocol, size_split_tasks
from emat.tasks.sampling import TaskSampler
from emat.tasks.settings import THETA
from emat.tasks.sizes import parse_size, quartile_theta, size_split
from emat.tasks.task import Setting

Watch: TypeAlias = Callable[[Sequence[str]], Iterable[str]]  # may show progress while it gives what it was given


@dataclass(frozen=True)
class Benchmark:
    """The lists of a data set's folds, and the data set with its class areas where its masks are at hand."""

    fold_lists: tuple[FoldList, ...]
    dataset: Dataset | None = None
    areas: ClassAreas | None = None

    def fold_list(self, fold: int) -> FoldList:
        """The list of one fold."""
        for fold_list in self.fold_lists:
            if fold_list.fold == fold:
                return fold_list
        raise EmatError(f"there is no fold {fold}; there are {', '.join(str(x.fold) for x in self.fold_lists)}")

    def sampler(
        self,
        fold: int,
        way: int,
        shot: int,
        setting: Setting = Setting.ORIGINAL,
        *,
        query_has_class: bool = False,
        all_classes: bool = False,
        theta: float | None = None,
        tasks: int | None = None,
    ) -> TaskSampler:
        """The tasks of one fold by the published protocol.

        `theta` is the published one, or for other data sets the lower quartile of the listed objects' sizes,
        which is how the published ones were chosen.
        """
        fold_list = self.fold_list(fold)
        if fold_list.split not in ("train", "val") and tasks is None:
            tasks = size_split_tasks(self.fold_lists)
        if theta is None and self.areas is not None and fold_list.dataset not in THETA:
            theta = quartile_theta(self.fold_lists, self.areas)
        protocol = published_protocol(
            fold_list,
            way,
            shot,
            setting,
            query_has_class=query_has_class,
            all_classes=all_classes,
            theta=theta,
            tasks=tasks,
        )
        return TaskSampler(fold_list, protocol, self.areas)


def open_benchmark(
    dataset: str | None,
    lists: Path | None,
    data: Path | None,
    *,
    size: str | None = None,
    names: Path | None = None,
    folds: str | None = None,
    min_area: float = 0.0,
    only: Sequence[int] | None = None,
    watch: Watch = iter,
) -> Benchmark:
    """The benchmark of `dataset`: a published name, or a kind of layout such as "folder" (None: recognised).

    Lists are read from the folder `lists`, or made from the masks at `data` as `lists_from_masks` does, of the images
    named in the file `names` (one a line; None: all). `size` asks for the objects in a range of sizes, `only` for
    some folds, so that the files of others may be absent.
    """
    if size is not None:
        parse_size(size)  # a slip is told before anything is opened
    opened = None if data is None else open_dataset(data, _kind(dataset, lists))
    if lists is not None:
        name = dataset or (opened.name if opened else None)
        if name is None:
            raise EmatError("a folder of lists does not tell its data set; name it, for example --dataset pascal")
        # The number of tasks of a size split depends on the lists of all its folds.
        return Benchmark(_read_lists(lists, name, size or "val", None if size else only), opened, _areas(opened))
    if opened is None:
        raise EmatError("tasks come from fold lists or from masks; give --lists, or --data to make lists from")
    wanted = opened.names if names is None else _names_of(names, opened)
    made = tuple(lists_from_masks(opened, folds, min_area, lambda _: watch(wanted)))
    areas = _areas(opened)
    if size is not None and areas is not None:
        made = tuple(size_split(each, areas, size) for each in made)
    return Benchmark(made, opened, areas)


def _kind(dataset: str | None, lists: Path | None) -> str | None:
    """The layout that `dataset` names; beside lists it may be a name of theirs instead."""
    return dataset if lists is None or dataset in LAYOUTS else None


def _areas(dataset: Dataset | None) -> ClassAreas | None:
    return None if dataset is None else ClassAreas.of_source(dataset.mask, dataset.root)


def _read_lists(folder: Path, dataset: str, split: str, only: Sequence[int] | None) -> tuple[FoldList, ...]:
    if dataset in DATASETS:
        return load_split(folder, dataset, split, only)
    found = tuple(each for each in fold_lists_in(folder, dataset) if each.split == split)
    if not found:
        raise EmatError(
            f"{folder} holds lists of {dataset}, but none of split {split}; write them with emat data lists"
        )
    return found


def _names_of(path: Path, dataset: Dataset) -> tuple[str, ...]:
    names = read_names(path)
    known = set(dataset.names)
    for name in names:
        if name not in known:
            raise dataset.unknown(name)
    return names
