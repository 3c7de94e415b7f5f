"""One step of training: its tasks, its learning rate, the gradients, the update of the weights and of their average.

The tasks and the learning rate follow from the number of the step alone, so a resumed run has no state of a scheduler
or a sampler to restore.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from emat.errors import EmatError
from emat.methods.base import LossWeights, Method, TrainingBatch
from emat.tasks.training_tasks import TrainingTasks
from emat.training.data import TaskTensors
from emat.training.options import TrainingOptions

if TYPE_CHECKING:
    from lightning.fabric import Fabric

ONE_CYCLE_RISE = 0.3  # share of the steps in which the rate rises
ONE_CYCLE_START = 1 / 25  # of the peak
FLOOR = 1e-2  # of the peak: the rate at which cosine and one-cycle end


@dataclass(frozen=True)
class Plan:
    """How the tasks of a run are divided into epochs and steps; the last epoch and the last step may be shorter.

    >>> plan = Plan(per_epoch=10, batch=4, total=25)
    >>> plan.epochs, plan.steps(0), plan.steps(2), plan.total_steps
    (3, 3, 2, 8)
    >>> plan.tasks(0, 2), plan.share(0, 0, rank=1, processes=2)
    (range(8, 10), range(1, 4, 2))
    """

    per_epoch: int  # tasks in an epoch
    batch: int  # tasks in a step
    total: int  # tasks in the run

    @property
    def epochs(self) -> int:
        """The number of epochs, including one that is cut short."""
        return math.ceil(self.total / self.per_epoch)

    @property
    def total_steps(self) -> int:
        """The number of steps in the run."""
        return self.step_before(self.epochs - 1) + self.steps(self.epochs - 1)

    def tasks_in(self, epoch: int) -> int:
        """Return the number of tasks in an epoch."""
        return min(self.per_epoch, self.total - epoch * self.per_epoch)

    def steps(self, epoch: int) -> int:
        """Return the number of steps in an epoch."""
        return math.ceil(self.tasks_in(epoch) / self.batch)

    def step_before(self, epoch: int) -> int:
        """Return the number of steps before an epoch."""
        return epoch * math.ceil(self.per_epoch / self.batch)

    def tasks(self, epoch: int, step: int) -> range:
        """Return the indices, within the epoch, of the tasks of one step."""
        return range(step * self.batch, min((step + 1) * self.batch, self.tasks_in(epoch)))

    def share(self, epoch: int, step: int, rank: int, processes: int) -> range:
        """Return those of the indices that one process trains on; each index belongs to exactly one process."""
        return self.tasks(epoch, step)[rank::processes]


def rate_at(step: int, steps: int, peak: float, schedule: str, warmup: int = 0) -> float:
    """Return the learning rate of a step.

    >>> [round(rate_at(step, 5, 1.0, "cosine", warmup=1), 3) for step in range(5)]
    [0.5, 1.0, 0.752, 0.258, 0.01]

    Args:
        step: The step, counted from 0 over the whole run.
        steps: The number of steps in the run.
        peak: The highest learning rate.
        schedule: "constant", "cosine" or "one-cycle".
        warmup: The number of steps before the schedule begins.
    """
    if step < warmup:
        return peak * (step + 1) / (warmup + 1) if schedule != "one-cycle" else peak * ONE_CYCLE_START
    if schedule == "constant":
        return peak
    done = (step - warmup) / max(steps - 1 - warmup, 1)
    if schedule == "cosine":
        return peak * _half_cosine(1.0, FLOOR, done)
    if done < ONE_CYCLE_RISE:
        return peak * _half_cosine(ONE_CYCLE_START, 1.0, done / ONE_CYCLE_RISE)
    return peak * _half_cosine(1.0, FLOOR, (done - ONE_CYCLE_RISE) / (1 - ONE_CYCLE_RISE))


def _half_cosine(start: float, end: float, done: float) -> float:
    """Return the value on the way from start to end along half a cosine wave, where `done` goes from 0 to 1."""
    return end + (start - end) * (1 + math.cos(math.pi * min(done, 1.0))) / 2


@dataclass(frozen=True)
class StepLosses:
    """The mean losses of a step over the tasks of all processes."""

    total: float
    masks: float
    presence: float


class TaskLoss(nn.Module):
    """The loss of a method as a module of its own, because Lightning's strategies wrap a module."""

    def __init__(self, method: Method, weights: LossWeights) -> None:
        super().__init__()
        self.method, self.weights = method, weights

    def forward(self, batch: TrainingBatch | None) -> tuple[Tensor, Tensor]:
        """Compute the loss of a batch.

        Args:
            batch: The tasks; None if this process has no task in the step.

        Returns:
            The loss to differentiate, and (3,) with the total, mask and presence loss.
        """
        # Every parameter must be part of every loss. Otherwise a process would wait for gradients that never come.
        nothing = torch.stack([p.sum() for p in self.method.parameters() if p.requires_grad]).sum() * 0.0
        if batch is None:
            return nothing, nothing.detach().expand(3)
        losses = self.method.loss(batch, self.weights)
        presence = nothing if losses.presence is None else losses.presence
        total = losses.total + nothing
        return total, torch.stack([total, losses.masks, presence]).detach()


