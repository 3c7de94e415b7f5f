"""Results files of two methods, made without a network: folds, settings, ways and size splits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emat import __version__
from emat.evaluation.metrics import TaskOutcome
from emat.evaluation.results import FORMAT, OUTCOME_FIELDS, write_results

Writer = Callable[..., Path]
PAPER: dict[str, Any] = {"thresholds": {"presence": 0.5, "mask": 0.5}}


def _configuration(fold: int, way: int, setting: str, split: str, tasks: int) -> dict[str, Any]:
    protocol = {"way": way, "shot": 1, "setting": setting, "query_has_class": split != "val"}
    return {
        "dataset": "pascal", "fold": fold, "split": split, "class_ids": [5 * fold + k for k in range(1, 6)],
        "protocol": protocol, "tasks": tasks,
    }  # fmt: skip


def _rows(configuration: dict[str, Any], quality: float) -> list[list[Any]]:
    random = np.random.default_rng(configuration["fold"])
    rows = []
    for _ in range(configuration["tasks"]):
        ways = tuple(configuration["class_ids"][: configuration["protocol"]["way"]])
        truth = tuple(bool(random.random() < 0.5) for _ in ways)
        present = tuple(there if random.random() < quality else not there for there in truth)
        unions = tuple(100 if there else 10 for there in truth)
        hits = tuple(int(100 * quality * random.random()) if there else 0 for there in truth)
        sides = (500, 900), (sum(hits), 500)
        rows.append(TaskOutcome(ways, truth, present, hits, unions, *sides).row())
    return rows


@pytest.fixture
def write_run(tmp_path: Path) -> Writer:
    def write(
        name: str,
        method: str = "emat",
        quality: float = 0.8,
        folds: tuple[int, ...] = (0, 1),
        ways: tuple[int, ...] = (2,),
        settings: tuple[str, ...] = ("original", "fully-augmented"),
        splits: tuple[str, ...] = ("val",),
        size: int = 256,
        thresholds: dict[str, Any] = PAPER,
    ) -> Path:
        configurations = [
            _configuration(fold, way, setting, split, 30)
            for fold in folds for way in ways for setting in settings for split in splits
        ]  # fmt: skip
        said = {"name": method, "backbone": "efficientnet-lite2", "image_size": size, "trained_parameters": 69_700}
        content = {
            "format": FORMAT, "fingerprint": name, "emat": __version__, "methods": dict.fromkeys(map(str, folds), said),
            **thresholds, "cells": configurations, "summaries": [], "outcome_fields": OUTCOME_FIELDS,
            "outcomes": [_rows(each, quality) for each in configurations],
        }  # fmt: skip
        write_results(tmp_path / name, content)
        return tmp_path / name

    return write
