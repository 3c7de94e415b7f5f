"""`emat convert` as a user runs it."""

import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from emat.cli import convert
from emat.datasets.layouts import open_dataset
from emat.formats.labelme import read_labelme
from emat.images import VOID, write_indexed_png
from emat.outputs import RECORD
from tests.cli.command import run

FORMATS = ("coco", "labelme", "yolo", "png")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two photos of one name in different folders, with a hole and void."""
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    root = tmp_path / "pets"
    for name, index in (("x/a", 1), ("y/a", 2)):
        photo = root / "images" / f"{name}.png"
        photo.parent.mkdir(parents=True)
        Image.new("RGB", (12, 9), (index, 2, 3)).save(photo)
        label_map = np.zeros((9, 12), np.uint8)
        label_map[1:8, 1:8] = index
        label_map[3:5, 3:5] = 0
        label_map[:, 11] = VOID
        write_indexed_png(root / "masks" / f"{name}.png", label_map)
    (root / "classes.txt").write_text("cat\ndog\n")
    return root


def masks(root: Path) -> dict[str, list[list[int]]]:
    """Every mask by its photo's folder, void as background, since YOLO has none."""
    dataset = open_dataset(root)
    assert dataset.classes == ("cat", "dog")
    found = {}
    for name in dataset.names:
        mask = dataset.mask(name)
        found[next(part for part in name.split("/") if part in "xy")] = np.where(mask == VOID, 0, mask).tolist()
    return found


@pytest.mark.parametrize("second", FORMATS)
@pytest.mark.parametrize("first", FORMATS)
def test_masks_survive_from_any_format_to_any_other(folder: Path, first: str, second: str) -> None:
    one, two = folder.parent / "one", folder.parent / "two"
    assert run("convert", folder, "-o", one, "--to", first, "--tolerance", 0, "--copy-photos") == 0
    assert run("convert", one, "-o", two, "--to", second, "--tolerance", 0, "--copy-photos") == 0
    assert masks(two) == masks(folder)
    copied = open_dataset(two)
    colours = {tuple(copied.image(name)[0, 0].tolist()) for name in copied.names}
    assert colours == {(1, 2, 3), (2, 2, 3)}


def test_photos_are_left_where_they_are_unless_copied(folder: Path) -> None:
    out = folder.parent / "out"
    assert run("convert", folder, "-o", out, "--to", "labelme") == 0
    assert not list(out.rglob("*.png"))
    drawing = read_labelme(out / "x" / "a.json")
    assert (out / "x" / drawing.photo).resolve() == folder / "images" / "x" / "a.png"


def test_labelme_files_with_void_need_no_list_of_labels(folder: Path) -> None:
    one, two = folder.parent / "one", folder.parent / "two"
    assert run("convert", folder, "-o", one, "--to", "labelme", "--tolerance", 0, "--copy-photos") == 0
    (one / "labels.txt").unlink()
    assert run("convert", one, "-o", two, "--to", "png") == 0
    before, after = open_dataset(folder), open_dataset(two)
    assert after.classes == ("cat", "dog")
    assert all(np.array_equal(before.mask(name), after.mask(name)) for name in before.names)


def test_what_cannot_be_read_is_reported_and_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "masks" / "x" / "a.png").write_bytes(b"no image")
    out = folder.parent / "out"
    assert run("convert", folder, "-o", out, "--to", "coco", "--json") == 3
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"out": str(out), "format": "coco", "photos": 1, "left_out": 1}
    assert "left out x/a" in printed.err
    assert [photo["file_name"] for photo in json.loads((out / "annotations.json").read_text())["images"]] == ["y/a.png"]


def test_a_missing_photo_and_a_mask_of_another_size_are_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "images" / "x" / "a.png").unlink()
    Image.new("RGB", (9, 12)).save(folder / "images" / "y" / "a.png")
    assert run("convert", folder, "-o", folder.parent / "out", "--to", "png") == 3
    printed = " ".join(capsys.readouterr().err.split())
    assert "has no photo named x/a" in printed
    assert "its mask has another size than its photo" in printed


def test_masks_alone_in_a_zip_are_converted_without_photos(folder: Path) -> None:
    path = folder.parent / "masks.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(folder / "masks" / "x" / "a.png", "SegmentationClass/a.png")
    assert run("convert", path, "-o", folder.parent / "out", "--to", "coco") == 0
    content = json.loads((folder.parent / "out" / "annotations.json").read_text())
    assert [photo["file_name"] for photo in content["images"]] == ["a.jpg"]
    assert run("convert", path, "-o", folder.parent / "other", "--to", "coco", "--copy-photos") == "no-photos"


def test_photos_in_a_zip_are_copied_byte_by_byte(folder: Path) -> None:
    path = folder.parent / "pets.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            archive.write(file, file.relative_to(folder))
    out = folder.parent / "out"
    assert run("convert", path, "-o", out, "--to", "coco", "--copy-photos") == 0
    content = json.loads((out / "annotations.json").read_text())
    assert [photo["file_name"] for photo in content["images"]] == ["x/a.png", "y/a.png"]
    assert (out / "images/x/a.png").read_bytes() == (folder / "images/x/a.png").read_bytes()


