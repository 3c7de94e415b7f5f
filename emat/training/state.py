"""The files of a training run: its folder, the state that it is resumed from, and the heads with their scores."""

import json
import math
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emat import __version__
from emat.errors import EmatError
from emat.evaluation.metrics import ScoreCounts, compute
from emat.files import unreadable
from emat.methods.base import Method
from emat.methods.registry import find_method
from emat.methods.trained_head import shape_metadata
from emat.model.encoding import MASK_RULE
from emat.outputs import whole_file
from emat.tasks.training_tasks import TrainingList
from emat.tensor_files import write_tensors
from emat.training.options import FIXED_IN_A_RUN, TrainingOptions, as_plain, from_plain, read_config

STATE, CONFIG = "state.pt", "run.yaml"
BEST, LAST = "best.safetensors", "last.safetensors"
FORMAT = 2
TO_CONTINUE = "and continue with --resume; the last saved state is kept"


def run_folder(options: TrainingOptions) -> Path:
    """Return the folder of a run: the option `out`, or a name made from the other options."""
    fold = "all" if options.fold is None else f"fold{options.fold}"
    data = "+".join(root.resolve().stem for root in options.data)
    return options.out or Path("runs") / f"{options.method}-{_backbone(options)}-{data}-{fold}"


def complete(options: TrainingOptions) -> TrainingOptions:
    """Return the options with the defaults filled in that depend on other options."""
    return replace(options, backbone=_backbone(options), out=run_folder(options))


def check_folder(options: TrainingOptions, resume: bool) -> tuple[Path, list[str]]:
    """Check that the folder of a run can be used.

    Args:
        options: The complete options of the run.
        resume: Whether to continue the run in the folder.

    Returns:
        The folder, and the options that changed since the run started, such as "epochs 1 -> 3".

    Raises:
        EmatError: If there is no run to continue, a run would be overwritten, or an option changed that must not.
    """
    folder = run_folder(options)
    if folder.exists() and not folder.is_dir():
        raise EmatError("not-a-folder", f"{folder} is not a folder; choose another --out")
    if resume and not (folder / CONFIG).is_file():
        raise EmatError("no-such-file", f"there is no run in {folder} to continue; check --out, or leave out --resume")
    if not (folder / STATE).is_file():
        return folder, []
    if not resume:
        raise EmatError(
            "refuses-overwrite", f"{folder} already holds a run; continue it with --resume, or choose another --out"
        )
    before = complete(from_plain(read_config(folder / CONFIG)))
    changed = before.changed_from(options)
    for name in changed:
        if name in FIXED_IN_A_RUN:
            raise EmatError(
                "other-run",
                f"the run in {folder} has {name} {getattr(before, name)}, not {getattr(options, name)}; "
                "train that in another --out",
            )
    if before.tasks_per_step != options.tasks_per_step:
        raise EmatError(
            "other-run",
            f"the run in {folder} has {before.tasks_per_step} tasks in a step, not {options.tasks_per_step}; with "
            "--batch-per-process, continue it with as many processes as before",
        )
    return folder, [f"{name} {getattr(before, name)} -> {getattr(options, name)}" for name in changed]


def _backbone(options: TrainingOptions) -> str:
    return options.backbone or find_method(options.method).default_backbone


@dataclass(frozen=True)
class ValidationScores:
    """The scores of one validation, between 0 and 1; NaN if no task counts for a score."""

    tasks: int
    miou: float
    accuracy: float
    false_mask_rate: float  # the share of queries without the class that were given a mask
    false_area: float  # the mean share of such a query that its mask covers

    @staticmethod
    def of(counts: ScoreCounts) -> "ValidationScores":
        """Compute the scores from the counts of all tasks."""
        scores = compute(counts)
        return ValidationScores(counts.tasks, scores.miou, scores.accuracy, scores.false_mask_rate, scores.false_area)


