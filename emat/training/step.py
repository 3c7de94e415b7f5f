"""One step: this process's share of a batch, its gradients and the change of the weights."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from emat.errors import EmatError
from emat.method import LossWeights, Method
from emat.tasks.training_tasks import TrainingTasks
from emat.training.averaging import WeightAverage
from emat.training.plan import Plan
from emat.training.samples import Batch, Samples
from emat.training.schedule import rate_at
from emat.training.settings import Settings

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True)
class StepLosses:
    """Means over a step's tasks, of all processes."""

    total: float
    masks: float
    presence: float


class TaskLoss(nn.Module):
    """The loss as a module, which is what Lightning's strategies watch over."""

    def __init__(self, method: Method, weights: LossWeights) -> None:
        super().__init__()
        self.method, self.weights = method, weights

    def forward(self, batch: Batch | None) -> tuple[Tensor, Tensor]:
        """The loss, and in one row total, mask and presence loss; without a batch there is nothing to lose."""
        # Every parameter is part of every loss, so that no process waits for a gradient that never comes.
        nothing = torch.stack([p.sum() for p in self.method.parameters() if p.requires_grad]).sum() * 0.0
        if batch is None:
            return nothing, nothing.detach().expand(3)
        losses = self.method.loss(batch.queries, batch.supports, batch.support_masks, batch.query_masks, self.weights)
        presence = nothing if losses.presence is None else losses.presence
        total = losses.total + nothing
        return total, torch.stack([total, losses.masks, presence]).detach()


class Stepper:
    """Takes steps: everything a step depends on beside its number is in the weights and the optimizer."""

    def __init__(
        self, settings: Settings, fabric: "Fabric", method: Method, tasks: TrainingTasks, samples: Samples, plan: Plan
    ) -> None:
        self._settings, self._fabric, self._plan = settings, fabric, plan
        self._tasks, self._samples = tasks, samples
        self._parameters = [p for p in method.parameters() if p.requires_grad]
        if not self._parameters:
            raise EmatError(f"the method {method.name} has nothing to train; evaluate it as it is")
        self._peak = settings.lr or method.recipe.learning_rate
        self.optimizer = _optimizer(method, self._parameters, self._peak)
        self.average = WeightAverage(method, settings.ema)
        weights = LossWeights(settings.presence_weight, settings.foreground_weight)
        self._loss = TaskLoss(method, weights)

    def set_up(self) -> None:
        """Hand weights and optimizer, both complete, to Lightning."""
        self._loss, _ = self._fabric.setup(self._loss, self.optimizer)

    def rate(self, epoch: int, step: int) -> float:
        """The learning rate of a step."""
        settings = self._settings
        done = self._plan.step_before(epoch) + step
        return rate_at(done, self._plan.total_steps, self._peak, settings.schedule, settings.warmup)

    def step(self, epoch: int, step: int) -> StepLosses:
        """Step `step` of an epoch; EmatError, with the weights unchanged, if the loss or its gradient is no number."""
        self._loss.train()
        # Whatever a method draws at random follows from the step too.
        numbers = (self._settings.seed, epoch, step, 2 + self._fabric.global_rank)
        torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1)[0]))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(epoch, step)
        losses = self._backward(epoch, step)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.clip_grad or math.inf)
        if not math.isfinite(losses.total) or not bool(torch.isfinite(norm)):
            raise EmatError(
                f"the loss is {losses.total:.3g} and its gradient {float(norm):.3g} long in epoch {epoch + 1}, step "
                f"{step + 1}; go on from the last good state with --resume and a lower --lr or with --clip-grad 1"
            )
        self.optimizer.step()
        self.average.update(self._plan.step_before(epoch) + step)
        return losses

    def _backward(self, epoch: int, step: int) -> StepLosses:
        fabric, plan = self._fabric, self._plan
        own = [self._tasks.draw(epoch, i) for i in plan.share(epoch, step, fabric.global_rank, fabric.world_size)]
        everyone = len(plan.tasks(epoch, step))
        at_once = self._settings.at_once or max(len(own), 1)
        parts = [own[i : i + at_once] for i in range(0, len(own), at_once)] or [[]]
        self.optimizer.zero_grad()
        sums = torch.zeros(3, device=fabric.device)
        for place, part in enumerate(parts):
            with fabric.no_backward_sync(self._loss, enabled=place < len(parts) - 1):  # type: ignore[arg-type]
                loss, row = self._loss(self._samples.batch(part) if part else None)
                # Strategies average over processes; a part counts by its tasks, so that all tasks weigh the same.
                fabric.backward(loss * (len(part) * fabric.world_size / everyone))
            sums += row * len(part) / everyone
        summed = fabric.all_reduce(sums, reduce_op="sum")
        assert isinstance(summed, Tensor)
        return StepLosses(*summed.tolist())


def _optimizer(method: Method, parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    recipe = method.recipe
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    return torch.optim.Adam(parameters, rate, weight_decay=recipe.weight_decay)
