"""Where tensors are computed: the one place that names cpu, cuda and mps."""

import ctypes
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from emat.errors import EmatError


@dataclass(frozen=True)
class Device:
    """A device that works here."""

    name: str  # as `choose_device` takes it
    description: str


@dataclass(frozen=True)
class Memory:
    """Main memory in bytes; None where the system does not tell."""

    total: int | None
    available: int | None


def available_devices() -> list[Device]:
    """Every device that works here, the preferred one first."""
    devices = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            devices.append(Device(f"cuda:{index}", f"{found.name}, {found.total_memory / 2**30:.0f} GB"))
    if torch.backends.mps.is_available():
        devices.append(Device("mps", "Apple GPU"))
    return [*devices, Device("cpu", f"{os.cpu_count()} cores")]


def choose_device(name: str | torch.device | None = None) -> torch.device:
    """The device called `name`, or the best one here if it is None or "auto".

    >>> choose_device("cpu")
    device(type='cpu')
    """
    here = [device.name for device in available_devices()]
    if name is None or name == "auto":
        return torch.device(here[0])
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise EmatError(f"there is no device {str(name)!r}; here: {', '.join(here)}, or auto") from error
    if not any(there == str(device) or there == f"{device}:0" for there in here):  # cuda is cuda:0
        raise EmatError(f"the device {str(name)!r} does not work on this machine; here: {', '.join(here)}, or auto")
    return device


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Computation in `dtype` where that is safe; nothing changes for None and float32."""
    if dtype is None or dtype is torch.float32:
        return nullcontext()
    unfit = device.type == "cuda" and dtype is torch.bfloat16 and not torch.cuda.is_bf16_supported()
    if dtype not in (torch.float16, torch.bfloat16) or unfit or not torch.amp.is_autocast_available(device.type):
        raise EmatError(f"{device} does not compute in {str(dtype).removeprefix('torch.')}; use float32")
    return torch.autocast(device.type, dtype)


def main_memory() -> Memory:
    """Total and available main memory."""
    table = Path("/proc/meminfo")
    if table.exists():
        fields = dict(line.split(":", 1) for line in table.read_text().splitlines())
        kilobytes = [int(fields[key].split()[0]) for key in ("MemTotal", "MemAvailable")]
        return Memory(*(1024 * value for value in kilobytes))
    if os.name == "nt":
        return _windows_memory()
    return Memory(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), None)


def _windows_memory() -> Memory:
    class Status(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ulong), ("load", ctypes.c_ulong)] + [
            (name, ctypes.c_ulonglong)
            for name in ("total", "available", "pages", "pages_free", "virtual", "virtual_free", "extended")
        ]

    status = Status(length=ctypes.sizeof(Status))
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined,unused-ignore]
    return Memory(status.total, status.available)


def free_memory(device: torch.device) -> int | None:
    """Bytes that tensors on `device` can still take; None where the system does not tell."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else main_memory().available


def workspace_bytes(device: torch.device) -> int:
    """A budget for the intermediate memory of chunked work, which takes shares of it: a CPU's caches, a busy GPU."""
    return 24 * 2**20 if device.type == "cpu" else 512 * 2**20
