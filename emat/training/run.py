"""The training loop. Lightning's Fabric provides devices, nodes and strategies; tasks and steps are decided here.

A run depends only on its options and on the number of steps done. So a run that was killed at any moment continues as
if it had not been interrupted, and any number of processes train on the same tasks.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from emat.device import all_cores
from emat.distributed import errors_with_rank, open_fabric, start, torchrun_processes
from emat.errors import EmatError
from emat.evaluation.evaluator import Evaluator, plan
from emat.evaluation.metrics import ScoreCounts
from emat.features import FeatureCache
from emat.methods.base import Method
from emat.methods.registry import build_method
from emat.methods.trained_head import StartingHead, starting_head
from emat.outputs import writing
from emat.tasks.benchmark import Watch
from emat.training.data import RunData, TaskTensors, ValidationTasks, open_run_data
from emat.training.options import GIGABYTE, TrainingOptions, write_config
from emat.training.reporting import Reporter, RunLogs, StepReport
from emat.training.state import (
    BEST,
    CONFIG,
    LAST,
    STATE,
    RunProgress,
    ValidationScores,
    check_folder,
    complete,
    provenance,
    read_state,
    save_state,
    save_trained,
    scores_metadata,
)
from emat.training.step import Plan, StepLosses, Stepper

if TYPE_CHECKING:
    from lightning.fabric import Fabric

STEPS_BETWEEN_POINTS = 10  # of the loss curve in TensorBoard


def train(options: TrainingOptions, *, resume: bool = False, watch: Watch = iter) -> Path:
    """Train a head, or continue the run in the folder of `options`.

    Args:
        options: The options of the run.
        resume: Whether to continue a run that was stopped or is to train on more tasks.
        watch: Wraps a sequence of photo names while their masks are read, to show how far that is.

    Returns:
        The folder of the run, with the head files `best.safetensors` and `last.safetensors`.

    Raises:
        EmatError: If the options, the data or the folder do not allow the run, or if it cannot go on.
    """
    options = complete(options)
    devices, nodes = torchrun_processes() or (options.devices, options.nodes)
    options = replace(options, devices=devices, nodes=nodes)
    fabric = open_fabric(options.device, devices, nodes, strategy=options.strategy, precision=options.precision)
    with errors_with_rank(fabric, to_go_on="continue with --resume"):
        folder, changes = check_folder(options, resume)
        started_from = starting_head(options.start_from, options.method, options.backbone)
        data = open_run_data(options, watch if fabric.is_global_zero else iter)
        # Lightning has not started other processes yet, so an error up to here is reported once. Nothing is written
        # before all processes have looked at the folder.
        start(fabric)
        run = _Run(options, fabric, data, folder, started_from)
        if changes:
            run.report.say(f"changed since the run started: {', '.join(changes)}")
        if run.has_other_files:
            run.report.say("changed since the run stopped: files of photos or masks, from which it now goes on")
        try:
            run.go()
        finally:
            run.close()
    return folder


class _Run:
    """The part of a run that one process does."""

    def __init__(
        self, options: TrainingOptions, fabric: "Fabric", data: RunData, folder: Path, started_from: StartingHead | None
    ) -> None:
        self.options, self.fabric, self.data, self.folder = options, fabric, data, folder
        self.started_from = started_from
        torch.manual_seed(options.seed)  # the first weights follow from it
        self.method = build_method(
            options.method, options.backbone, image_size=options.size, device=fabric.device, shape=options.shape
        )
        if started_from is not None:
            self.method.load_trained_weights(started_from.weights_for(self.method))
        drawn_from = data.tasks.drawn_from
        per_epoch = options.tasks_per_epoch or len(drawn_from.entries)
        total = min(options.epochs * per_epoch, options.max_tasks or options.epochs * per_epoch)
        self.plan = Plan(per_epoch, options.tasks_per_step, total)
        self.cache = None if self.method.recipe.trains_backbone else self._new_cache()
        mask_size = options.mask_size or self.method.preparation.image_size
        tensors = TaskTensors(self.method, drawn_from, self.cache, mask_size)
        self.stepper = Stepper(options, fabric, self.method, data.tasks, tensors, self.plan)
        self.has_other_files = False
        self.progress = self._restored()
        self.stepper.set_up()
        assert options.backbone is not None
        self.metadata = provenance(options, options.backbone, self.method, drawn_from)
        if started_from is not None:
            self.metadata |= started_from.provenance(drawn_from.classes)
        is_first = fabric.is_global_zero
        epoch, step = self.progress.epoch, self.progress.step
        if is_first:
            with writing(folder):  # only now, so that a run that cannot start leaves no folder
                folder.mkdir(parents=True, exist_ok=True)
        self.logs = RunLogs(folder, epoch, self.plan.step_before(epoch) + step) if is_first else None
        if is_first:
            write_config(folder / CONFIG, options)
        self.report = Reporter(total, self.plan.epochs, done=self.progress.tasks, silent=not is_first)

    def go(self) -> None:
        """Train until the end of the run."""
        self._report_start()
        for epoch in range(self.progress.epoch, self.plan.epochs):
            while self.progress.step < self.plan.steps(epoch):
                self._step(epoch)
            if self._is_validation_due(epoch):
                self._save()  # so that a kill during validation loses no step
            self._finish_epoch(epoch)

    def close(self) -> None:
        """Remove the progress bar and close the logs."""
        self.report.close()
        if self.logs is not None:
            self.logs.close()

    def _step(self, epoch: int) -> None:
        step = self.progress.step
        losses = self.stepper.step(epoch, step)
        tasks = len(self.plan.tasks(epoch, step))
        self.progress.tasks += tasks
        self.progress.epoch_tasks += tasks
        for name, value in asdict(losses).items():
            self.progress.sums[name] = self.progress.sums.get(name, 0.0) + value * tasks
        self.progress.step = step + 1
        if self.progress.step % self.options.save_every == 0:
            self._save()
        counts = None if self.cache is None else self.cache.counts
        self.report.step(StepReport(self.progress.tasks, epoch, losses.total, counts))
        done = self.plan.step_before(epoch) + self.progress.step
        if self.logs is not None and done % STEPS_BETWEEN_POINTS == 0:
            self.logs.step(done, {**asdict(losses), "lr": self.stepper.rate(epoch, step)})

    def _finish_epoch(self, epoch: int) -> None:
        with self.stepper.average.in_place():
            self.method.eval()
            scores = self._validate() if self._is_validation_due(epoch) else None
            is_best = scores is not None and scores.miou > self.progress.best_miou
            if scores is not None and is_best:
                self.progress.best_miou, self.progress.best_epoch = scores.miou, epoch
            if self.fabric.is_global_zero:
                metadata = {**self.metadata, **scores_metadata(scores, self.progress.tasks)}
                save_trained(self.folder / LAST, self.method, metadata)
                if is_best or self.data.validation is None:
                    save_trained(self.folder / BEST, self.method, metadata)
        mean = self._mean_losses()
        self.report.epoch(epoch, mean.total, scores, is_best)
        self._log_epoch(epoch, mean, scores)
        if self.plan.tasks_in(epoch) == self.plan.per_epoch:  # an epoch cut short may continue later with more tasks
            progress = self.progress
            progress.epoch, progress.step, progress.epoch_tasks, progress.sums = epoch + 1, 0, 0, {}
        self._save()

    def _is_validation_due(self, epoch: int) -> bool:
        is_last = epoch + 1 == self.plan.epochs
        return self.data.validation is not None and (is_last or (epoch + 1) % self.options.check_every == 0)

    def _validate(self) -> ValidationScores:
        assert self.data.validation is not None
        fabric = self.fabric
        # The features of a backbone that is trained change, so its cache can be used for one validation only.
        cache = self.cache or self._new_cache()
        own = validate(self.method, cache, self.data.validation, fabric.global_rank, fabric.world_size)
        if fabric.world_size == 1:
            return ValidationScores.of(own)
        summed = fabric.all_reduce(torch.from_numpy(own.row).to(fabric.device), reduce_op="sum")
        assert isinstance(summed, torch.Tensor)
        return ValidationScores.of(ScoreCounts(own.class_ids, summed.cpu().numpy()))

    def _mean_losses(self) -> StepLosses:
        return StepLosses(**{name: value / self.progress.epoch_tasks for name, value in self.progress.sums.items()})

    def _log_epoch(self, epoch: int, mean: StepLosses, scores: ValidationScores | None) -> None:
        if self.logs is None:
            return
        done = self.progress.tasks
        counts = None if self.cache is None else self.cache.counts
        self.logs.epoch(
            {
                "epoch": epoch,
                "step": self.plan.step_before(epoch) + self.progress.step,
                "tasks": done,
                "loss": mean.total,
                "masks": mean.masks,
                "presence": mean.presence,
                "lr": self.stepper.rate(epoch, self.plan.steps(epoch) - 1),
                **({} if scores is None else asdict(scores) | {"tasks": done}),
                "tasks_per_second": self.report.tasks_per_second(done),
                **({} if counts is None else {"cache_hits": counts.hit_rate, "cache_bytes": counts.memory_bytes}),
            }
        )

    def _save(self) -> None:
        if self.fabric.is_global_zero:
            stepper = self.stepper
            weights = self.method.trained_weights()
            save_state(self.folder, self.progress, weights, stepper.optimizer.state_dict(), stepper.average.tensors)

    def _restored(self) -> RunProgress:
        """Load weights, optimizer and average if the folder holds a state; return how far the run is."""
        drawn_from, files = self.data.tasks.drawn_from.sha256, self.data.tasks.drawn_from.files_state
        if not (self.folder / STATE).is_file():
            return RunProgress(drawn_from=drawn_from, files=files)
        state = read_state(self.folder)
        progress: RunProgress = state["progress"]
        if progress.drawn_from != drawn_from:
            raise EmatError(
                "other-run",
                f"the run in {self.folder} trained on other photos or classes; to train its weights further, use "
                f"--start-from {self.folder / LAST} in another --out",
            )
        if progress.tasks > self.plan.total:
            raise EmatError(
                "already-trained",
                f"the run in {self.folder} has already trained on {progress.tasks} tasks; ask for more",
            )
        # A data set that was only copied has other times too, so that is said and not refused.
        self.has_other_files = progress.files not in ("", files)
        progress.files = files
        self.method.load_trained_weights(state["weights"])
        self.stepper.optimizer.load_state_dict(state["optimizer"])
        if self.options.ema:
            self.stepper.average.restore(state["average"])
        return progress

    def _new_cache(self) -> FeatureCache:
        options = self.options
        return FeatureCache(
            self.method,
            memory_bytes=int(options.cache_memory * GIGABYTE),
            folder=options.cache,
            dtype=torch.float16 if options.cache_float16 else torch.float32,
            disk_bytes=None if options.cache_disk is None else int(options.cache_disk * GIGABYTE),
        )

    def _report_start(self) -> None:
        drawn_from, validation = self.data.tasks.drawn_from, self.data.validation
        validated = "no validation" if validation is None else f"{len(validation.sampler)} validation tasks"
        done = "" if self.progress.tasks == 0 else f"; continues after {self.progress.tasks} tasks"
        self.report.say(
            f"{self.options.method} on {self.options.backbone} at {self.method.preparation.image_size} px: "
            f"{len(drawn_from.classes)} classes in {len(drawn_from.photos)} photos, {self.plan.total} tasks in "
            f"{self.plan.epochs} epochs, {_step_size(self.options)}, {validated}, in {self.folder}{done}"
        )
        if drawn_from.lone:
            self.report.say(f"left out because they have a single photo: {', '.join(drawn_from.lone)}")
        seen = [] if self.started_from is None else self.started_from.training.seen(sorted(self.data.excluded))
        if seen:
            self.report.say(
                f"{self.options.start_from} was trained on classes that are left out here: {', '.join(seen)}"
            )


def _step_size(options: TrainingOptions) -> str:
    """Say how many tasks a step has, by which reading of the batch size."""
    if options.batch_per_process:
        processes = options.devices * options.nodes
        return f"{options.tasks_per_step} tasks a step ({options.batch} for each of {processes} processes)"
    return f"{options.batch} tasks a step (over all processes)"


def validate(
    method: Method, cache: FeatureCache, validation: ValidationTasks, rank: int = 0, processes: int = 1
) -> ScoreCounts:
    """Answer the validation tasks of this process in the same way as an evaluation does.

    Args:
        method: The method with the weights to judge.
        cache: The features of photos.
        validation: The tasks of all processes.
        rank: The number of this process, from 0 on.
        processes: The number of processes, which share the queries.

    Returns:
        The counts of this process's tasks; the sum over all processes gives the scores.
    """
    class_ids = validation.sampler.class_ids
    work = plan({0: validation.sampler.configuration()})[rank::processes]
    answering = Evaluator(method, validation.dataset, cache)
    with all_cores(next(method.parameters()).device) as workers:
        answers = [outcome for outcomes in workers.map(answering.answer, work) for _, outcome in outcomes]
    return ScoreCounts.of(answers, class_ids)
