"""Three settings in one pass against the plain way: each setting apart, every task's images encoded afresh.

    python benchmarks/evaluation.py --data VOC2012 --names VOC2012/ImageSets/Segmentation/val.txt --fold 1 --tasks 200

Both ways answer the same tasks with the same network. Reading photos and masks counts in both, drawing tasks does not.
The plain way has PyTorch's usual threads; the one pass gives each of several workers one. The last digits of numbers
depend on the threads, so the predictions, which must be identical, are held against the plain way with one thread,
which is run once more for it and not counted (`--threads 1`: both ways have one thread, and the plain way runs once).
The one pass runs before and after the plain way, and its mean counts, since other work on the machine comes and goes.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from emat.datasets.dataset import Dataset
from emat.device import all_cores
from emat.evaluation.evaluator import Evaluator, QueryWork, SharedTask, TaskIndex, default_limits, plan, savings
from emat.evaluation.results import machine
from emat.evaluation.run import EvaluatedMethod, load_evaluated
from emat.features import FeatureCache
from emat.images import to_pixels
from emat.methods.base import Decision, Features, Method, TaskEvidence
from emat.methods.registry import build_method
from emat.outputs import write_text
from emat.tasks.benchmark import open_benchmark
from emat.tasks.sampling import TaskRequest
from emat.tasks.task import Configuration, Setting, Task
from emat.tensor_files import digest

Answers = dict[TaskIndex, tuple[tuple[bool, ...] | None, NDArray[np.uint8]]]  # presence and label map of every task


def encode(method: Method, dataset: Dataset, name: str) -> Features:
    preparation = method.preparation
    side = preparation.image_size
    pixels = to_pixels(dataset.image(name), (side, side), preparation.mean, preparation.std)
    return method.features(torch.from_numpy(pixels)[None])[0]


@torch.no_grad()
def answer_task(method: Method, dataset: Dataset, task: Task) -> tuple[tuple[bool, ...] | None, NDArray[np.uint8]]:
    """As a script does it: encode the query, encode and compare every shot of every way, decide."""
    query = method.encode_query(encode(method, dataset, task.query))
    evidence = []
    for way, names in zip(task.ways, task.shots, strict=True):
        shots = []
        for name in names:
            mask = torch.from_numpy(dataset.mask(name) == way).float()
            read = partial(dataset.image, name)
            support = method.encode_example(mask, read, partial(encode, method, dataset, name))
            shots += method.compare(query, [support])
        evidence.append(shots)
    height, width = dataset.mask(task.query).shape
    decision = method.decide(TaskEvidence(evidence, (height, width)))
    return decision.present, decision.label_map


def plain_way(method: Method, dataset: Dataset, configurations: list[Configuration]) -> Answers:
    return {
        TaskIndex(number, position): answer_task(method, dataset, task)
        for number, configuration in enumerate(configurations)
        for position, task in enumerate(configuration.tasks)
    }


def one_pass(method: Method, dataset: Dataset, configurations: list[Configuration]) -> Answers:
    limits = default_limits()
    cache = FeatureCache(method, memory_bytes=limits.features)
    answers: Answers = {}

    def keep(task: SharedTask, decision: Decision) -> None:
        for index in task.indices:
            answers[index] = decision.present, decision.label_map

    answering = Evaluator(method, dataset, cache, support_bytes=limits.supports)

    def answer(work: QueryWork) -> None:
        height, width = dataset.mask(work.query).shape
        answering.decisions(work, (height, width), keep)

    with all_cores(next(method.parameters()).device) as workers:
        list(workers.map(answer, plan(dict(enumerate(configurations)))))
    return answers


def differences(one: Answers, other: Answers) -> int:
    assert one.keys() == other.keys()
    return sum(one[index][0] != other[index][0] or not np.array_equal(one[index][1], other[index][1]) for index in one)


@dataclass(frozen=True)
class Taken:
    """Seconds on the clock, and of all cores together: on a busy machine the second tells more."""

    wall: float
    processor: float


def timed(work: Callable[[], Answers]) -> tuple[Answers, Taken]:
    wall, processor = time.perf_counter(), time.process_time()
    answers = work()
    return answers, Taken(time.perf_counter() - wall, time.process_time() - processor)


def evaluated_method(arguments: argparse.Namespace) -> EvaluatedMethod:
    if arguments.model is not None:
        return load_evaluated(arguments.model, image_size=arguments.size, device="cpu")
    torch.manual_seed(0)
    method = build_method("emat", "efficientnet-lite2", image_size=arguments.size, device="cpu").requires_grad_(False)
    return EvaluatedMethod(method, "efficientnet-lite2", None, None, digest(method.state_dict()), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the data set, photos and masks")
    parser.add_argument("--names", type=Path, help="file of the images to use, a name a line")
    parser.add_argument("--fold", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=200, help="of each setting")
    parser.add_argument("--way", type=int, default=2)
    parser.add_argument("--shot", type=int, default=1)
    parser.add_argument("--size", type=int, default=256, help="pixels a side")
    parser.add_argument("--model", help="a trained head; default: EMAT with random weights")
    parser.add_argument("--threads", type=int, help="of PyTorch; default: as many as it takes")
    parser.add_argument("-o", "--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)

    benchmark = open_benchmark(None, None, arguments.data, names=arguments.names)
    dataset = benchmark.dataset
    assert dataset is not None
    samplers = [
        benchmark.sampler(arguments.fold, TaskRequest(arguments.way, arguments.shot, setting, tasks=arguments.tasks))
        for setting in Setting
    ]
    configurations = [sampler.configuration() for sampler in samplers]
    chosen = evaluated_method(arguments)
    answer_task(chosen.method, dataset, configurations[0].tasks[0])  # warm up

    ours, own = timed(lambda: one_pass(chosen.method, dataset, configurations))
    plain, other = timed(lambda: plain_way(chosen.method, dataset, configurations))
    _, again = timed(lambda: one_pass(chosen.method, dataset, configurations))
    seconds = {"one_pass": (own.wall + again.wall) / 2, "plain": other.wall}
    processor = {"one_pass": (own.processor + again.processor) / 2, "plain": other.processor}
    threads = torch.get_num_threads()
    if threads > 1:
        torch.set_num_threads(1)
        plain = plain_way(chosen.method, dataset, configurations)
        torch.set_num_threads(threads)
    wrong = differences(ours, plain)
    work = savings(configurations)
    report = {
        "dataset": configurations[0].dataset,
        "fold": arguments.fold,
        "way": arguments.way,
        "shot": arguments.shot,
        "method": chosen.description(),
        "tasks_per_setting": arguments.tasks,
        "augmented": {
            configuration.protocol.setting.value: sum(task.augmented for task in configuration.tasks)
            for configuration in configurations
        },
        "work": vars(work),
        "seconds": seconds,
        "processor_seconds": processor,
        "factor": seconds["plain"] / seconds["one_pass"],
        "processor_factor": processor["plain"] / processor["one_pass"],
        "different_predictions": wrong,
        "machine": machine(),
    }
    print(f"{'':24}{'one pass':>12}{'plain way':>12}")
    print(f"{'images encoded':24}{work.images:>12}{work.images_apart:>12}")
    print(f"{'pairs compared':24}{work.pairs:>12}{work.pairs_apart:>12}")
    print(f"{'questions answered':24}{work.tasks:>12}{work.tasks:>12}")
    print(f"{'seconds':24}{seconds['one_pass']:>12.1f}{seconds['plain']:>12.1f}")
    print(f"{'processor seconds':24}{processor['one_pass']:>12.1f}{processor['plain']:>12.1f}")
    print(
        f"{report['factor']:.1f} times faster ({report['processor_factor']:.1f} in processor time), "
        f"{wrong} of {work.tasks} predictions different"
    )
    if arguments.out:
        write_text(arguments.out, json.dumps(report, indent=2) + "\n")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
