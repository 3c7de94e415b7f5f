"""Which classes a head has seen in training: they are no test of it, and those it has not seen are kept for one."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emat.errors import EmatError
from emat.inference.heads import head_metadata
from emat.tasks.benchmark import Benchmark
from emat.tasks.training_tasks import class_key


@dataclass(frozen=True)
class Training:
    """What a head's file says of its training."""

    fold: int | None = None  # whose classes were kept for a test
    kept_apart: bool = False  # whether any class was
    classes: frozenset[str] | None = None  # keys of those it was trained on; None where the file does not list them

    def seen(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that it was trained on, as far as the file lists them."""
        return [name for name in names if class_key(name) in (self.classes or ())]


def training_of(model: str | Path) -> Training:
    """How the head `model` was trained; nothing is known where its file does not say it."""
    metadata = head_metadata(model)
    try:
        settings = json.loads(metadata.get("settings", "{}"))
        fold, classes = settings.get("fold"), json.loads(metadata.get("classes", "null"))
        return Training(
            None if fold is None else int(fold),
            fold is not None or bool(settings.get("exclude_classes")),
            None if classes is None else frozenset(class_key(str(name)) for name in classes),
        )
    except (ValueError, TypeError, AttributeError):
        return Training()  # another program's metadata


def warning(model: str | Path, training: Training, fold: int, names: Sequence[str]) -> str | None:
    """What is to be said of an evaluation of `model` on a fold with these class names; None if nothing is."""
    if training.classes is not None:
        seen = training.seen(names)
        return f"{model} has seen classes of fold {fold} in training: {', '.join(seen)}" if seen else None
    if training.fold in (None, fold):
        return None
    return f"{model} was trained for fold {training.fold}; it has seen the classes of fold {fold}"


@dataclass(frozen=True)
class Remaining:
    """A benchmark less the classes that are kept for a test, and in words what was left out."""

    benchmark: Benchmark
    left_out: str | None


def without_test(benchmark: Benchmark, training: Training, fold: int | None = None) -> Remaining:
    """`benchmark` less the classes of `fold`; of None, less those that were kept from the head in training."""
    if fold is None and training.classes is not None:
        return _without_unseen(benchmark, training) if training.kept_apart else Remaining(benchmark, None)
    number = training.fold if fold is None else fold
    if number is None:
        return Remaining(benchmark, None)
    test = benchmark.fold_list(number)
    others = tuple(each for each in benchmark.fold_lists if each is not test)
    if not others:
        raise EmatError(f"fold {number} is left out and there is no other; cut the classes into more by --folds")
    return Remaining(replace(benchmark, fold_lists=others), f"fold {number}")


def _without_unseen(benchmark: Benchmark, training: Training) -> Remaining:
    assert benchmark.dataset is not None
    names = {each: benchmark.dataset.classes[each - 1] for one in benchmark.fold_lists for each in one.class_ids}
    seen = set(training.seen(list(names.values())))
    lists = []
    for one in benchmark.fold_lists:
        kept = tuple(each for each in one.class_ids if names[each] in seen)
        if kept:
            entries = tuple((name, each) for name, each in one.entries if each in kept)
            lists.append(replace(one, class_ids=kept, entries=entries))
    if not lists:
        raise EmatError(
            f"the head was trained on no class of {benchmark.dataset.root}, so any of them may be a test's; "
            "name the fold to leave out by --fold"
        )
    left_out = ", ".join(name for name in names.values() if name not in seen)
    return Remaining(replace(benchmark, fold_lists=tuple(lists)), left_out or None)
