"""What was measured, read from the results files of a folder; and what is still to be measured.

Results are found by what they are of - the same tasks, photos, masks, weights, size and thresholds - not by the name of
their file. So a run for one table is used by every other table, and results of `emat eval` may be put into the folder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from emat.evaluation.evaluated_method import EvaluatedMethod
from emat.evaluation.metrics import TaskOutcome, count_outcome
from emat.evaluation.results import read_results
from emat.evaluation.summary import Conditions, FoldCounts, Summary, summarise
from emat.methods.base import PAPER_THRESHOLDS
from emat.reports.paper.paper_tasks import PaperTasks
from emat.reports.paper.parts import Need
from emat.tasks.task import Configuration

Weights: TypeAlias = tuple[str, int, str]  # the method's name, the size of photos, and the hash of all tensors
CellKey: TypeAlias = tuple[Weights, str, str]  # by whom, on which tasks, and how these are judged


@dataclass
class Ledger:
    """The outcomes of every task that was measured at the paper's thresholds.

    Args:
        folder: The folder of the results files.
        tasks: The tasks of the data set.
        methods: The methods of each fold, by the label of their model.
        needs: What results are looked for.
    """

    folder: Path
    tasks: PaperTasks
    methods: Mapping[str, Mapping[int, EvaluatedMethod]]
    needs: tuple[Need, ...]
    _outcomes: dict[CellKey, list[TaskOutcome]] = field(default_factory=dict)
    _summaries: dict[tuple[str, Need], list[Summary]] = field(default_factory=dict)

    def read(self) -> None:
        """Read all results files of the folder; those of other photos, masks or options are left out."""
        self._outcomes.clear()
        self._summaries.clear()
        for path in sorted(self.folder.glob("*.json")):
            content = read_results(path)
            paper = content.get("thresholds") == asdict(PAPER_THRESHOLDS)
            changed = content.get("refine") or content.get("only_segment") or content.get("options", {}).get("learn")
            if not paper or changed or not self._of_these_photos(content):
                continue
            for cell, rows in zip(content["cells"], content["outcomes"], strict=True):
                method = content["methods"][str(cell["fold"])]
                weights = (method["name"], method["image_size"], method["weights_sha256"])
                judged = _judged(cell["fold"], cell["split"], cell["class_ids"], cell["protocol"])
                self._outcomes[weights, cell["digest"], judged] = list(map(TaskOutcome.from_row, rows))

    def missing(self, label: str, needs: Sequence[Need]) -> list[Configuration]:
        """Return the configurations of these needs that the folder has no results of."""
        every = [each for need in needs for each in self.tasks.measured(need)]
        unique = {self._key(label, each): each for each in every}
        return [each for key, each in unique.items() if key not in self._outcomes]

    def outcomes(self, label: str, need: Need) -> list[tuple[Configuration, list[TaskOutcome]]]:
        """Return each fold's tasks and their outcomes; nothing unless all folds were measured."""
        if label not in self.methods:
            return []
        found = [
            (each, self._outcomes[key])
            for each in self.tasks.measured(need)
            if (key := self._key(label, each)) in self._outcomes
        ]
        return found if len(found) == len(self.tasks.folds) else []

    def summaries(self, label: str, need: Need) -> list[Summary]:
        """Return the scores of each fold and then of their mean; nothing unless all folds were measured."""
        key = (label, need)
        if key not in self._summaries:
            counts = [
                FoldCounts(_conditions(each), each.fold, [count_outcome(one, each.class_ids) for one in outcomes])
                for each, outcomes in self.outcomes(label, need)
            ]
            self._summaries[key] = summarise(counts)
        return self._summaries[key]

    def mean(self, label: str, need: Need) -> Summary | None:
        """Return the mean over the folds; None if it was not measured."""
        found = self.summaries(label, need)
        return found[-1] if found else None

    def _of_these_photos(self, content: Mapping[str, Any]) -> bool:
        """Whether results are of the photos and masks as they are now.

        A run for the paper records the state of the whole data set, `emat eval` that of its tasks' photos.
        """
        if content.get("data_state") == self.tasks.state:
            return True
        known = {each.digest: each for need in self.needs for each in self.tasks.measured(need)}
        if any(cell["digest"] not in known for cell in content["cells"]):
            return False
        tasks = [task for cell in content["cells"] for task in known[cell["digest"]].tasks]
        photos = {name for task in tasks for name in task.photos}
        return content.get("data_state") == self.tasks.dataset.state(photos)

    def _key(self, label: str, configuration: Configuration) -> CellKey:
        evaluated = self.methods[label][configuration.fold]
        method = evaluated.method
        weights = (method.name, method.preparation.image_size, evaluated.weights_sha256)
        protocol = configuration.protocol.as_json()
        judged = _judged(configuration.fold, configuration.split, configuration.class_ids, protocol)
        return weights, configuration.digest, judged


def _judged(fold: int, split: str, class_ids: Sequence[int], protocol: Mapping[str, Any]) -> str:
    asked = [protocol[name] for name in ("way", "shot", "setting", "query_has_class", "theta", "new_ways")]
    return repr([fold, split, list(class_ids), *(list(each) if isinstance(each, tuple) else each for each in asked)])


def _conditions(configuration: Configuration) -> Conditions:
    protocol = configuration.protocol
    return Conditions(
        configuration.dataset,
        configuration.split,
        protocol.way,
        protocol.shot,
        protocol.setting.value,
        protocol.query_has_class,
    )