def test_a_mask_of_the_photos_own_name_is_never_taken_for_the_photo(folder: Path) -> None:
    voc = folder.parent / "voc"
    for kind, folder_name in (("images", "JPEGImages"), ("masks", "SegmentationClass")):
        (voc / folder_name).mkdir(parents=True)
        (voc / folder_name / "a.png").write_bytes((folder / kind / "x" / "a.png").read_bytes())
    out = folder.parent / "out"
    assert run("convert", voc, "-o", out, "--to", "coco", "--copy-photos") == 0
    assert (out / "images" / "a.png").read_bytes() == (folder / "images" / "x" / "a.png").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--to", "cooc"], "unknown-choice"),
        (["--to", "coco", "--from", "cooc"], "unknown-choice"),
        (["--to", "yolo", "--shapes", "masks"], "unknown-choice"),
        (["--to", "coco", "--tolerance", "-1"], "bad-number"),
    ],
)
def test_bad_input_is_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: str
) -> None:
    assert run("convert", folder, "-o", folder.parent / "out", *arguments) == code
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1


def test_the_data_set_itself_is_never_written_into(folder: Path) -> None:
    assert run("convert", folder, "-o", folder, "--to", "png") == "output-is-input"


def test_the_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("convert", "--help") == 0
    assert "Example: emat convert" in capsys.readouterr().out


def test_several_data_sets_become_one_with_common_classes(folder: Path) -> None:
    other = folder.parent / "zoo"
    (other / "images").mkdir(parents=True)
    Image.new("RGB", (4, 3)).save(other / "images" / "b.png")
    write_indexed_png(other / "masks" / "b.png", np.array([[1, 2, 255, 0]] * 3, np.uint8))
    (other / "classes.txt").write_text("elk\ncat\n")
    out = folder.parent / "both"
    assert run("convert", folder, other, "-o", out, "--to", "png,coco", "--copy-photos") == 0
    written = open_dataset(out, "folder")
    assert written.classes == ("cat", "dog", "elk")
    assert sorted(written.names) == ["pets/x/a", "pets/y/a", "zoo/b"]
    assert written.mask("zoo/b")[0].tolist() == [3, 1, 255, 0]
    assert np.array_equal(written.mask("pets/y/a"), open_dataset(folder).mask("y/a"))
    assert len(json.loads((out / "annotations.json").read_text())["images"]) == 3


def test_a_result_inside_of_the_data_set_and_a_data_set_twice_are_refused(folder: Path) -> None:
    assert run("convert", folder, "-o", folder / "coco", "--to", "coco") == "output-is-input"
    assert not (folder / "coco").exists()
    assert run("convert", folder, folder, "-o", folder.parent / "out", "--to", "coco") == "given-twice"


@pytest.mark.parametrize("change", ["masks", "photos", "copy", "copies"])
def test_a_resumed_run_converts_again_what_has_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    def interrupted(items: Iterable[Any], total: int, what: str) -> Iterator[Any]:
        yield from list(items)[:1]
        raise KeyboardInterrupt

    out, options = folder.parent / "out", ["--to", "coco,png"] + ["--copy-photos"] * (change != "copy")
    with monkeypatch.context() as patch:
        patch.setattr(convert, "follow", interrupted)
        assert run("convert", folder, "-o", out, *options) == 130
    for name in ("x", "y"):
        if change == "masks":
            mask = folder / "masks" / name / "a.png"
            write_indexed_png(mask, np.asarray(Image.open(mask))[::-1, ::-1])
        elif change == "photos":
            photo = folder / "images" / name / "a.png"
            Image.fromarray(np.asarray(Image.open(photo))[::-1]).save(photo)
        elif change == "copies" and (out / "images" / name / "a.png").is_file():
            (out / "images" / name / "a.png").unlink()
    options = ["--to", "coco,png", "--copy-photos"]
    assert run("convert", folder, "-o", out, *options) == 0
    assert run("convert", folder, "-o", folder.parent / "afresh", *options) == 0
    found, expected = (
        {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (out, folder.parent / "afresh")
    )
    assert found.pop(RECORD)
    assert expected.pop(RECORD)
    assert found == expected


def test_a_source_is_never_overwritten(folder: Path) -> None:
    source = folder.parent / "d"
    assert run("convert", folder, "-o", source, "--to", "coco", "--copy-photos") == 0
    before = (source / "annotations.json").read_bytes()
    for options in (["--to", "coco"], ["--to", "coco", "--shapes", "polygons"]):
        assert run("convert", source / "annotations.json", "-o", source, *options) == "output-is-input"
    assert run("convert", source / "annotations.json", "-o", source, "--to", "png", "--copy-photos") == 0
    assert (source / "annotations.json").read_bytes() == before
