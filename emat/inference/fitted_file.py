"""A fitted segmenter as one file: safetensors with the head and every example's encodings, the rest in the metadata."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emat.errors import EmatError
from emat.inference.fitted import FittedExample, Thumbnail
from emat.inference.heads import Head, head_from
from emat.model import SupportEncoding
from emat.tensor_files import load_safetensors, read_metadata, write_tensors

FORMAT = "emat-segmenter"
VERSION = 1
HEAD = "head."

# The support encodings that can be kept, by the name that a file calls them: dataclasses whose fields are tensors.
ENCODINGS: dict[str, type[Any]] = {"correlation": SupportEncoding}


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
        kinds = [_kind(encoding) for encoding in example.encodings.values()]
        listed.append({"name": example.name, "classes": list(example.classes), "encodings": kinds})
        for number, (class_name, encoding) in enumerate(example.encodings.items()):
            for field in fields(encoding):
                tensors[f"example.{place}.{number}.{field.name}"] = getattr(encoding, field.name)
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
        form = ENCODINGS[kind]
        encodings[name] = form(**{f.name: tensors[f"example.{place}.{number}.{f.name}"] for f in fields(form)})
    small = None
    if f"example.{place}.thumbnail" in tensors:
        masks = {name: tensors[f"example.{place}.{number}.thumbnail"].numpy() for number, name in enumerate(classes)}
        small = Thumbnail(tensors[f"example.{place}.thumbnail"].numpy(), masks)
    return FittedExample(str(entry["name"]), encodings, small)


def _kind(encoding: Any) -> str:
    for kind, form in ENCODINGS.items():
        if type(encoding) is form:
            return kind
    raise EmatError(f"a segmenter whose examples are kept as {type(encoding).__name__} cannot be saved")
