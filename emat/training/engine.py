"""The training loop. Lightning's Fabric brings devices, nodes and strategies; what is drawn when is ours alone.

A run is a function of its settings and of where it stands, so that one killed at any moment goes on as if nothing had
happened, and any number of processes sees the same tasks.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from emat.errors import EmatError
from emat.formats.whole_files import writing
from emat.inference.feature_cache import FeatureCache
from emat.inference.methods import METHODS, build_method
from emat.tasks.benchmark import Watch
from emat.training.config import as_plain, from_plain, read_config, write_config
from emat.training.data import RunData, open_run_data
from emat.training.first_weights import FirstWeights, first_weights
from emat.training.logs import RunLogs
from emat.training.plan import Plan
from emat.training.processes import as_started, errors_of_process, open_fabric, start
from emat.training.progress import Reporter, StepReport
from emat.training.samples import Samples
from emat.training.settings import GIGABYTE, IDENTITY, Settings
from emat.training.state import (
    BEST,
    CONFIG,
    LAST,
    STATE,
    Progress,
    provenance,
    read_state,
    save_state,
    save_trained,
    scores_metadata,
)
from emat.training.step import StepLosses, Stepper
from emat.training.validation import Check, as_row, check, from_row

if TYPE_CHECKING:
    from lightning.fabric import Fabric

STEPS_BETWEEN_POINTS = 10  # of TensorBoard's loss curve


def train(settings: Settings, *, resume: bool = False, watch: Watch = iter) -> Path:
    """Train as `settings` say, or go on with the run in their folder; the folder with the trained weights."""
    settings = as_started(complete(settings))
    fabric = open_fabric(settings)
    with errors_of_process(fabric):
        folder, changes = _look_at_folder(settings, resume)
        begun_with = first_weights(settings)
        data = open_run_data(settings, watch if fabric.is_global_zero else iter)
        start(fabric)  # after what does not fit was told, by one process; and before any writes what others look at
        run = _Run(settings, fabric, data, folder, begun_with)
        if changes:
            run.report.say(f"changed since the run began: {', '.join(changes)}")
        try:
            run.go()
        finally:
            run.close()
    return folder


def run_folder(settings: Settings) -> Path:
    """Where the run of `settings` is kept."""
    fold = "all" if settings.fold is None else f"fold{settings.fold}"
    data = "+".join(root.resolve().stem for root in settings.data)
    return settings.out or Path("runs") / f"{settings.method}-{_backbone(settings)}-{data}-{fold}"


def complete(settings: Settings) -> Settings:
    """`settings` with the defaults that depend on others filled in."""
    return replace(settings, backbone=_backbone(settings), out=run_folder(settings))


def _backbone(settings: Settings) -> str:
    if settings.method not in METHODS:
        raise EmatError(f"there is no method {settings.method!r}; choose one of {', '.join(METHODS)}")
    return settings.backbone or METHODS[settings.method].default_backbone


class _Run:
    """One process's part of a run."""

    def __init__(
        self, settings: Settings, fabric: "Fabric", data: RunData, folder: Path, begun_with: FirstWeights | None
    ) -> None:
        self.settings, self.fabric, self.data, self.folder = settings, fabric, data, folder
        self.begun_with = begun_with
        torch.manual_seed(settings.seed)  # the first weights
        self.method = build_method(settings.method, settings.backbone, image_size=settings.size, device=fabric.device)
        if begun_with is not None:
            self.method.load_trained_weights(begun_with.head.tensors)
        drawn_from = data.tasks.drawn_from
        per_epoch = settings.tasks_per_epoch or len(drawn_from.entries)
        total = min(settings.epochs * per_epoch, settings.max_tasks or settings.epochs * per_epoch)
        self.plan = Plan(per_epoch, settings.batch, total)
        self.cache = None if self.method.recipe.trains_backbone else self._new_cache()
        mask_size = settings.mask_size or self.method.preparation.image_size
        samples = Samples(self.method, drawn_from, self.cache, mask_size)
        self.stepper = Stepper(settings, fabric, self.method, data.tasks, samples, self.plan)
        self.progress = self._restored()
        self.stepper.set_up()
        assert settings.backbone is not None
        self.metadata = provenance(as_plain(settings), settings.backbone, self.method, drawn_from)
        if begun_with is not None:
            self.metadata |= begun_with.provenance(drawn_from)
        leads = fabric.is_global_zero
        epoch, step = self.progress.epoch, self.progress.step
        if leads:
            with writing(folder):  # only now, so that a run that cannot begin leaves nothing
                folder.mkdir(parents=True, exist_ok=True)
        self.logs = RunLogs(folder, epoch, self.plan.step_before(epoch) + step) if leads else None
        if leads:
            write_config(folder / CONFIG, settings)
        self.report = Reporter(total, self.plan.epochs, done=self.progress.tasks, silent=not leads)

    def go(self) -> None:
        """Train from where the run stands to its end."""
        self._say_what_is_trained()
        for epoch in range(self.progress.epoch, self.plan.epochs):
            while self.progress.step < self.plan.steps(epoch):
                self._step(epoch)
            if self._is_check_due(epoch):
                self._save()  # validation takes a while
            self._finish_epoch(epoch)

    def close(self) -> None:
        """Leave terminal and logs in order."""
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
        if self.progress.step % self.settings.save_every == 0:
            self._save()
        counts = None if self.cache is None else self.cache.counts
        self.report.step(StepReport(self.progress.tasks, epoch, losses.total, counts))
        done = self.plan.step_before(epoch) + self.progress.step
        if self.logs is not None and done % STEPS_BETWEEN_POINTS == 0:
            self.logs.step(done, {**asdict(losses), "lr": self.stepper.rate(epoch, step)})

    def _finish_epoch(self, epoch: int) -> None:
        with self.stepper.average.in_place():
            self.method.eval()
            found = self._check() if self._is_check_due(epoch) else None
            is_best = found is not None and found.miou > self.progress.best_miou
            if found is not None and is_best:
                self.progress.best_miou, self.progress.best_epoch = found.miou, epoch
            if self.fabric.is_global_zero:
                metadata = {**self.metadata, **scores_metadata(found, self.progress.tasks)}
                save_trained(self.folder / LAST, self.method, metadata)
                if is_best or self.data.validation is None:
                    save_trained(self.folder / BEST, self.method, metadata)
        mean = self._mean_losses()
        self.report.epoch(epoch, mean.total, found, is_best)
        self._log_epoch(epoch, mean, found)
        if self.plan.tasks_in(epoch) == self.plan.per_epoch:  # one cut short may go on if more tasks are asked for
            progress = self.progress
            progress.epoch, progress.step, progress.epoch_tasks, progress.sums = epoch + 1, 0, 0, {}
        self._save()

    def _is_check_due(self, epoch: int) -> bool:
        is_last = epoch + 1 == self.plan.epochs
        return self.data.validation is not None and (is_last or (epoch + 1) % self.settings.check_every == 0)

    def _check(self) -> Check:
        assert self.data.validation is not None
        fabric = self.fabric
        # A backbone in training makes other features each time: its cache lives for one check.
        cache = self.cache or self._new_cache()
        own = check(self.method, cache, self.data.validation, fabric.global_rank, fabric.world_size)
        if fabric.world_size == 1:
            return Check.of(own)
        summed = fabric.all_reduce(as_row(own).to(fabric.device), reduce_op="sum")
        assert isinstance(summed, torch.Tensor)
        return Check.of(from_row(summed, own.class_ids))

    def _mean_losses(self) -> StepLosses:
        return StepLosses(**{name: value / self.progress.epoch_tasks for name, value in self.progress.sums.items()})

    def _log_epoch(self, epoch: int, mean: StepLosses, found: Check | None) -> None:
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
                **({} if found is None else asdict(found) | {"tasks": done}),
                "tasks_per_second": self.report.tasks_per_second(done),
                **({} if counts is None else {"cache_hits": counts.hit_rate, "cache_bytes": counts.memory_bytes}),
            }
        )

    def _save(self) -> None:
        if self.fabric.is_global_zero:
            stepper = self.stepper
            weights = self.method.trained_weights()
            save_state(self.folder, self.progress, weights, stepper.optimizer.state_dict(), stepper.average.tensors)

    def _restored(self) -> Progress:
        """Where the run in the folder stands, weights and optimizer put in place; the beginning if there is none."""
        drawn_from = self.data.tasks.drawn_from.sha256
        if not (self.folder / STATE).is_file():
            return Progress(drawn_from=drawn_from)
        state = read_state(self.folder)
        progress: Progress = state["progress"]
        if progress.drawn_from != drawn_from:
            raise EmatError(
                f"the run in {self.folder} trained on other photos or classes; to go on with its weights, --start-from "
                f"{self.folder / LAST} in another --out"
            )
        if progress.tasks > self.plan.total:
            raise EmatError(f"the run in {self.folder} has trained on {progress.tasks} tasks; ask for more of them")
        self.method.load_trained_weights(state["weights"])
        self.stepper.optimizer.load_state_dict(state["optimizer"])
        if self.settings.ema:
            self.stepper.average.restore(state["average"])
        return progress

    def _new_cache(self) -> FeatureCache:
        settings = self.settings
        return FeatureCache(
            self.method,
            memory_bytes=int(settings.cache_memory * GIGABYTE),
            folder=settings.cache,
            dtype=torch.float16 if settings.cache_float16 else torch.float32,
            disk_bytes=None if settings.cache_disk is None else int(settings.cache_disk * GIGABYTE),
        )

    def _say_what_is_trained(self) -> None:
        drawn_from, validation = self.data.tasks.drawn_from, self.data.validation
        judged = "no validation" if validation is None else f"{len(validation.sampler)} validation tasks"
        begun = "" if self.progress.tasks == 0 else f"; goes on after {self.progress.tasks} tasks"
        self.report.say(
            f"{self.settings.method} on {self.settings.backbone} at {self.method.preparation.image_size} px: "
            f"{len(drawn_from.classes)} classes in {len(drawn_from.photos)} photos, {self.plan.total} tasks in "
            f"{self.plan.epochs} epochs, {judged}, in {self.folder}{begun}"
        )
        if drawn_from.lone:
            self.report.say(f"left out, with a single photo each: {', '.join(drawn_from.lone)}")
        seen = [] if self.begun_with is None else self.begun_with.training.seen(sorted(self.data.excluded))
        if seen:
            self.report.say(f"{self.settings.start_from} has seen classes that are left out here: {', '.join(seen)}")


def _look_at_folder(settings: Settings, resume: bool) -> tuple[Path, list[str]]:
    """The folder of the run, which must not hold another, and what was changed since it began."""
    folder = run_folder(settings)
    if folder.exists() and not folder.is_dir():
        raise EmatError(f"{folder} is no folder; choose another --out")
    if resume and not (folder / CONFIG).is_file():
        raise EmatError(f"there is no run in {folder} to go on with; check --out, or leave --resume away")
    if not (folder / STATE).is_file():
        return folder, []
    if not resume:
        raise EmatError(f"{folder} already holds a run; go on with it by --resume, or choose another --out")
    before = complete(from_plain(read_config(folder / CONFIG)))
    changed = before.changed_from(settings)
    for name in changed:
        if name in IDENTITY:
            raise EmatError(
                f"the run in {folder} has {name} {getattr(before, name)}, not {getattr(settings, name)}; "
                "train that in another --out"
            )
    return folder, [f"{name} {getattr(before, name)} -> {getattr(settings, name)}" for name in changed]
