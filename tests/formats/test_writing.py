"""What all writers have in common: names, runs that are interrupted, and refusals; and the indexed PNG."""

import io
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.datasets.layouts import open_dataset
from emat.formats.class_names import VOC_CLASSES
from emat.formats.results import JOURNAL
from emat.formats.writing import WRITERS, WriteOptions, open_writer
from emat.images import VOC_PALETTE, read_mask
from tests.formats.label_maps import CLASSES, rich_label_map
from tests.raises import raises_code

PHOTO = np.full((20, 30, 3), 90, np.uint8)
NAMES = ("x/a.jpg", "y/a.jpg", "b.png")


def files_in(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def write_all(format: str, out: Path, run: str = "") -> None:
    with open_writer(format, out, CLASSES, run=run) as writer:
        for name in NAMES:
            if name not in writer.done():
                writer.write(name, rich_label_map(), PHOTO)


@pytest.mark.parametrize("cut_off", ['{"name": "y/a.jpg", "pla', '{"name": "y/a.jpg", "place": "y/a.jpg"}'])
@pytest.mark.parametrize("format", WRITERS)
def test_an_interrupted_run_continues_and_ends_with_the_same_files(tmp_path: Path, format: str, cut_off: str) -> None:
    write_all(format, tmp_path / "whole")
    with suppress(KeyboardInterrupt), open_writer(format, tmp_path / "broken", CLASSES) as writer:
        writer.write(NAMES[0], rich_label_map(), PHOTO)
        raise KeyboardInterrupt
    with (tmp_path / "broken" / JOURNAL).open("a") as journal:
        journal.write(cut_off)  # a line without its end
    assert open_writer(format, tmp_path / "broken", CLASSES).done() == {NAMES[0]}
    write_all(format, tmp_path / "broken")
    assert files_in(tmp_path / "broken") == files_in(tmp_path / "whole")
    assert not any(Path(name).name.startswith(".") for name in files_in(tmp_path / "whole"))


@pytest.mark.parametrize("format", WRITERS)
def test_a_killed_process_leaves_whole_files_and_a_run_to_continue(tmp_path: Path, format: str) -> None:
    program = f"""
import os, sys
from pathlib import Path
import numpy as np
from emat.formats.writing import open_writer
writer = open_writer({format!r}, Path(sys.argv[1]), {CLASSES!r})
writer.write("x/a.jpg", np.ones((20, 30), np.uint8), np.zeros((20, 30, 3), np.uint8))
os._exit(9)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert open_writer(format, tmp_path, CLASSES).done() == {"x/a.jpg"}


@pytest.mark.parametrize("format", sorted(set(WRITERS) - {"coco"}))
def test_a_file_that_was_removed_is_not_done(tmp_path: Path, format: str) -> None:
    writer = open_writer(format, tmp_path, CLASSES)
    for name in NAMES:
        writer.write(name, rich_label_map(), PHOTO)
    writer.leave()
    (tmp_path / writer.result_path(NAMES[1])).unlink()
    assert open_writer(format, tmp_path, CLASSES).done() == {NAMES[0], NAMES[2]}


def test_other_runs_are_not_continued(tmp_path: Path) -> None:
    open_writer("png", tmp_path, CLASSES, run="one").write("a.jpg", rich_label_map())
    assert open_writer("png", tmp_path, CLASSES, run="one").done() == {"a.jpg"}
    assert open_writer("png", tmp_path, CLASSES, run="two").done() == set()
    open_writer("png", tmp_path, CLASSES).write("a.jpg", rich_label_map())
    assert open_writer("png", tmp_path, CLASSES[:2]).done() == set()


@pytest.mark.parametrize("format", WRITERS)
def test_of_a_photo_written_twice_the_second_time_counts(tmp_path: Path, format: str) -> None:
    for out, label_maps in (("once", [rich_label_map()]), ("twice", [np.zeros((20, 30), np.uint8), rich_label_map()])):
        with open_writer(format, tmp_path / out, CLASSES) as writer:
            for label_map in label_maps:
                writer.write("a.jpg", label_map, PHOTO)
    assert files_in(tmp_path / "twice") == files_in(tmp_path / "once")


def test_a_complete_run_is_not_continued_but_made_anew(tmp_path: Path) -> None:
    write_all("coco", tmp_path)
    assert open_writer("coco", tmp_path, CLASSES).done() == set()


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize(
    "name", ["../a.jpg", "/a.jpg", "x/../../a.jpg", "..\\a.jpg", "C:\\a.jpg", "", "x//a.jpg", ".."]
)
def test_no_name_leads_out_of_the_folder(tmp_path: Path, format: str, name: str) -> None:
    writer = open_writer(format, tmp_path / "out", CLASSES)
    with raises_code("path-leads-out"):
        writer.write(name, rich_label_map(), PHOTO)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("format", ["png", "labelme", "yolo", "overlay"])
def test_photos_that_differ_in_their_suffix_alone_are_refused(tmp_path: Path, format: str) -> None:
    writer = open_writer(format, tmp_path, CLASSES)
    writer.write("a.jpg", rich_label_map(), PHOTO)
    writer.write("a.jpg", rich_label_map(), PHOTO)  # the same photo once more is no other
    with raises_code("same-output-name", "a.jpg", "a.png"):
        writer.write("a.png", rich_label_map(), PHOTO)


@pytest.mark.parametrize(
    ("label_map", "code"),
    [
        (np.full((20, 30), 4, np.uint8), "unknown-class"),
        (np.zeros((20, 31), np.uint8), "mask-size"),
        (np.zeros((20, 30), np.float32), "mask-shape"),
        (np.zeros((20, 30, 1), np.uint8), "mask-shape"),
        (np.zeros((0, 30), np.uint8), "mask-shape"),
    ],
)
def test_label_maps_that_cannot_be_are_refused(tmp_path: Path, label_map: np.ndarray, code: str) -> None:
    with raises_code(code):
        open_writer("png", tmp_path, CLASSES).write("a.jpg", label_map, PHOTO)


@pytest.mark.parametrize(
    ("classes", "code"),
    [
        ([], "no-classes"),
        (["cat", "cat"], "given-twice"),
        (["void"], "reserved-class-name"),
        (["Background"], "reserved-class-name"),
        ([" cat"], "bad-class-name"),
        (["cat\ndog"], "bad-class-name"),
    ],
)
def test_class_names_that_cannot_be_written_are_refused(tmp_path: Path, classes: list[str], code: str) -> None:
    with raises_code(code):
        open_writer("png", tmp_path, classes)


def test_pictures_need_the_photo(tmp_path: Path) -> None:
    for format in ("overlay", "sheet"):
        with raises_code("no-such-photo"):
            open_writer(format, tmp_path / format, CLASSES).write("a.jpg", rich_label_map())


def test_unknown_formats_options_and_paths_are_named(tmp_path: Path) -> None:
    with raises_code("unknown-choice", "'jpeg'", "png, coco"):
        open_writer("jpeg", tmp_path, CLASSES)
    with raises_code("unknown-choice", "masks or polygons"):
        WriteOptions("circles")
    for tolerance in (-1.0, float("nan"), float("inf")):
        with raises_code("bad-number"):
            WriteOptions(tolerance=tolerance)
    with raises_code("not-a-folder"):
        open_writer("coco", tmp_path / "annotations.json", CLASSES)
    (tmp_path / "taken").write_text("")
    for out in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with raises_code("cannot-write|not-a-folder", "taken"):
            open_writer("png", out, CLASSES)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with raises_code("cannot-write"):
        open_writer("png", tmp_path / "out", CLASSES)


def test_indexed_and_coloured_masks_say_the_same() -> None:
    indices = np.array([[0, 1, 20], [15, 255, 7]], np.uint8)
    palette = Image.fromarray(indices)
    palette.putpalette(VOC_PALETTE.tobytes())
    for image in (palette, Image.fromarray(VOC_PALETTE[indices])):
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        assert np.array_equal(read_mask(buffer.getvalue()), indices)


def test_voc_has_its_twenty_classes_in_order() -> None:
    assert (len(VOC_CLASSES), VOC_CLASSES[0], VOC_CLASSES[14], VOC_CLASSES[19]) == (
        20,
        "aeroplane",
        "person",
        "tvmonitor",
    )


def test_pillow_reads_indices_and_vocs_colours_from_what_is_written(tmp_path: Path) -> None:
    with open_writer("png", tmp_path, CLASSES) as writer:
        writer.write("x/a.b.jpg", rich_label_map())
    with Image.open(tmp_path / "masks" / "x" / "a.b.png") as image:
        assert image.mode == "P"
        assert np.array_equal(np.asarray(image), rich_label_map())
        assert np.array_equal(np.asarray(image.convert("RGB")), VOC_PALETTE[rich_label_map()])


def test_the_written_folder_opens_as_a_data_set(tmp_path: Path) -> None:
    with open_writer("png", tmp_path, CLASSES) as writer:
        writer.write("x/a.jpg", rich_label_map())
        writer.write("y/a.jpg", np.zeros((2, 3), np.uint8))
    dataset = open_dataset(tmp_path)
    assert (dataset.kind, dataset.classes, dataset.names) == ("folder", CLASSES, ("x/a", "y/a"))
    assert np.array_equal(dataset.mask("x/a"), rich_label_map())


def test_more_classes_than_a_byte_holds_are_refused(tmp_path: Path) -> None:
    with raises_code("too-many-classes", "254", "255"):
        open_writer("png", tmp_path, [str(number) for number in range(255)])
