import json
from pathlib import Path

import pytest
import torch

from emat.errors import EmatError
from emat.model import build
from emat.model.checkpoint import save_head
from emat.training.data import open_run_data
from emat.training.first_weights import first_weights
from emat.training.settings import Settings
from tests.training.tiny import CLASSES, tiny_settings


def head(folder: Path, **metadata: str) -> str:
    path = folder / "head.safetensors"
    save_head(path, build("emat", channels=42).state_dict(), {"backbone": "efficientnet-lite2", **metadata})
    return str(path)


def settings_from(start: str, tiny: Path, out: Path, **changes: object) -> Settings:
    return tiny_settings(tiny, out, start_from=start, **{"backbone": "efficientnet-lite2", **changes})


def test_without_a_head_weights_are_random(tiny: Path, tmp_path: Path) -> None:
    assert first_weights(tiny_settings(tiny, tmp_path)) is None


def test_files_tell_where_a_run_began_and_every_class_once(tiny: Path, tmp_path: Path) -> None:
    seen = json.dumps(["Ant", "zebra", CLASSES[3]])
    settings = settings_from(head(tmp_path, classes=seen, trained_tasks="90"), tiny, tmp_path)
    found = first_weights(settings)
    assert found is not None
    said = found.provenance(open_run_data(settings).tasks.drawn_from)
    assert json.loads(said["classes"]) == [*CLASSES[2:], "Ant", "zebra"]
    assert json.loads(said["started_from"])["trained_tasks"] == "90"
    assert all(torch.isfinite(value).all() for value in found.head.tensors.values())


def test_a_head_that_lists_no_classes_leaves_them_unknown(tiny: Path, tmp_path: Path) -> None:
    settings = settings_from(head(tmp_path), tiny, tmp_path)
    found = first_weights(settings)
    assert found is not None
    assert json.loads(found.provenance(open_run_data(settings).tasks.drawn_from)["classes"]) is None


@pytest.mark.parametrize(("word", "other"), [("method", "cst"), ("backbone", "resnet50")])
def test_a_head_of_another_kind_is_no_start(word: str, other: str, tiny: Path, tmp_path: Path) -> None:
    settings = tiny_settings(
        tiny, tmp_path, start_from=head(tmp_path), **{"backbone": "efficientnet-lite2", word: other}
    )
    with pytest.raises(EmatError, match=f"is a head for the {word} .*, not {other}; train with --{word} "):
        first_weights(settings)
