"""What a head was trained on: whether an evaluation is fair to it, and a new training run that starts from it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emat.errors import EmatError
from emat.files import file_sha256
from emat.methods.trained_head import TrainedHead, find_head, head_metadata, load_head, share_heads
from emat.tasks.training_tasks import class_key


@dataclass(frozen=True)
class Training:
    """What a head's file says about its training."""

    fold: int | None = None  # the fold whose classes were kept for the test
    kept_apart: bool = False  # whether any classes were kept for a test
    classes: frozenset[str] | None = None  # keys of the trained classes; None if the file does not list them

    def seen(self, names: Sequence[str]) -> list[str]:
        """Return those of `names` that the head was trained on, as far as the file lists them."""
        return [name for name in names if class_key(name) in (self.classes or ())]

    def warning(self, head: str | Path, fold: int, names: Sequence[str]) -> str | None:
        """Return a warning if an evaluation of `head` on a fold uses classes that were trained; None if not.

        Args:
            head: What the warning calls the head.
            fold: The fold that is evaluated.
            names: The names of the fold's classes.
        """
        if self.classes is not None:
            seen = self.seen(names)
            return f"{head} has seen classes of fold {fold} in training: {', '.join(seen)}" if seen else None
        if self.fold in (None, fold):
            return None
        return f"{head} was trained for fold {self.fold}; it has seen the classes of fold {fold}"


def training_of(name: str | Path) -> Training:
    """Return how a head was trained; everything is unknown if its file does not say it."""
    metadata = head_metadata(name)
    try:
        options = json.loads(metadata.get("settings", "{}"))
        fold, classes = options.get("fold"), json.loads(metadata.get("classes", "null"))
        return Training(
            None if fold is None else int(fold),
            fold is not None or bool(options.get("exclude_classes")),
            None if classes is None else frozenset(class_key(str(name)) for name in classes),
        )
    except (ValueError, TypeError, AttributeError):
        return Training()  # the metadata of another program


@dataclass(frozen=True)
class StartingHead:
    """A head whose weights a training run starts from."""

    head: TrainedHead
    training: Training
    sha256: str  # of its file
    metadata: Mapping[str, str] = field(default_factory=dict)  # of its file

    def provenance(self, classes: Sequence[str]) -> dict[str, str]:
        """Return what the files of the run say about this start: its file, and the classes of both trainings."""
        before = {"sha256": self.sha256}
        before |= {key: self.metadata[key] for key in ("trained_tasks", "command") if key in self.metadata}
        return {"started_from": json.dumps(before), "classes": json.dumps(self._all_classes(classes))}

    def _all_classes(self, trained: Sequence[str]) -> list[str] | None:
        """The classes of both trainings; None if the file does not list its own."""
        if self.training.classes is None:
            return None
        keys = {class_key(name) for name in trained}
        earlier = (name for name in json.loads(self.metadata["classes"]) if class_key(name) not in keys)
        return [*trained, *earlier]


def starting_head(name: str | None, method: str, backbone: str | None) -> StartingHead | None:
    """Load the head that a training run starts from.

    Args:
        name: The head's file or name; None if the run starts from random weights.
        method: The method that the run trains.
        backbone: The backbone that the run uses.

    Raises:
        EmatError: If the head is for another method or backbone.
    """
    if name is None:
        return None
    head, metadata = load_head(name, backbone), head_metadata(name)
    for word, theirs, ours in (
        ("method", head.method, method),
        ("backbone", metadata.get("backbone", backbone), backbone),
    ):
        if theirs != ours and not (word == "method" and share_heads(theirs, method)):
            raise EmatError(
                "wrong-head", f"{name} is a head for the {word} {theirs}, not {ours}; train with --{word} {theirs}"
            )
    return StartingHead(head, training_of(name), file_sha256(find_head(name)), metadata)
