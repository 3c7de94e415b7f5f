"""A run on disk: the newest state to go on from, and the trained weights as files anyone can load."""

import json
import math
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from emat import __version__
from emat.errors import EmatError
from emat.method import Method
from emat.tasks.training_tasks import TrainingList
from emat.tensor_files import write_tensors
from emat.training.validation import Check

STATE, CONFIG = "state.pt", "run.yaml"
BEST, LAST = "best.safetensors", "last.safetensors"
FORMAT = 2


@dataclass
class Progress:
    """Where a run stands. Tasks and learning rate follow from it, so no random state is kept."""

    epoch: int = 0
    step: int = 0  # steps done in this epoch
    tasks: int = 0  # trained on so far
    epoch_tasks: int = 0  # and in this epoch
    drawn_from: str = ""  # hash of the photos and classes that tasks are drawn from
    best_miou: float = -1.0
    best_epoch: int = -1
    sums: dict[str, float] = field(default_factory=dict)  # of this epoch's losses, for its mean


def save_state(
    folder: Path,
    progress: Progress,
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Any],
    average: Mapping[str, Tensor],
) -> None:
    """Write the state whole or not at all; the one before stays until it is."""
    content = {
        "format": FORMAT,
        "progress": asdict(progress),
        "weights": dict(weights),
        "optimizer": dict(optimizer),
        "average": dict(average),
    }
    unfinished = folder / f".{STATE}.{os.getpid()}"
    try:
        with unfinished.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, folder / STATE)
    except (OSError, RuntimeError) as error:  # PyTorch's writer reports a full disk as a RuntimeError
        raise EmatError(_cannot_write(folder / STATE, error)) from None
    finally:
        unfinished.unlink(missing_ok=True)


def read_state(folder: Path) -> dict[str, Any]:
    """What `save_state` wrote; only tensors and plain values are ever read."""
    path = folder / STATE
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["format"] != FORMAT:
            raise ValueError("of another version")
        content["progress"] = Progress(**content["progress"])
    except OSError as error:
        raise EmatError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # what is no such file fails in many ways
        raise EmatError(
            f"{path} is no state that emat {__version__} can go on from ({type(error).__name__}: "
            f"{str(error).partition(chr(10))[0][:80]}); train in another --out"
        ) from None
    return content


def save_trained(path: Path, method: Method, metadata: Mapping[str, str]) -> None:
    """Write the trained part with all that is needed to use it and to train it again."""
    try:
        write_tensors(path, method.trained_weights(), {"method": method.name, **metadata})
    except (OSError, SafetensorError) as error:
        raise EmatError(_cannot_write(path, error)) from None


def provenance(settings: Mapping[str, Any], backbone: str, method: Method, drawn_from: TrainingList) -> dict[str, str]:
    """Metadata that every file of a run has."""
    return {
        "backbone": backbone,
        "image_size": str(method.preparation.image_size),
        "version": __version__,
        "command": shlex.join(["emat", *sys.argv[1:]]),
        "settings": json.dumps(settings),
        "seed": str(settings["seed"]),
        "data_sha256": drawn_from.sha256,
        "classes": json.dumps(drawn_from.classes),
    }


def scores_metadata(check: Check | None, tasks: int) -> dict[str, str]:
    """What is known of the weights of one moment."""
    known = {"trained_tasks": str(tasks)}
    if check is not None:
        scores = {name: None if math.isnan(value) else value for name, value in asdict(check).items()}
        known["validation"] = json.dumps(scores)
    return known


def _cannot_write(path: Path, error: Exception) -> str:
    reason = (getattr(error, "strerror", None) or str(error)).split("\n")[0]
    return f"{path} cannot be written ({reason}); make room and go on with --resume: the state before is kept"
