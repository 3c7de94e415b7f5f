"""The processes of a run, through Lightning's Fabric: started by it, or found started by torchrun."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from emat.errors import EmatError
from emat.training.settings import Settings

if TYPE_CHECKING:
    from lightning.fabric import Fabric

CONNECTIONS = ("gloo", "NCCL")  # each names itself in what it says when it breaks


def as_started(settings: Settings) -> Settings:
    """`settings` with the devices and nodes that torchrun has started, if it has."""
    if "LOCAL_WORLD_SIZE" not in os.environ:
        return settings
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    return replace(settings, devices=devices, nodes=int(os.environ["WORLD_SIZE"]) // devices)


def open_fabric(settings: Settings) -> "Fabric":
    """Lightning as `settings` ask for it, which knows this process's rank; `start` has the others begin."""
    try:
        from lightning.fabric import Fabric
    except ImportError:
        raise EmatError('training needs Lightning; install it with: pip install "emat[train]"') from None
    with _machine_told():
        return Fabric(
            accelerator=settings.device,
            devices=settings.devices,
            num_nodes=settings.nodes,
            strategy=settings.strategy,
            precision=settings.precision,  # type: ignore[arg-type]  # checked by the settings
        )


def start(fabric: "Fabric") -> None:
    """Have all processes, and wait until they have come as far as this one."""
    with _machine_told():
        fabric.launch()
    fabric.barrier()


@contextmanager
def errors_of_process(fabric: "Fabric") -> Iterator[None]:
    """An error inside the block says whose it is: that of a process beside the first, or of another that is gone."""
    try:
        yield
    except EmatError as error:
        if fabric.is_global_zero:
            raise
        raise EmatError(f"process {fabric.global_rank}: {error}") from None
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        if fabric.world_size == 1 or not any(name in reason for name in CONNECTIONS):
            raise
        raise EmatError(
            f"process {fabric.global_rank} waits in vain for another, which tells why it stopped; go on with --resume "
            f"({reason})"
        ) from None


@contextmanager
def _machine_told() -> Iterator[None]:
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    try:
        yield
    except (ValueError, RuntimeError, MisconfigurationException) as error:
        raise EmatError(f"this machine cannot train so: {' '.join(str(error).split())}") from None