class Stepper:
    """Trains a method step by step.

    A step depends on its number, the weights and the optimizer's state, and on nothing else.

    Args:
        options: The options of the run.
        fabric: Lightning's Fabric, after it was started.
        method: The method to train.
        tasks: The tasks of the run.
        tensors: What turns the tasks into batches.
        plan: Which tasks belong to which step.

    Raises:
        EmatError: If the method has no parameters to train.
    """

    def __init__(
        self,
        options: TrainingOptions,
        fabric: "Fabric",
        method: Method,
        tasks: TrainingTasks,
        tensors: TaskTensors,
        plan: Plan,
    ) -> None:
        self._options, self._fabric, self._plan = options, fabric, plan
        self._tasks, self._tensors = tasks, tensors
        self._parameters = [p for p in method.parameters() if p.requires_grad]
        if not self._parameters:
            raise EmatError("nothing-to-train", f"the method {method.name} has nothing to train; evaluate it as it is")
        self._peak = options.lr or method.recipe.learning_rate
        self.optimizer = _optimizer(method, self._parameters, self._peak)
        self.average = WeightAverage(method, options.ema)
        weights = LossWeights(options.presence_weight, options.foreground_weight)
        self._loss = TaskLoss(method, weights)

    def set_up(self) -> None:
        """Hand the weights and the optimizer to Lightning, after both were restored."""
        self._loss, _ = self._fabric.setup(self._loss, self.optimizer)

    def rate(self, epoch: int, step: int) -> float:
        """Return the learning rate of step `step` of an epoch."""
        options = self._options
        done = self._plan.step_before(epoch) + step
        return rate_at(done, self._plan.total_steps, self._peak, options.schedule, options.warmup)

    def step(self, epoch: int, step: int) -> StepLosses:
        """Train on the tasks of step `step` of an epoch.

        Raises:
            EmatError: If the loss or its gradient is infinite or NaN; the weights are not changed then.
        """
        self._loss.train()
        # Random numbers that a method draws, such as for dropout, follow from the step as well.
        numbers = (self._options.seed, epoch, step, 2 + self._fabric.global_rank)
        torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1)[0]))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(epoch, step)
        losses = self._backward(epoch, step)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._options.clip_grad or math.inf)
        if not math.isfinite(losses.total) or not bool(torch.isfinite(norm)):
            raise EmatError(
                "diverged-training",
                f"the loss is {losses.total:.3g} and the norm of its gradient is {float(norm):.3g} in epoch "
                f"{epoch + 1}, step {step + 1}; continue from the last saved state with --resume and a lower --lr or "
                "with --clip-grad 1",
            )
        self.optimizer.step()
        self.average.update(self._plan.step_before(epoch) + step)
        return losses

    def _backward(self, epoch: int, step: int) -> StepLosses:
        fabric, plan = self._fabric, self._plan
        own = [self._tasks.draw(epoch, i) for i in plan.share(epoch, step, fabric.global_rank, fabric.world_size)]
        all_tasks = len(plan.tasks(epoch, step))
        at_once = self._options.at_once or max(len(own), 1)
        parts = [own[i : i + at_once] for i in range(0, len(own), at_once)] or [[]]
        self.optimizer.zero_grad()
        sums = torch.zeros(3, device=fabric.device)
        for index, part in enumerate(parts):
            with fabric.no_backward_sync(self._loss, enabled=index < len(parts) - 1):  # type: ignore[arg-type]
                loss, row = self._loss(self._tensors.batch(part) if part else None)
                # Strategies average over processes. Each part counts by its number of tasks, so that all tasks of the
                # step have the same weight.
                fabric.backward(loss * (len(part) * fabric.world_size / all_tasks))
            sums += row * len(part) / all_tasks
        summed = fabric.all_reduce(sums, reduce_op="sum")
        assert isinstance(summed, Tensor)
        return StepLosses(*summed.tolist())


def _optimizer(method: Method, parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    recipe = method.recipe
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    return torch.optim.Adam(parameters, rate, weight_decay=recipe.weight_decay)


class WeightAverage:
    """An exponential moving average of the parameters that a module trains.

    `torch.optim.swa_utils.AveragedModel` computes other numbers: its first update replaces the average by the weights.
    A run that was started with the formula of `update` would not resume exactly. It also copies the whole module,
    including the frozen backbone.

    Args:
        module: The module; its frozen parameters are not averaged.
        decay: The weight of the average so far in each update. With 0 there is no average: `tensors` is empty and
            `in_place` changes nothing.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
        self.decay = decay
        self.tensors = {name: value.detach().clone() for name, value in self._parameters.items()} if decay else {}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the parameters after step `step`, counted from 0, to the average.

        The decay is smaller in the first steps, so that the random weights at the start are soon forgotten.
        """
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, average in self.tensors.items():
            average.lerp_(self._parameters[name].detach().to(average.device), 1 - decay)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from saved `tensors`; an average that was not saved starts from the present parameters."""
        for name, average in self.tensors.items():
            average.copy_(tensors.get(name, self._parameters[name].detach()))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the module the averaged parameters inside the block, and its own again after it."""
        own = {name: self._parameters[name].detach().clone() for name in self.tensors}
        self._put(self.tensors)
        try:
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, tensors: Mapping[str, Tensor]) -> None:
        for name, value in tensors.items():
            self._parameters[name].copy_(value)
