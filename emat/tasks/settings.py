"""The augmented settings: annotations of support images that the original setting discards."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from emat.datasets.class_areas import ClassAreas
from emat.tasks.task import Setting, Task

THETA_PASCAL, THETA_COCO = (
    0.07,
    0.03,
)  # paper, supplement "Object Size Filtering": 25th percentile of the training set
THETA: Mapping[str, float] = {"pascal": THETA_PASCAL, "coco": THETA_COCO}


def augment(
    task: Task,
    setting: Setting,
    areas: ClassAreas,
    theta: float,
    admitted: Collection[int] | None,
    random: np.random.RandomState,
) -> Task:
    """`task` with what else its support images show: each other class that covers more than `theta` of an
    image.

    Partially augmented, only classes that are ways already gain shots. Fully augmented, classes in `admitted`
    (None: any) become ways at the end as well. Ways then get equally many shots by repeating their own, drawn
    by `random`.
    """
    task = replace(task, setting=setting)
    if setting is Setting.ORIGINAL:
        return task
    shots = {way: list(names) for way, names in zip(task.ways, task.shots, strict=True)}
    augmented = False
    for way, names in zip(task.ways, task.shots, strict=True):
        for name in names:
            for class_id, fraction in areas[name].items():
                if class_id == way or fraction <= theta:
                    continue
                becomes_way = setting is Setting.FULLY_AUGMENTED and (admitted is None or class_id in admitted)
                if class_id in shots or becomes_way:
                    shots.setdefault(class_id, []).append(name)
                    augmented = True
    if not augmented:
        return task
    _fill(shots, random)
    return replace(task, ways=tuple(shots), shots=tuple(map(tuple, shots.values())), augmented=True)


def _fill(shots: dict[int, list[str]], random: np.random.RandomState) -> None:
    most = max(map(len, shots.values()))
    for names in shots.values():
        while len(names) < most:
            names.append(names[random.randint(len(names))])
