"""Fitted segmenters on the Hugging Face hub: one safetensors file and a card for each.

Reading needs nothing but HTTP: the file is downloaded as weights are, and what cannot be reached now is taken from the
copy of last time. Writing needs the package huggingface_hub and the token that `hf auth login` keeps.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emat import __version__
from emat.errors import EmatError, needs_extra
from emat.files import emat_home, locked
from emat.inference.fitted_file import is_fitted
from emat.inference.forecast import Forecast
from emat.weights import FORBIDDEN, HUB, download, forget_download, is_offline

SCHEME = "hf://"
SEGMENTER_FILE = "segmenter.safetensors"
ADDRESS = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?")


def is_on_hub(source: str | Path) -> bool:
    """Whether a source is an address such as "hf://owner/name"."""
    return isinstance(source, str) and source.startswith(SCHEME)


def fetch_segmenter(address: str) -> Path:
    """Download the segmenter at "hf://owner/name" or "hf://owner/name@revision", and return its file.

    Raises:
        EmatError: If the address is none, or there is neither a connection nor an earlier copy.
    """
    parts = ADDRESS.fullmatch(address)
    if parts is None or ".." in address:
        raise EmatError(
            "bad-address",
            f"{address} is not the address of a model; it should be hf://owner/name or hf://owner/name@revision",
        )
    name, revision = parts["name"], parts["revision"] or "main"
    kept = emat_home() / "hub" / name.replace("/", "--") / revision / SEGMENTER_FILE
    arriving = kept.with_name("arriving.safetensors")
    with locked(kept.with_suffix(".lock"), waiting=lambda: None):
        try:
            download(f"{_endpoint()}/{name}/resolve/{revision}/{SEGMENTER_FILE}", arriving)
            if not is_fitted(arriving):  # the copy of last time is better than that
                raise EmatError("wrong-file-kind", f"{SEGMENTER_FILE} there is not a fitted segmenter")
            arriving.replace(kept)
        except EmatError as error:
            if not kept.is_file():
                raise EmatError(error.code, f"{address} cannot be loaded: {error}") from None
            print(f"emat: {address} cannot be loaded ({error}); the copy of last time is used", file=sys.stderr)
        finally:
            forget_download(arriving)
    return kept


def push_segmenter(file: Path, name: str, card: str, private: bool) -> str:
    """Write a file of a fitted segmenter and its card to the model `name`, and return its address.

    Raises:
        EmatError: If the name is none, the package huggingface_hub is missing, or the hub refuses.
    """
    address = f"{SCHEME}{name}"
    if ADDRESS.fullmatch(address) is None or "@" in name:
        raise EmatError("bad-address", f"{name!r} is not the name of a model; it should be owner/name")
    if is_offline():
        raise EmatError("offline-mode", f"{name} was not written to the hub: {FORBIDDEN}")
    api = _api()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        for path, content in ((SEGMENTER_FILE, file), ("README.md", card.encode())):
            api.upload_file(path_or_fileobj=content, path_in_repo=path, repo_id=name)
    except Exception as error:  # its errors come from three packages for HTTP, by its version
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
        raise EmatError(
            "upload-failed",
            f"{name} was not written to the hub: {reason}; check the connection, and log in with `hf auth login`",
        ) from None
    return address


def model_card(name: str, method: str, examples: Mapping[str, int], forecast: Mapping[str, Forecast]) -> str:
    """Return the README of a model, made from what was fitted.

    Args:
        name: The model, as "owner/name".
        method: The name of the method.
        examples: How many examples show each class.
        forecast: What is expected of each class; empty if nothing is known.
    """
    rows = []
    for class_name, count in examples.items():
        expected = forecast[class_name].cells()[1:] if class_name in forecast else ["unknown", "unknown"]
        label = class_name.replace("|", "\\|").replace("\n", " ")
        rows.append(f"| {label} | {count} | {' | '.join(expected)} |")
    table = "\n".join(rows)
    return f"""---
library_name: emat
pipeline_tag: image-segmentation
tags: [few-shot, segmentation, emat]
---

# {name}

A segmenter that was fitted with [emat](https://arxiv.org/abs/2507.23642) {__version__} (method {method}).

| class | examples | expected IoU | presence right |
|---|---|---|---|
{table}

The expectations come from cross-validation on the examples and hold for photos like them.

```python
from emat import Segmenter

segmenter = Segmenter.load("hf://{name}")
segmenter.predict("photo.jpg")
```

`{SEGMENTER_FILE}` holds tensors and text alone; loading it executes nothing.
"""


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", HUB).rstrip("/")


def _api() -> Any:
    with needs_extra("pushing", "hub"):
        from huggingface_hub import HfApi
    return HfApi(endpoint=_endpoint(), library_name="emat", library_version=__version__)
