"""Devices, precision, memory, and threads that share the cores.

This is the only module that distinguishes cpu, cuda and mps.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
import torch
from torch import Tensor

from emat.errors import EmatError

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_WORKERS = 8  # because each worker needs its own intermediate memory


def use_fast_exact_products() -> bool:
    """Let oneDNN compute the matrix products of this process, where it is faster than MKL and as precise.

    MKL does not use the AVX-512 of AMD processors, so its products take twice as long there as those of oneDNN. PyTorch
    gives float32 products to oneDNN only if oneDNN may round their inputs to bfloat16, which it does where a processor
    has instructions for it. So the setting is kept only if a product that rounding would change stays exact. Where
    there is a CUDA device, nothing is set, because the setting would apply to it too.

    Returns:
        Whether oneDNN computes the products.
    """
    if not _has_amd_avx512() or not torch.backends.mkldnn.is_available() or torch.cuda.is_available():
        return False
    before = torch.get_float32_matmul_precision()
    if before == "highest":  # the default; otherwise somebody has chosen
        torch.set_float32_matmul_precision("medium")
        if products_are_exact():
            return True
        torch.set_float32_matmul_precision(before)
    return False


def products_are_exact() -> bool:
    """Whether float32 matrix products on the CPU keep all digits of their inputs."""
    wide = torch.full((64, 64), 1 + 2**-23)  # bfloat16 and TF32 would round this to 1
    eye, batch = torch.eye(64), wide.expand(8, 64, 64)
    products = (wide @ eye, batch @ eye, batch[:, :, :4] @ eye[:4])  # the last is as thin as attention's
    return all(bool((product[..., :4].float() == wide[0, 0]).all()) for product in products)


def _has_amd_avx512() -> bool:
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    vendor = os.environ.get("PROCESSOR_IDENTIFIER", "")  # on Windows
    with suppress(OSError):
        vendor += Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0]
    return "AuthenticAMD" in vendor


@dataclass(frozen=True)
class Device:
    """A device that can be used on this machine."""

    name: str  # for `choose_device`
    description: str


@dataclass(frozen=True)
class Memory:
    """Main memory in bytes."""

    total: int
    available: int


def available_devices() -> list[Device]:
    """Return the devices that can be used on this machine, the preferred one first."""
    devices = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            devices.append(Device(f"cuda:{index}", f"{properties.name}, {properties.total_memory / 2**30:.0f} GB"))
    if torch.backends.mps.is_available():
        devices.append(Device("mps", "Apple GPU"))
    return [*devices, Device("cpu", f"{os.cpu_count()} cores")]


def choose_device(name: str | torch.device | None = None) -> torch.device:
    """Choose a device.

    Args:
        name: Its name, such as "cpu" or "cuda:1". None and "auto" choose the preferred device of this machine.

    Raises:
        EmatError: There is no such device, or this machine does not have it.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    here = [device.name for device in available_devices()]
    if name is None or name == "auto":
        return torch.device(here[0])
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise EmatError(
            "unknown-device", f"there is no device {str(name)!r}; this machine has {', '.join(here)}, or auto"
        ) from error
    if not any(there == str(device) or there == f"{device}:0" for there in here):  # cuda is cuda:0
        raise EmatError(
            "unknown-device", f"the device {str(name)!r} is not available; this machine has {', '.join(here)}, or auto"
        )
    return device


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Return a context in which PyTorch computes in `dtype` where that is safe.

    Args:
        device: The device to compute on.
        dtype: float16 or bfloat16. None and float32 change nothing.

    Raises:
        EmatError: The device does not support `dtype`.
    """
    if dtype is None or dtype is torch.float32:
        return nullcontext()
    unfit = device.type == "cuda" and dtype is torch.bfloat16 and not torch.cuda.is_bf16_supported()
    if dtype not in (torch.float16, torch.bfloat16) or unfit or not torch.amp.is_autocast_available(device.type):
        raise EmatError(
            "device-precision", f"{device} does not support {str(dtype).removeprefix('torch.')}; use float32"
        )
    return torch.autocast(device.type, dtype)


def compute_dtype(parameter: Tensor) -> torch.dtype:
    """Return the type for products with `parameter`: that of autocast if it is on, otherwise the parameter's own."""
    kind = parameter.device.type
    if parameter.is_floating_point() and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return parameter.dtype


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context without autocast, for code that chooses its types itself.

    Autocast would change these types, and differently in the forward and the backward pass.
    """
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def main_memory() -> Memory:
    """Return the total and the available main memory."""
    memory = psutil.virtual_memory()
    return Memory(memory.total, memory.available)


def free_memory(device: torch.device) -> int:
    """Return how many bytes are free for tensors on `device`."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else main_memory().available


def workspace_bytes(device: torch.device) -> int:
    """Return how many bytes a chunk of work may use: as much as fits the caches of a CPU or keeps a GPU busy."""
    return 24 * 2**20 if device.type == "cpu" else 512 * 2**20


class Workers:
    """Computes independent pieces of work in parallel, without gradients, and gives the results in order.

    Several pieces at the same time on one core each are faster than one after the other on all cores. Threads are
    sufficient, because PyTorch releases Python's global lock while it computes.
    """

    def __init__(self, pool: ThreadPoolExecutor | None = None) -> None:
        self._pool = pool

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Give the result of `function` for each item, in the order of the items."""

        def without_gradients(item: Item) -> Result:
            with torch.no_grad():  # gradient mode belongs to a thread, so that of the caller has no effect here
                return function(item)

        if self._pool is None:
            return map(without_gradients, items)
        return self._pool.map(without_gradients, items)


@contextmanager
def all_cores(device: torch.device, workers: int | None = None) -> Iterator[Workers]:
    """Open workers that share PyTorch's threads.

    The last digits of results depend on the number of threads of a worker. They do not depend on the number of
    workers, as long as each has one thread.

    Args:
        device: The device to compute on. If it is not a CPU, there is only one worker.
        workers: The number of workers; chosen by the number of threads if not given.
    """
    threads = torch.get_num_threads()
    count = min(threads, MOST_WORKERS) if workers is None else workers
    if device.type != "cpu" or count < 2:
        yield Workers()
        return
    torch.set_num_threads(max(1, threads // count))  # applies to threads that are started from now on
    try:
        with ThreadPoolExecutor(count) as pool:
            yield Workers(pool)
    finally:
        torch.set_num_threads(threads)


# On import, so that all results of a process are computed in the same way.
FAST_PRODUCTS = use_fast_exact_products()
