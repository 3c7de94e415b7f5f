"""How many threads to compute with.

PyTorch takes one for each core. On a machine that is busy with something else, such threads wait for each other and
spin while they wait: predicting nine small photos took 94 seconds with the default and 15 with one thread. So a command
that starts on a busy machine takes as many threads as there are cores to spare. The last digits of results depend on
the number of threads; `--threads` fixes it.
"""

import os
import sys
from dataclasses import dataclass

from emat.errors import EmatError
from emat.files import is_number

MOST_THREADS = 1024  # PyTorch starts as many as it is told, whatever the machine has
VARIABLE, OF_THE_LIBRARIES = "EMAT_THREADS", "OMP_NUM_THREADS"


@dataclass(frozen=True)
class ThreadChoice:
    """A number of threads, None for what PyTorch chooses, and why."""

    count: int | None
    reason: str


def choose_threads(asked: str | None = None, load: float | None = None, cores: int | None = None) -> ThreadChoice:
    """Choose the number of threads.

    Args:
        asked: What `--threads` says.
        load: How many threads want to run on this machine; measured if not given.
        cores: How many cores this process may use; counted if not given.

    Raises:
        EmatError: EMAT_THREADS is not a number of threads.

    >>> choose_threads("2")
    ThreadChoice(count=2, reason='as --threads says')
    """
    for name, value in (("--threads", asked), (VARIABLE, os.environ.get(VARIABLE) or None)):
        if value is not None and not (is_number(value) and 1 <= int(value) <= MOST_THREADS):
            raise EmatError(
                "bad-number", f"{name} is {value[:40]!r}; it is a number of threads from 1 to {MOST_THREADS}"
            )
        if value is not None:
            return ThreadChoice(int(value), f"as {name} says")
    if os.environ.get(OF_THE_LIBRARIES):
        return ThreadChoice(None, f"as {OF_THE_LIBRARIES} says")
    cores = cores or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if load is None:
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    spare = max(1, round(cores - load))
    if spare >= cores:
        return ThreadChoice(None, "as PyTorch chooses")
    return ThreadChoice(spare, f"because {load:.1f} other threads run on {cores} cores")


chosen = ThreadChoice(None, "as PyTorch chooses")


def use_threads(asked: str | None = None) -> None:
    """Compute with as many threads as `choose_threads` chooses, also in processes that are started from now on."""
    global chosen
    chosen = choose_threads(asked)
    if chosen.count is None:
        return
    if "torch" in sys.modules:  # it reads the variables when it is loaded
        import torch

        torch.set_num_threads(chosen.count)
        return
    os.environ[OF_THE_LIBRARIES] = str(chosen.count)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # a thread that waits does not spin
