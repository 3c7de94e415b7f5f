"""Several processes, on one machine or many, through Lightning: each answers its share of the queries."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch

from emat.device import choose_device
from emat.errors import EmatError

STARTED, STARTED_HERE = "WORLD_SIZE", "LOCAL_WORLD_SIZE"  # torchrun's number of processes, in all and on this machine
PATIENCE = timedelta(days=7)  # the first process may wait this long for the slowest


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this one is, and its device.

    `start` has the others begin, `wait` returns when all have called it.
    """

    rank: int = 0
    count: int = 1
    on_machine: int = 1  # how many of them share this machine's memory
    device: torch.device | None = None  # None: wherever the method is
    start: Callable[[], None] = lambda: None
    wait: Callable[[], None] = lambda: None
    from_first: Callable[[str], str] = lambda word: word  # what the first process said, for all of them

    def own(self, error: EmatError) -> EmatError:
        """The error with the number of the process that met it, where that is not the first."""
        return EmatError(f"process {self.rank}: {error}") if self.rank else error


ALONE = Processes()


def find_processes(devices: int | None = None, nodes: int = 1, device: str | None = None) -> Processes:
    """`devices` processes on each of `nodes` machines, this one among them.

    Lightning starts the others with the same command line, or finds them already started, by torchrun or a cluster.
    Where `devices` is None, they are those that torchrun has started, or this one alone.
    """
    if devices is None and STARTED_HERE in os.environ:
        devices = int(os.environ[STARTED_HERE])
        nodes = int(os.environ[STARTED]) // devices
    devices = 1 if devices is None else devices
    if devices < 1 or nodes < 1:
        raise EmatError(f"at least one device and one node are needed, not {devices} and {nodes}")
    if devices == nodes == 1:
        return Processes(device=choose_device(device))
    try:
        from lightning.fabric import Fabric
        from lightning.fabric.strategies.ddp import DDPStrategy
    except ImportError:
        raise EmatError('several devices need Lightning; install it with pip install "emat[train]"') from None
    kind = choose_device(device).type
    fabric = Fabric(
        accelerator="gpu" if kind == "cuda" else kind,
        devices=devices,
        num_nodes=nodes,
        strategy=DDPStrategy(timeout=PATIENCE),
    )

    def wait() -> None:
        try:
            fabric.barrier()
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise EmatError(
                "this process waits in vain for another, which says why it stopped; the same command goes on from "
                f"here ({reason})"
            ) from None

    return Processes(
        fabric.global_rank, fabric.world_size, devices, fabric.device, fabric.launch, wait, fabric.broadcast
    )
