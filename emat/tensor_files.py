"""Files of named tensors: reads safetensors and PyTorch's pickles, tensors only; writes safetensors.

Nothing that is pickled beside the tensors is ever imported, called or built. Checkpoints of training
frameworks hold such things (hyper-parameters as `argparse.Namespace`, paths, loggers): each class or
function they name is replaced by an inert stand-in before PyTorch's restricted unpickler reads the file.
"""

import hashlib
import os
import pickle
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from emat.errors import EmatError

# Where checkpoints keep the weights: Lightning, timm-like trainers, DINO's teacher.
NESTED_UNDER = ("state_dict", "model", "teacher")


class _Inert:
    """Stands in for a foreign class or function: takes any arguments and state, keeps and does nothing."""

    def __new__(cls, *_arguments: Any, **_named: Any) -> Any:
        return object.__new__(cls)

    def __setstate__(self, _state: Any) -> None:
        pass


class _InertMapping:
    """The same where the class may be a dictionary: only OrderedDict may get both items and state."""

    def __new__(cls, *_arguments: Any, **_named: Any) -> Any:
        return OrderedDict()


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Every named tensor of a .safetensors, .pth, .pt or .ckpt file; its content decides, not its suffix."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise EmatError(f"cannot read {path}: {error.strerror or error}") from error
    tensors = load_safetensors(path) if start[8:9] == b"{" else _load_pickled(path)
    if not tensors:
        raise EmatError(f"{path} holds no named tensors; give a file of network weights")
    return tensors


def load_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; EmatError if it is damaged."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise EmatError(f"{path} is damaged or not a safetensors file ({error}); fetch or copy it again") from error


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file, without reading its tensors."""
    try:
        with safe_open(path, "pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise EmatError(f"{path} is damaged or not a safetensors file ({error}); fetch or copy it again") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Copies, because safetensors refuses tensors that share memory, as views of one projection do.
    copies = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()
    }
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        save_file(copies, temporary, dict(metadata))
        os.chmod(temporary, 0o644)  # mkstemp's files are for their owner alone
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values: equal weights have one digest, whatever file they came in.

    >>> digest({"a": torch.ones(2), "b": torch.zeros(1)}) == digest({"b": torch.zeros(1), "a": torch.ones(2)})
    True
    """
    total = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, as `sha256sum` prints it."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def _load_pickled(path: Path) -> dict[str, Tensor]:
    try:
        # An open file, because torch.load would judge a path by its suffix.
        with torch.serialization.safe_globals(_stand_ins(path)), path.open("rb") as file:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        RuntimeError,
        ValueError,
        EOFError,
        TypeError,
        KeyError,
        AttributeError,
    ) as error:
        reason = str(error).strip().split("\n")[0][:120]
        raise EmatError(
            f"{path} is not a file of tensors that can be read safely, or it is damaged ({reason})"
        ) from error
    return _named_tensors(content)


def _stand_ins(path: Path) -> list[Any]:
    """An inert stand-in for everything the file names that PyTorch does not itself hold safe."""
    if not zipfile.is_zipfile(path):
        return []  # the format before PyTorch 1.6; its plain weights need none
    foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    # NumPy's scalars and types get tuples as state, which no mapping takes.
    return [(_Inert if name.startswith("numpy.") else _InertMapping, name) for name in foreign]


def _named_tensors(content: Any) -> dict[str, Tensor]:
    if not isinstance(content, Mapping):
        return {}
    for key in NESTED_UNDER:
        if isinstance(content.get(key), Mapping):
            return _named_tensors(content[key])
    return {
        name: value.detach() for name, value in content.items() if isinstance(value, Tensor) and isinstance(name, str)
    }
