"""A fitted segmenter as one file: safetensors with the head and every example's encodings, the rest in the metadata."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emat.errors import EmatError
from emat.inference.encodings import kind_of, pack, unpack
from emat.inference.fitted import FittedExample, Thumbnail
from emat.inference.heads import Head, head_from
from emat.tensor_files import load_safetensors, read_metadata, write_tensors

FORMAT = "emat-segmenter"
VERSION = 1
HEAD = "head."


@dataclass(frozen=True)
class Fitted:
    """What a file holds."""

    head: Head
    examples: tuple[FittedExample, ...]


def is_fitted(path: Path) -> bool:
    """Whether the file says that it is a fitted segmenter; a damaged one may."""
    with path.open("rb") as file:
        start = file.read(9)
    return start[8:9] == b"{" and read_metadata(path).get("format") == FORMAT


def write_fitted(path: Path, head: Head, examples: Sequence[FittedExample], thumbnails: bool) -> None:
    """Write the file whole or not at all."""
    tensors = {f"{HEAD}{name}": value for name, value in head.tensors.items()}
    listed = []
    for place, example in enumerate(examples):
        small = example.thumbnail if thumbnails else None
        kinds = [kind_of(encoding) for encoding in example.encodings.values()]
        listed.append({"name": example.name, "classes": list(example.classes), "encodings": kinds})
        for number, (class_name, encoding) in enumerate(example.encodings.items()):
            tensors.update({f"example.{place}.{number}.{part}": value for part, value in pack(encoding).items()})
            if small is not None:
                tensors[f"example.{place}.{number}.thumbnail"] = torch.from_numpy(small.masks[class_name])
        if small is not None:
            tensors[f"example.{place}.thumbnail"] = torch.from_numpy(small.photo)
    metadata = {"format": FORMAT, "version": str(VERSION), "examples": json.dumps(listed), **head.metadata()}
    try:
        write_tensors(path, tensors, metadata)
    except OSError as error:
        raise EmatError(f"{path} cannot be written: {error.strerror or error}") from None


def read_fitted(path: Path) -> Fitted:
    """The segmenter that `write_fitted` wrote; EmatError for anything else."""
    metadata = read_metadata(path)
    if metadata.get("format") != FORMAT:
        raise EmatError(f"{path} is not a fitted segmenter; write one with `emat fit` or Segmenter.save")
    if metadata.get("version") != str(VERSION):
        raise EmatError(
            f"{path} is a fitted segmenter of version {metadata.get('version')}, this emat reads version {VERSION}; "
            "fit it again or use the emat that wrote it"
        )
    tensors = load_safetensors(path)
    weights = {name.removeprefix(HEAD): value for name, value in tensors.items() if name.startswith(HEAD)}
    try:
        listed = json.loads(metadata["examples"])
        examples = tuple(_example(entry, place, tensors) for place, entry in enumerate(listed))
        if not examples:
            raise ValueError("no examples")
    except (KeyError, TypeError, ValueError) as error:
        raise EmatError(f"{path} is damaged ({type(error).__name__}: {error}); fit it again") from None
    return Fitted(head_from(weights, metadata, path), examples)


def _example(entry: Mapping[str, Any], place: int, tensors: Mapping[str, Tensor]) -> FittedExample:
    classes = [str(name) for name in entry["classes"]]
    encodings = {}
    for number, (name, kind) in enumerate(zip(classes, entry["encodings"], strict=True)):
        start = f"example.{place}.{number}."
        own = {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
        encodings[name] = unpack(kind, own)
    small = None
    if f"example.{place}.thumbnail" in tensors:
        masks = {name: tensors[f"example.{place}.{number}.thumbnail"].numpy() for number, name in enumerate(classes)}
        small = Thumbnail(tensors[f"example.{place}.thumbnail"].numpy(), masks)
    return FittedExample(str(entry["name"]), encodings, small)
