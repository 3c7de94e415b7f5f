"""Several processes on one or more machines, through Lightning's Fabric.

Lightning starts the other processes with the same command line, unless torchrun or a cluster has started them already.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from emat.device import choose_device
from emat.errors import EmatError, needs_extra

if TYPE_CHECKING:
    from lightning.fabric import Fabric

BARRIER_TIMEOUT = timedelta(days=7)  # how long the first process of an evaluation waits for the slowest
BACKEND_NAMES = ("gloo", "NCCL")  # the message of a broken connection contains one of these names


def torchrun_processes() -> tuple[int, int] | None:
    """Return how many processes torchrun has started on each machine, and on how many machines; None without it."""
    if "LOCAL_WORLD_SIZE" not in os.environ:
        return None
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    return here, int(os.environ["WORLD_SIZE"]) // here


def open_fabric(
    device: str, devices: int, nodes: int, *, strategy: Any = "auto", precision: Any = "32-true"
) -> "Fabric":
    """Make Lightning's Fabric, which has the rank of this process. `start` starts the other processes.

    Args:
        device: Lightning's name for the kind of device: "cpu", "cuda", "mps" or "auto".
        devices: The number of devices of each machine, or of processes on a CPU.
        nodes: The number of machines.
        strategy: Lightning's strategy, such as "ddp".
        precision: Lightning's precision.

    Raises:
        EmatError: Lightning is not installed, or the machine does not have these devices.
    """
    with needs_extra("training", "train"):
        from lightning.fabric import Fabric
    with _explained():
        return Fabric(accelerator=device, devices=devices, num_nodes=nodes, strategy=strategy, precision=precision)


def start(fabric: "Fabric") -> None:
    """Start all processes, and wait until each of them has called this function."""
    with _explained():
        fabric.launch()
    fabric.barrier()


@contextmanager
def errors_with_rank(fabric: "Fabric", to_go_on: str) -> Iterator[None]:
    """Add the number of the process to errors inside the block, and explain a lost connection.

    Args:
        fabric: What `open_fabric` gave.
        to_go_on: What the user does to continue the run, such as "go on with --resume".
    """
    try:
        yield
    except EmatError as error:
        raise _with_rank(fabric.global_rank, error) from None
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        if fabric.world_size == 1 or not any(name in reason for name in BACKEND_NAMES):
            raise
        raise _lost(fabric.global_rank, to_go_on, reason) from None


@dataclass(frozen=True)
class Processes:
    """The processes that share an evaluation, as one of them sees it.

    Attributes:
        rank: The number of this process, from 0.
        count: The number of processes.
        per_machine: How many processes share the memory of this machine.
        device: The device of this process; None for the device that the method is on.
        start: Starts the other processes.
        barrier: Returns when all processes have called it.
        broadcast: Gives all processes the text that the first one passes.
    """

    rank: int = 0
    count: int = 1
    per_machine: int = 1
    device: torch.device | None = None
    start: Callable[[], None] = lambda: None
    barrier: Callable[[], None] = lambda: None
    broadcast: Callable[[str], str] = lambda text: text

    def with_rank(self, error: EmatError) -> EmatError:
        """Add the number of this process to an error, unless it is the first process."""
        return _with_rank(self.rank, error)


ALONE = Processes()


def find_processes(devices: int | None = None, nodes: int = 1, device: str | None = None) -> Processes:
    """Find the processes that share an evaluation.

    Args:
        devices: The number of processes on each machine. If not given, those that torchrun has started, or only this
            one.
        nodes: The number of machines.
        device: The name of the device, for `choose_device`.

    Raises:
        EmatError: A number is below 1, Lightning is not installed, or a device does not exist.
    """
    if devices is None:
        devices, nodes = torchrun_processes() or (1, nodes)
    if devices < 1 or nodes < 1:
        raise EmatError("bad-number", f"at least one device and one node are needed, not {devices} and {nodes}")
    if devices == nodes == 1:
        return Processes(device=choose_device(device))
    kind = choose_device(device).type
    fabric = open_fabric(kind, devices, nodes, strategy=_strategy_with_timeout())

    def barrier() -> None:
        try:
            fabric.barrier()
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise _lost(fabric.global_rank, "the same command goes on from here", reason) from None

    return Processes(
        fabric.global_rank, fabric.world_size, devices, fabric.device, fabric.launch, barrier, fabric.broadcast
    )


def _strategy_with_timeout() -> Any:
    try:
        from lightning.fabric.strategies.ddp import DDPStrategy
    except ImportError:
        return "auto"  # open_fabric explains what is missing
    return DDPStrategy(timeout=BARRIER_TIMEOUT)


def _with_rank(rank: int, error: EmatError) -> EmatError:
    return EmatError(error.code, f"process {rank}: {error}") if rank else error


def _lost(rank: int, to_go_on: str, reason: str) -> EmatError:
    return EmatError(
        "lost-process",
        f"process {rank} lost the connection to another process, whose own message says why it stopped; {to_go_on} "
        f"({reason})",
    )


@contextmanager
def _explained() -> Iterator[None]:
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    try:
        yield
    except (ValueError, RuntimeError, MisconfigurationException) as error:
        raise EmatError("unknown-device", f"this machine cannot do that: {' '.join(str(error).split())}") from None
