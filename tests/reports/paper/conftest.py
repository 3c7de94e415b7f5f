"""A tiny PASCAL-5i: 20 classes in photos of 60 x 44, every class in six or more of them, some small, some together."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from emat.datasets.fold_lists import fold_classes
from emat.images import write_indexed_png
from emat.methods.trained_head import save_head
from emat.model import build
from emat.reports.paper.attention_cost import StepCost, _machine
from emat.reports.paper.contents import PaperModel, choose_parts, parse_model
from emat.reports.paper.evaluations import MeasuringPlan, PaperTasks, make_plan, measure, open_tasks
from emat.reports.paper.paper_figures import dense_costs
from emat.reports.paper.paper_tables import table_costs
from emat.reports.paper.reproduction import COSTS_FILE, Reproduction, write_paper

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


@pytest.fixture(scope="session")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the costs of attention were measured before; here they follow a rule, so that it is quick."""
    folder = tmp_path_factory.mktemp("paper")
    costs = [
        StepCost(case.method, case.masking, cover, 1e9 * cover * case.support_tokens, 2.0)
        for case, cover in dict.fromkeys([*table_costs([part.name for part in choose_parts("pascal")]), *dense_costs()])
    ]
    path = folder / COSTS_FILE
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"machine": _machine(), "costs": [asdict(each) for each in costs]}))
    return folder


@pytest.fixture(scope="session")
def plan(paper_tasks: PaperTasks, models: list[PaperModel], out: Path) -> MeasuringPlan:
    made = make_plan(choose_parts("pascal"), models, paper_tasks, out, "cpu")
    measure(made, None)
    return made


@pytest.fixture(scope="session")
def paper(plan: MeasuringPlan, out: Path) -> Reproduction:
    return write_paper(choose_parts("pascal"), plan, out)
