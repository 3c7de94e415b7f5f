"""Files of named tensors: safetensors and PyTorch's pickles are read, safetensors are written.

Only tensors are taken from a pickle. Checkpoints of training frameworks also contain objects such as hyper-parameters
(`argparse.Namespace`), paths and loggers. To load them would run code of the file, so every class or function that a
checkpoint refers to is replaced by one that does nothing before PyTorch's restricted unpickler reads the file.
"""

import hashlib
import json
import pickle
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from emat.errors import EmatError
from emat.files import open_input
from emat.outputs import whole_file

# The keys under which checkpoints store the weights: Lightning, trainers such as timm's, and DINO's teacher.
NESTED_UNDER = ("state_dict", "model", "teacher")


class _Inert:
    """Replaces a class or function of a checkpoint: it accepts any arguments and state, and does nothing."""

    def __new__(cls, *_arguments: Any, **_named: Any) -> Any:
        return object.__new__(cls)

    def __setstate__(self, _state: Any) -> None:
        pass


class _InertMapping:
    """Replaces a class that may be a dictionary; PyTorch allows both items and state only for OrderedDict."""

    def __new__(cls, *_arguments: Any, **_named: Any) -> Any:
        return OrderedDict()


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Read the named tensors of a .safetensors, .pth, .pt or .ckpt file.

    The format is recognised by the content of the file, not by its suffix.

    Returns:
        The tensors by their names, on the CPU; sparse, complex and other odd ones are left out.

    Raises:
        EmatError: The file cannot be read, is damaged, has no named tensors, or values that are infinite or no numbers.
    """
    path = Path(path)
    with open_input(path) as file:
        start = file.read(9)
    tensors = load_safetensors(path) if start[8:9] == b"{" else _load_pickled(path)
    tensors = {name: value for name, value in tensors.items() if _is_plain(value)}
    if not tensors:
        raise EmatError("wrong-file-kind", f"{path} has no named tensors; give a file of network weights")
    for name, value in tensors.items():
        if value.is_floating_point() and not value.float().isfinite().all():
            raise EmatError(
                "damaged-file", f"{path}: {name} has values that are no numbers; fetch it again, or train it anew"
            )
    return tensors


def _is_plain(value: Tensor) -> bool:
    """Whether a tensor holds each of its values as a real number, as weights of networks do."""
    if value.layout is not torch.strided or value.is_meta or value.is_quantized or value.is_complex():
        return False
    # A file of a few bytes can claim a tensor of terabytes that repeats one value.
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def load_safetensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file.

    Raises:
        EmatError: The file cannot be read, or is damaged.
    """
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise EmatError(
            "damaged-file", f"{path} is damaged or not a safetensors file ({error}); fetch or copy it again"
        ) from error


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file, without its tensors.

    Raises:
        EmatError: The file cannot be read, or is damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise EmatError(
            "damaged-file", f"{path} is damaged or not a safetensors file ({error}); fetch or copy it again"
        ) from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, whole or not at all.

    Raises:
        EmatError: The file cannot be written.
    """
    # Tensors are copied because safetensors refuses those that share memory, such as views of one projection.
    copies = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()
    }
    # Not `save_file`: it writes a hidden file of its own beside the path, which a killed run leaves behind.
    content = save(copies, dict(metadata))
    with whole_file(path) as unfinished:
        unfinished.write_bytes(content)
        _sort_metadata(unfinished)


def _sort_metadata(path: Path) -> None:
    """Put a file's metadata in order: safetensors writes them in a new order each time, so equal files would differ."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
        ordered = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(ordered) <= length:  # always true, since the text is the same in another order
            file.seek(8)
            file.write(ordered.ljust(length))


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names, types, shapes and values of tensors, which does not depend on their file.

    >>> digest({"a": torch.ones(2), "b": torch.zeros(1)}) == digest({"b": torch.zeros(1), "a": torch.ones(2)})
    True
    """
    total = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every named tensor."""
    return {name: tuple(value.shape) for name, value in tensors.items()}


def misfits(given: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> str:
    """Describe how the `given` shapes of tensors differ from the `expected` ones; empty if they are equal.

    Everything that loads weights uses this text in its errors.

    >>> misfits({"a": (3,), "c": (1,)}, {"a": (4,), "b": (2,)})
    'missing b; unknown c; a is (3,) instead of (4,)'
    """
    missing = [name for name in expected if name not in given]
    unknown = [name for name in given if name not in expected]
    reshaped = [f"{n} is {given[n]} instead of {s}" for n, s in expected.items() if n in given and given[n] != s]
    parts = [("missing ", missing), ("unknown ", unknown), ("", reshaped)]
    return "; ".join(word + _first_few(names) for word, names in parts if names)


def _first_few(names: list[str], shown: int = 3) -> str:
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + rest


def _load_pickled(path: Path) -> dict[str, Tensor]:
    try:
        # The file is opened here because torch.load would choose the format by the suffix of a path.
        with torch.serialization.safe_globals(_stand_ins(path)), path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch remarks on old or odd files, of which all that matters is refused
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged pickles and zips raise nearly everything: IndexError, struct.error, ...
        reason = str(error).strip().split("\n")[0][:120] or type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # torch advises to read it without any safety
            reason = "it holds something else"
        raise EmatError(
            "damaged-file", f"{path} is damaged, or is not a file of tensors that can be read safely ({reason})"
        ) from error
    return _named_tensors(content)


def _stand_ins(path: Path) -> list[Any]:
    """Return replacements for all classes and functions in the file that PyTorch does not consider safe."""
    if not zipfile.is_zipfile(path):
        return []  # the format before PyTorch 1.6, which needs none for plain weights
    foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    # NumPy's scalars and types have tuples as state, which a mapping does not accept.
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
