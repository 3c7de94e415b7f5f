"""The examples of docs/extending.md work: its package is built from the page and found through its entry points."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from emat import Example, Segmenter
from emat.datasets import layouts
from emat.formats import writing
from emat.methods.registry import build_method, find_method, method_names
from tests.raises import raises_code

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
FILE = re.compile(r"^```(?:python|toml)\n# (?P<path>[\w./-]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
PACKAGE = "emat_example"
RED, GREY = (230, 20, 20), (90, 90, 90)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The page's package as pip would install it, on the import path."""
    folder = tmp_path_factory.mktemp("site-packages")
    files = {match["path"]: match["text"] for match in FILE.finditer(PAGE.read_text(encoding="utf-8"))}
    (folder / PACKAGE).mkdir()
    (folder / PACKAGE / "__init__.py").touch()
    weights = folder / PACKAGE / "patches.safetensors"
    torch.manual_seed(0)
    save_file({"embedding.weight": torch.randn(8, 3, 16, 16)}, weights)
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    for path, text in files.items():
        if path.startswith(PACKAGE):
            (folder / path).write_text(text.replace("SHA-256 OF THE FILE", sha256), encoding="utf-8")
    information = folder / "emat_example-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: emat-example\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(entry_points(files["pyproject.toml"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        invalidate_caches()
        yield folder


def entry_points(pyproject: str) -> str:
    """What pip writes into entry_points.txt; Python 3.10 has no TOML reader."""
    groups = re.findall(r'^\[project\.entry-points\."(.+?)"\]\n((?:.+\n)+)', pyproject, re.MULTILINE)
    assert [name for name, _ in groups] == ["emat.methods", "emat.backbones"]
    return "\n".join(f"[{name}]\n{lines}".replace('"', "") for name, lines in groups)


def stripes(size: tuple[int, int] = (64, 96)) -> Any:
    """A photo whose left half is red and whose right half is grey."""
    photo = np.full((*size, 3), GREY, np.uint8)
    photo[:, : size[1] // 2] = RED
    return photo


@pytest.mark.usefixtures("package")
def test_a_package_adds_a_method_and_a_backbone(tmp_path: Path) -> None:
    assert "nearest" in method_names()
    assert find_method("nearest").needs_training
    segmenter = Segmenter(build_method("nearest", "patches"))
    segmenter.fit([Example(stripes(), {"red": (0, 0, 48, 64)})])
    prediction = segmenter.predict(stripes())
    assert prediction.present == {"red"}
    truth = np.zeros((64, 96), bool)
    truth[:, :48] = True
    found = prediction.mask("red")
    assert (found & truth).sum() / (found | truth).sum() > 0.8
    segmenter.save(tmp_path / "red.emat")
    again = Segmenter.load(tmp_path / "red.emat").predict(stripes())
    assert np.array_equal(again.label_map, prediction.label_map)
    assert again.scores == prediction.scores


@pytest.mark.usefixtures("package")
def test_an_entry_may_say_how_a_method_is_built() -> None:
    entry = import_module(f"{PACKAGE}.entry").NEAREST
    assert (entry.default_backbone, entry.needs_training) == ("patches", False)


def test_a_package_that_cannot_be_imported_is_named(package: Path) -> None:
    broken = package / "broken_example-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-example\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[emat.methods]\nbroken = no_such_module:Method\n")
    invalidate_caches()
    with raises_code("broken-plugin", "broken-example"):
        find_method("broken")


@pytest.mark.usefixtures("package")
def test_a_data_set_is_recognised_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = import_module(f"{PACKAGE}.boxes")
    monkeypatch.setattr(layouts, "LAYOUTS", {"boxes": boxes.BOXES, **layouts.LAYOUTS})
    Image.fromarray(stripes()).save(tmp_path / "a.png")
    (tmp_path / "boxes.csv").write_text("photo,class,left,top,right,bottom\na.png,red,0,0,48,64\n")
    dataset = layouts.open_dataset(tmp_path)
    assert (dataset.kind, dataset.classes, dataset.names) == ("boxes", ("red",), ("a.png",))
    assert list(dataset.class_areas()["a.png"]) == [1]
    assert int(dataset.mask("a.png").sum()) == 48 * 64
    assert dataset.image("a.png").shape == (64, 96, 3)


@pytest.mark.usefixtures("package")
def test_a_format_is_written_and_goes_on_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(writing.WRITERS, "areas", f"{PACKAGE}.areas:AreasWriter")
    label_map = np.array([[0, 1, 1], [2, 255, 0]], np.uint8)

    with suppress(KeyboardInterrupt), writing.open_writer("areas", tmp_path, ["cat", "dog"]) as writer:
        writer.write("a.jpg", label_map)
        raise KeyboardInterrupt
    with writing.open_writer("areas", tmp_path, ["cat", "dog"]) as writer:
        assert writer.done() == {"a.jpg"}
        writer.write("b.jpg", label_map.T)
    assert (tmp_path / "areas.csv").read_text() == "photo,cat,dog\na.jpg,2,1\nb.jpg,2,1\n"
    assert (tmp_path / "areas" / "b.txt").read_text() == "2 1\n"
