"""The protocols behind the published numbers: what each data set and size split prescribes."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from emat.datasets.circulated_lists import load_fold_list
from emat.datasets.fold_lists import FOLDS, FoldList
from emat.errors import EmatError
from emat.tasks.sampling import TASKS_PER_FOLD, Protocol, Queries
from emat.tasks.settings import THETA
from emat.tasks.task import Setting


def published_protocol(
    fold_list: FoldList,
    way: int,
    shot: int,
    setting: Setting = Setting.ORIGINAL,
    *,
    query_has_class: bool = False,
    all_classes: bool = False,
    theta: float | None = None,
    tasks: int | None = None,
) -> Protocol:
    """The protocol of `fold_list`'s data set and split.

    PASCAL walks its list; COCO, and any other data set, draws a class and then an image. Size splits walk a
    shuffled list and their queries always have the class. New ways of the fully augmented setting are the
    fold's test classes - the reading behind the published counts - or, with `all_classes`, any class.
    """
    is_size_split = fold_list.split not in ("train", "val")
    queries = Queries.LISTED if fold_list.dataset == "pascal" else Queries.DRAWN
    return Protocol(
        way=way,
        shot=shot,
        setting=setting,
        query_has_class=query_has_class or is_size_split,
        queries=Queries.SHUFFLED if is_size_split else queries,
        tasks=TASKS_PER_FOLD if tasks is None else tasks,
        theta=_theta(fold_list.dataset, setting) if theta is None else theta,
        new_ways=None if all_classes else fold_list.class_ids,
    )


def size_split_tasks(fold_lists: Iterable[FoldList]) -> int:
    """Number of tasks per fold of a size split: the longest of its folds' lists, `TASKS_PER_FOLD` at most."""
    return min(TASKS_PER_FOLD, max(len(fold_list.entries) for fold_list in fold_lists))


def load_split(folder: Path, dataset: str, split: str, folds: Sequence[int] | None = None) -> tuple[FoldList, ...]:
    """The lists of `folds` (None: all) of the published `dataset`'s `split` under `folder`."""
    return tuple(load_fold_list(folder, dataset, fold, split) for fold in (range(FOLDS) if folds is None else folds))


def _theta(dataset: str, setting: Setting) -> float:
    if dataset not in THETA and setting is not Setting.ORIGINAL:
        raise EmatError(f"theta is published for {' and '.join(THETA)}, not for {dataset}; give one")
    return THETA.get(dataset, 0.0)
