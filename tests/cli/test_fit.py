"""`emat fit` as a user runs it."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat import Segmenter
from emat.formats.writing import open_writer
from emat.images import write_indexed_png
from emat.inference.forecast import Forecast
from tests.cli.command import run


@pytest.fixture
def pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three photos with masks: cat, dog, both."""
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "120")
    root, random = tmp_path / "pets", np.random.default_rng(0)
    (root / "images").mkdir(parents=True)
    for name, values in (("a", (1,)), ("b", (2,)), ("c", (1, 2))):
        Image.fromarray(random.integers(0, 255, (30, 40, 3), np.uint8)).save(root / "images" / f"{name}.jpg")
        mask = np.zeros((30, 40), np.uint8)
        for index, value in enumerate(values):
            mask[5:25, 15 * index : 15 * index + 12] = value
        write_indexed_png(root / "masks" / f"{name}.png", mask)
    (root / "classes.txt").write_text("cat\ndog\n")
    return root


def test_a_folder_becomes_one_file(pets: Path, tiny_head: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = pets.parent / "new" / "pets.emat"
    assert run("fit", pets, "-o", out, "--model", tiny_head) == 0
    printed = capsys.readouterr().out
    assert "cat" in printed
    assert "pets.emat" in printed.replace("\n", "")
    fitted = Segmenter.load(out)
    assert fitted.classes_ == ("cat", "dog")
    assert [example.name for example in fitted.examples_] == ["a", "b", "c"]


def test_results_number_the_classes_as_the_data_set_does(
    pets: Path, tiny_head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first photo shows the second class."""
    (pets / "masks" / "a.png").rename(pets / "masks" / "d.png")
    (pets / "images" / "a.jpg").rename(pets / "images" / "d.jpg")
    out = pets.parent / "pets.emat"
    assert run("fit", pets, "-o", out, "--model", tiny_head, "--json") == 0
    assert list(json.loads(capsys.readouterr().out)["classes"]) == ["cat", "dog"]
    fitted = Segmenter.load(out)
    assert fitted.examples_[0].classes == ("dog",)
    assert fitted.classes_ == ("cat", "dog")
    assert fitted.rename("cat", "tiger").remove(0).classes_ == ("tiger", "dog")


def test_classes_and_shots_limit_what_is_shown(pets: Path, tiny_head: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = pets.parent / "dogs.emat"
    assert run("fit", pets, "-o", out, "--model", tiny_head, "--classes", "dog", "--shots", "1", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer.pop("decisions")["classes"].keys() == {"dog"}
    assert answer == {
        "file": str(out),
        "examples": 1,
        "classes": {"dog": 1},
        "forecast": {"dog": asdict(Forecast(examples=1, iou=None, presence=None))},
        "size": 400,
    }


@pytest.mark.parametrize("format", ["coco", "labelme", "yolo"])
def test_other_formats_show_the_same(
    pets: Path, tiny_head: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written as another format with its photos beside it, the examples are the same."""
    from emat.datasets.layouts import open_dataset

    source, copy = open_dataset(pets), pets.parent / format
    with open_writer(format, copy, source.classes) as writer:
        for name in source.names:
            photo = pets / "images" / f"{name}.jpg"
            target = copy / writer.photo_path(f"{name}.jpg")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(photo.read_bytes())
            writer.write(f"{name}.jpg", source.mask(name), source.image(name), target)
    out = pets.parent / f"{format}.emat"
    where = next(copy.rglob("*.json")) if format == "coco" else copy
    assert run("fit", where, "-o", out, "--model", tiny_head, "--json") == 0
    assert json.loads(capsys.readouterr().out)["classes"] == {"cat": 2, "dog": 2}


def test_one_photo_with_its_masks(pets: Path, tiny_head: Path) -> None:
    out = pets.parent / "one.emat"
    photo, mask = pets / "images" / "a.jpg", pets / "masks" / "a.png"
    assert run("fit", photo, "--mask", f"cat={mask}", "--mask", "dog=1,2,30,20", "-o", out, "--model", tiny_head) == 0
    assert Segmenter.load(out).classes_ == ("cat", "dog")


def test_strokes_on_one_photo(pets: Path) -> None:
    photo, out = pets / "images" / "a.jpg", pets.parent / "one.emat"
    masks = ("--mask", "cat=2,2,6,6", "--mask", "background=30,20,36,26")
    assert run("fit", photo, *masks, "--sparse", "-o", out, "--size", "64", "--model", "prototype") == 0
    fitted = Segmenter.load(out)
    assert fitted.classes_ == ("cat",)
    assert fitted.examples_[0].working is not None
    assert fitted.examples_[0].working.sparse


def test_the_forecast_is_printed_with_what_to_do(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = pets.parent / "pets.emat"
    assert run("fit", pets, "-o", out, "--size", "auto", "--model", "prototype", "--shots", "1") == 0
    said = capsys.readouterr().out
    for part in ("expected IoU", "expected presence", "add a second one"):
        assert part in " ".join(said.split())
    assert "Tiles" not in said, "the photos are too small for tiles"


@pytest.mark.parametrize(
    ("change", "arguments", "code"),
    [
        (lambda root: None, ("--sparse",), "missing-option"),
        (lambda root: None, ("--mask", "cat=a.png"), "conflicting-options"),
        (lambda root: None, ("--classes", "cow"), "unknown-class"),
        (
            lambda root: (root / "classes.txt").write_text("cat\ndog\ncow\n"),
            ("--classes", "cat,cow"),
            "no-examples",
        ),
        (lambda root: (root / "classes.txt").write_text("cat\nCat\n"), (), "given-twice"),
        (lambda root: (root / "images" / "a.jpg").write_bytes(b""), (), "empty-file"),
        (
            lambda root: Image.new("L", (8, 8), 1).save(root / "masks" / "a.png"),
            (),
            "mask-size",
        ),
        (lambda root: [path.unlink() for path in (root / "masks").iterdir()], (), "unknown-layout"),
        (lambda root: (root / "classes.txt").unlink(), (), "no-classes"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_code_2(
    pets: Path,
    tiny_head: Path,
    change: Callable[[Path], object],
    arguments: tuple[str, ...],
    code: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(pets)
    out = pets.parent / "pets.emat"
    assert run("fit", pets, "-o", out, "--model", tiny_head, *arguments) == code
    said = capsys.readouterr().err
    assert said.startswith("emat: ")
    assert said.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--classes", "cow"), "conflicting-options"),
        (("--shots", "2"), "conflicting-options"),
        (("--sparse", "--no-learn"), "needs-learning"),
    ],
)
def test_what_does_not_fit_a_single_photo_is_refused(pets: Path, arguments: tuple[str, ...], code: str) -> None:
    photo, out = pets / "images" / "a.jpg", pets.parent / "cat.emat"
    words = ("fit", photo, "--mask", "cat=5,5,20,20", "-o", out, "--model", "prototype", *arguments)
    assert run(*words) == code
    assert not out.exists()


def test_unreadable_json_is_named(pets: Path, tiny_head: Path) -> None:
    bad = pets / "instances.json"
    bad.write_text('{"images": [')
    assert run("fit", bad, "-o", pets / "x.emat", "--model", tiny_head) == "bad-syntax"


def test_an_unwritable_output_is_refused_before_the_work(pets: Path, tiny_head: Path) -> None:
    (pets / "file").touch()
    assert run("fit", pets, "-o", pets / "file" / "x.emat", "--model", tiny_head) == "cannot-write"
    assert run("fit", pets, "-o", pets, "--model", tiny_head) == "cannot-write"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [((), "missing-option"), (("--mask", "cat"), "unclear-option")],
)
def test_a_photo_without_a_readable_mask_is_refused(
    pets: Path, tiny_head: Path, arguments: tuple[str, ...], code: str
) -> None:
    photo = pets / "images" / "a.jpg"
    assert run("fit", photo, "-o", pets / "x.emat", "--model", tiny_head, *arguments) == code


def test_a_photo_is_never_overwritten_by_what_is_learnt_from_it(tmp_path: Path) -> None:
    photo = tmp_path / "f.png"
    Image.new("RGB", (20, 20)).save(photo)
    before = photo.read_bytes()
    assert run("fit", photo, "--mask", "cat=1,1,9,9", "-o", photo) == "wrong-suffix"
    named = photo.rename(tmp_path / "photo.emat")
    assert run("fit", named, "--mask", "cat=1,1,9,9", "-o", named) == "output-is-input"
    assert named.read_bytes() == before
