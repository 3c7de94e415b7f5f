"""One step of training: the gradients of this process's tasks, the change of the weights, and their moving average."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from emat.errors import EmatError
from emat.methods.base import LossWeights, Method
from emat.tasks.training_tasks import TrainingTasks
from emat.training.options import TrainingOptions
from emat.training.schedule import Plan, rate_at
from emat.training.task_tensors import Batch, TaskTensors

if TYPE_CHECKING:
    from lightning.fabric import Fabric


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

    def forward(self, batch: Batch | None) -> tuple[Tensor, Tensor]:
        """Compute the loss of a batch.

        Args:
            batch: The tasks; None if this process has no task in the step.

        Returns:
            The loss to differentiate, and (3,) with the total, mask and presence loss.
        """
        # Every parameter takes part in every loss; otherwise a process would wait for gradients that never come.
        nothing = torch.stack([p.sum() for p in self.method.parameters() if p.requires_grad]).sum() * 0.0
        if batch is None:
            return nothing, nothing.detach().expand(3)
        losses = self.method.loss(batch.queries, batch.supports, batch.support_masks, batch.query_masks, self.weights)
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
            raise EmatError(f"the method {method.name} has nothing to train; evaluate it as it is")
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
                f"the loss is {losses.total:.3g} and the norm of its gradient is {float(norm):.3g} in epoch "
                f"{epoch + 1}, step {step + 1}; continue from the last saved state with --resume and a lower --lr or "
                "with --clip-grad 1"
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
