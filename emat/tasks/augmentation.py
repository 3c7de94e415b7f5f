"""The augmented settings, which use annotations of support photos that the original setting discards."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from emat.datasets.dataset import ClassAreas
from emat.tasks.task import Setting, Task

# Paper, supplement, "Object Size Filtering": the 25th percentile of object sizes in the training set.
THETA: Mapping[str, float] = {"pascal": 0.07, "coco": 0.03}


def augment(
    task: Task,
    setting: Setting,
    areas: ClassAreas,
    theta: float,
    admitted: Collection[int] | None,
    random: np.random.RandomState,
) -> Task:
    """Add to `task` what else its support photos show: every other class that covers more than `theta` of a photo.

    The partially augmented setting only adds shots to classes that are ways already. The fully augmented setting also
    appends new ways. Afterwards every way gets equally many shots by repeating some of its own.

    Args:
        task: A task of the original setting.
        setting: The setting to bring it to.
        areas: How much of each photo each class covers.
        theta: The fraction of a photo that an object must exceed.
        admitted: The classes that may become ways; None allows every class.
        random: Draws the shots that are repeated.
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
