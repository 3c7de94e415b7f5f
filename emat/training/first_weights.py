"""A trained head to begin with, and what its training already was: a run that starts from it is no fresh one."""

import json
from dataclasses import dataclass

from emat.errors import EmatError
from emat.evaluation.seen_classes import Training, training_of
from emat.inference.heads import Head, find_head, head_metadata, load_head
from emat.tasks.training_tasks import TrainingList, class_key
from emat.tensor_files import file_sha256
from emat.training.settings import Settings


@dataclass(frozen=True)
class FirstWeights:
    """A head that a run starts from."""

    head: Head
    training: Training
    metadata: dict[str, str]  # of its file
    sha256: str

    def provenance(self, drawn_from: TrainingList) -> dict[str, str]:
        """What the files of a run say because of it: where they come from, and all the classes seen since."""
        before = {"sha256": self.sha256}
        before |= {key: self.metadata[key] for key in ("trained_tasks", "command") if key in self.metadata}
        return {"started_from": json.dumps(before), "classes": json.dumps(self._classes_with(drawn_from.classes))}

    def _classes_with(self, trained: tuple[str, ...]) -> list[str] | None:
        """Those of both trainings; None where the head does not list its own."""
        if self.training.classes is None:
            return None
        keys = {class_key(name) for name in trained}
        earlier = (name for name in json.loads(self.metadata["classes"]) if class_key(name) not in keys)
        return [*trained, *earlier]


def first_weights(settings: Settings) -> FirstWeights | None:
    """The head that `settings` start from, which must fit them; None if they name none."""
    name = settings.start_from
    if name is None:
        return None
    head, metadata = load_head(name, settings.backbone), head_metadata(name)
    for word, theirs, ours in (
        ("method", head.method, settings.method),
        ("backbone", metadata.get("backbone", settings.backbone), settings.backbone),
    ):
        if theirs != ours:
            raise EmatError(f"{name} is a head for the {word} {theirs}, not {ours}; train with --{word} {theirs}")
    return FirstWeights(head, training_of(name), metadata, file_sha256(find_head(name)))