@dataclass
class RunProgress:
    """How far a run is. Tasks and learning rates follow from it, so no state of a random generator is saved."""

    epoch: int = 0
    step: int = 0  # number of steps done in this epoch
    tasks: int = 0  # number of tasks done in the run
    epoch_tasks: int = 0  # number of tasks done in this epoch
    drawn_from: str = ""  # hash of the photos and classes that tasks are drawn from
    best_miou: float = -1.0
    best_epoch: int = -1
    sums: dict[str, float] = field(default_factory=dict)  # of the losses of this epoch's tasks, for the mean
    files: str = ""  # hash of the files of photos and masks; not known in runs of earlier versions


def save_state(
    folder: Path,
    progress: RunProgress,
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Any],
    average: Mapping[str, Tensor],
) -> None:
    """Write everything that is needed to continue a run; the state before stays until the new one is complete.

    Args:
        folder: The folder of the run.
        progress: How far the run is.
        weights: The trained weights.
        optimizer: The state of the optimizer.
        average: The moving average of the weights; empty if there is none.

    Raises:
        EmatError: If the file cannot be written.
    """
    content = {
        "format": FORMAT,
        "progress": asdict(progress),
        "weights": dict(weights),
        "optimizer": dict(optimizer),
        "average": dict(average),
    }
    try:
        with whole_file(folder / STATE) as unfinished, unfinished.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
    except RuntimeError as error:  # PyTorch raises this if the disk is full
        reason = str(error).split("\n")[0]
        raise EmatError(
            "cannot-write", f"{folder / STATE} cannot be written ({reason}); make room {TO_CONTINUE}"
        ) from None
    except EmatError as error:
        raise EmatError(error.code, f"{error} {TO_CONTINUE}") from None


def read_state(folder: Path) -> dict[str, Any]:
    """Read what `save_state` wrote; only tensors and plain values are loaded, never code.

    Returns:
        "progress" (a `RunProgress`), "weights", "optimizer" and "average".

    Raises:
        EmatError: If the file cannot be read or is not a state of this version.
    """
    path = folder / STATE
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["format"] != FORMAT:
            raise ValueError("of another version")
        content["progress"] = RunProgress(**content["progress"])
    except OSError as error:
        raise unreadable(path, error) from None
    except Exception as error:  # other files fail in many ways
        raise EmatError(
            "wrong-file-version",
            f"{path} is not a state that emat {__version__} can continue from ({type(error).__name__}: "
            f"{str(error).partition(chr(10))[0][:80]}); train in another --out",
        ) from None
    return content


def save_trained(path: Path, method: Method, metadata: Mapping[str, str]) -> None:
    """Write the trained weights of a method as a head file.

    Args:
        path: The file.
        method: The method; its name is added to the metadata.
        metadata: What `provenance` and `scores_metadata` returned.

    Raises:
        EmatError: If the file cannot be written.
    """
    try:
        write_tensors(path, method.trained_weights(), {"method": method.name, **metadata})
    except EmatError as error:
        raise EmatError(error.code, f"{error} {TO_CONTINUE}") from None


def provenance(options: TrainingOptions, backbone: str, method: Method, drawn_from: TrainingList) -> dict[str, str]:
    """Return the metadata that all head files of a run share: what is needed to use the head and to train it again."""
    return {
        "backbone": backbone,
        "image_size": str(method.preparation.image_size),
        "mask_rule": MASK_RULE,  # heads without this entry were trained with masks that Pillow had shrunk
        **shape_metadata(method.shape),
        "version": __version__,
        "command": shlex.join(["emat", *sys.argv[1:]]),
        "settings": json.dumps(as_plain(options)),  # head files have always had the options under this name
        "seed": str(options.seed),
        "data_sha256": drawn_from.sha256,
        "classes": json.dumps(drawn_from.classes),
    }


def scores_metadata(scores: ValidationScores | None, tasks: int) -> dict[str, str]:
    """Return the metadata of one head file: the number of tasks trained on, and the scores if it was validated."""
    metadata = {"trained_tasks": str(tasks)}
    if scores is not None:
        plain = {name: None if math.isnan(value) else value for name, value in asdict(scores).items()}
        metadata["validation"] = json.dumps(plain)
    return metadata
