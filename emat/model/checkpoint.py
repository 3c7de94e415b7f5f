"""Heads as files: published checkpoints in, our own safetensors in and out.

The only module of the network that touches the disk.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from emat.errors import EmatError
from emat.model.network import FORMS, Network, build
from emat.tensor_files import read_metadata, read_tensors, write_tensors

LEARNER = "learner."  # what published checkpoints put before the head's names
NAMES_SHOWN = 6


def load_public(net: Network, tensors: Mapping[str, Tensor]) -> None:
    """Give `net` the weights of a published checkpoint: {"corrtransformer.0...": Tensor}, with or without "learner.".

    Nothing is loaded unless every name and shape fits; otherwise an EmatError lists what does not.
    """
    own = net.state_dict()
    given = head_tensors(tensors)
    problems = [
        _listed("missing", [name for name in own if name not in given]),
        _listed("unknown", [name for name in given if name not in own]),
        _listed(
            "of another shape",
            [
                f"{name} {tuple(given[name].shape)} instead of {tuple(value.shape)}"
                for name, value in own.items()
                if name in given and given[name].shape != value.shape
            ],
        ),
    ]
    if any(problems):
        found = "; ".join(problem for problem in problems if problem)
        raise EmatError(f"these tensors are not a {net.method} head with {net.channels} channels: {found}")
    net.load_state_dict({name: value.to(own[name].dtype) for name, value in given.items()})


def head_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The head's tensors without their prefix: of a whole checkpoint, those under "learner."; else all of them."""
    prefixed = {name.removeprefix(LEARNER): value for name, value in tensors.items() if name.startswith(LEARNER)}
    return prefixed or dict(tensors)


def identify(tensors: Mapping[str, Tensor]) -> str:
    """Which method a head's tensors belong to, by their names and shapes.

    CST and its larger form have the same tensors, as has the ablation `emat-me`: all of them are reported as "cst".
    """
    given = {name: tuple(value.shape) for name, value in head_tensors(tensors).items()}
    channels = _channels(given)
    closest: tuple[int, str] = (len(given), "")
    for method in FORMS:
        own = {name: tuple(value.shape) for name, value in build(method, channels).state_dict().items()}
        if own == given:
            return method
        closest = min(closest, (len(set(own.items()) ^ set(given.items())), method))
    if not closest[1]:
        raise EmatError("no EMAT or CST head is among these tensors; a published .ckpt holds one under 'learner.'")
    load_public(build(closest[1], channels), tensors)  # always raises: says what the nearest method misses
    raise AssertionError(closest)


def save_head(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a head as safetensors, its method and channels in the metadata beside what is given."""
    own = head_tensors(tensors)
    shapes = {name: tuple(value.shape) for name, value in own.items()}
    write_tensors(path, own, {"method": identify(own), "channels": str(_channels(shapes)), **metadata})


def load_head(path: Path) -> Network:
    """The network that `save_head` wrote, in evaluation mode."""
    metadata, tensors = read_metadata(path), read_tensors(path)
    method = metadata.get("method") or identify(tensors)
    net = build(method, _channels({name: tuple(value.shape) for name, value in tensors.items()}))
    load_public(net, tensors)
    return net.eval()


def _channels(shapes: Mapping[str, tuple[int, ...]]) -> int:
    for name in ("attn.kv.weight", "attn.qkv.weight"):
        shape = shapes.get(f"corrtransformer.0.{name}", ())
        if len(shape) == 4 and shape[1] > 0:
            return shape[1]
    raise EmatError("no EMAT or CST head is among these tensors; a published .ckpt holds one under 'learner.'")


def _listed(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{what}: {', '.join(names[:NAMES_SHOWN])}{more}"
