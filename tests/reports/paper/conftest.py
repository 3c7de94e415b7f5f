"""A tiny PASCAL-5i: 20 classes in photos of 60 x 44, every class in six or more of them, some small, some together."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from emat.datasets.fold_lists import fold_classes
from emat.images import write_indexed_png
from emat.methods.trained_head import save_head
from emat.model import build
from emat.reports.paper.models import PaperModel, parse_model
from emat.reports.paper.parts import PaperTasks, open_tasks

HEIGHT, WIDTH = 44, 60
SIDES = ((6, 8), (14, 12), (16, 20), (24, 22), (30, 24), (18, 26))  # 2, 6, 12, 20, 27 and 18 % of the photo


def make_pascal(root: Path) -> Path:
    random = np.random.default_rng(0)
    (root / "JPEGImages").mkdir(parents=True)
    for fold in range(4):
        classes = fold_classes("pascal", fold)
        for class_id in classes:
            other = classes[(classes.index(class_id) + 1) % len(classes)]
            for number, (high, wide) in enumerate(SIDES * 2):
                photo = random.integers(90, 130, (HEIGHT, WIDTH, 3)).astype(np.uint8)
                mask = np.zeros((HEIGHT, WIDTH), np.uint8)
                top = int(random.integers(2, 10))
                shown = [(class_id, 2, high, wide)] + ([(other, 34, 20, 22)] if number % 4 == 3 else [])
                for each, left, tall, broad in shown:
                    where = np.s_[top : top + tall, left : left + broad]
                    mask[where], photo[where] = each, (11 * each, 255 - 9 * each, 40 * (each % 6))
                name = f"p{class_id:02}_{number:02}"
                Image.fromarray(photo).save(root / "JPEGImages" / f"{name}.jpg", quality=95)
                write_indexed_png(root / "SegmentationClassAug" / f"{name}.png", mask)
    return root


@pytest.fixture(scope="session")
def pascal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pascal(tmp_path_factory.mktemp("data") / "VOC2012")


@pytest.fixture(scope="session")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny heads with random weights: EMAT, CST and EMAT_s for every fold."""
    folder = tmp_path_factory.mktemp("heads")
    for number, method in enumerate(("emat", "cst", "emat-s")):
        for fold in range(4):
            torch.manual_seed(10 * number + fold)
            metadata = {"backbone": "efficientnet-lite2", "image_size": "64"}
            save_head(folder / f"{method}-fold{fold}.safetensors", build(method, channels=42).state_dict(), metadata)
    return folder


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMAT_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def paper_tasks(pascal: Path) -> PaperTasks:
    tasks = open_tasks("pascal", pascal, None, None, tasks=1)
    tasks.counted = 4
    return tasks


@pytest.fixture(scope="session")
def models(heads: Path) -> list[PaperModel]:
    """EMAT and EMAT_s with heads, the prototype, and CST* whose heads are missing."""
    return [
        parse_model(f"EMAT={heads}/emat-fold{{fold}}.safetensors"),
        parse_model(f"EMAT_s={heads}/emat-s-fold{{fold}}.safetensors"),
        parse_model("Prototype=prototype,size=64"),
        parse_model(f"CST*={heads}/missing-fold{{fold}}.safetensors"),
    ]
