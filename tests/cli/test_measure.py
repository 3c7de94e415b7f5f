"""`emat measure` as a user runs it."""

import csv
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from emat import Example, Segmenter
from emat.images import Reading
from emat.images.stacks import Plane, open_stack
from emat.measure import run as measure_run
from emat.measure.mask_files import MaskFiles
from tests.cli.command import run
from tests.measure.rois import read_rois
from tests.measure.shapes import disc

RED, GREY = (220, 30, 30), (90, 90, 90)


@pytest.fixture(scope="module")
def fitted(tiny_head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A segmenter that has learnt from its examples to find red."""
    folder = tmp_path_factory.mktemp("fitted")
    examples = []
    for number, (left, width) in enumerate([(10, 30), (30, 24), (50, 40), (20, 20)]):
        photo, mask = red_box(left, width)
        examples.append(Example(photo, {"red": mask}))
        Image.fromarray(photo).save(folder / f"{number}.png")
    Segmenter.load(tiny_head, learn=True, refine="guided").fit(examples).save(folder / "red.emat")
    return folder / "red.emat"


def red_box(left: int, width: int, size: tuple[int, int] = (80, 120)) -> tuple[Any, Any]:
    photo = np.empty((*size, 3), np.uint8)
    photo[...] = GREY
    mask = np.zeros(size, bool)
    mask[20:60, left : left + width] = True
    photo[mask] = RED
    noise = np.random.default_rng(left).normal(0, 3, photo.shape)
    return (photo + noise).clip(0, 255).astype(np.uint8), mask


@pytest.fixture
def album(tmp_path: Path) -> Path:
    folder = tmp_path / "album"
    (folder / "deep").mkdir(parents=True)
    for name, left, width in (("a.png", 15, 30), ("deep/b.png", 40, 50), ("empty.png", 0, 0)):
        Image.fromarray(red_box(left, width)[0]).save(folder / name)
    return folder


@pytest.fixture
def masked(tmp_path: Path) -> Path:
    """A folder of photos, and one of label maps with a leaf, a lesion and a coin."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "classes.txt").write_text("leaf\nlesion\ncoin\n")
    for name, coin in (("a", 40), ("b", 20), ("none", 0)):
        label_map = np.zeros((500, 700), np.uint8)
        label_map[:, :500][disc(150)] = 1
        label_map[:, :500][disc(30)] = 2
        label_map[:, 450:][np.roll(disc(coin), -100, axis=1)[:, :250]] = 3
        Image.fromarray(label_map).save(tmp_path / "masks" / f"{name}.png")
        Image.fromarray(np.repeat(label_map[..., None] * 80, 3, axis=2)).save(tmp_path / "photos" / f"{name}.jpg")
    return tmp_path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_photos_become_tables_a_dictionary_and_a_report(
    fitted: Path, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run("measure", fitted, album, "-o", out, "--pixel-size", "0.5mm") == 0
    assert "3 of 3 photos measured" in capsys.readouterr().out
    photos = {row["photo"]: row for row in rows_of(out / "photos.csv")}
    assert list(photos) == ["a.png", "deep/b.png", "empty.png"]
    assert float(photos["a.png"]["area_mm2"]) == pytest.approx(0.25 * 30 * 40, rel=0.1)
    assert float(photos["deep/b.png"]["area_px"]) == pytest.approx(50 * 40, rel=0.1)
    assert (photos["empty.png"]["count"], photos["empty.png"]["area_px"]) == ("0", "0"), "zeros, not a missing row"
    (first, *_) = rows_of(out / "objects.csv")
    assert (first["class"], first["source"], first["unit_source"]) == ("red", "red.emat", "given by --pixel-size")
    assert first["reliable"] == "yes"
    assert 0 < float(first["score"]) <= 1
    explained = {(row["table"], row["column"]) for row in rows_of(out / "columns.csv")}
    assert {("objects", name) for name in first} <= explained
    page = (out / "report.html").read_text()
    assert page.count("data:image/jpeg") == 3
    assert "expected IoU" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert not list(out.glob(".emat-journal*"))


def test_the_tables_are_those_of_python(fitted: Path, album: Path, tmp_path: Path) -> None:
    assert run("measure", fitted, album / "a.png", "-o", tmp_path / "out", "--min-area", "1px") == 0
    segmenter = Segmenter.load(fitted)
    expected = segmenter.predict(album / "a.png").measure(name="a.png").table("objects")
    rows = rows_of(tmp_path / "out" / "objects.csv")
    assert len(rows) == len(expected) > 0
    for row, other in zip(rows, expected, strict=True):
        for name in ("area_px", "perimeter_px", "circularity", "intensity_mean_red", "score"):
            assert float(row[name]) == pytest.approx(other[name], rel=1e-5)


def test_every_output_has_the_same_objects(masked: Path) -> None:
    formats = "csv,parquet,labels,rois,geojson,coco,png"
    words = ("--masks", masked / "masks", masked / "photos" / "a.jpg", "-o", masked / "out", "--min-area", "4000px")
    assert run("measure", *words, "--format", formats) == 0
    out = masked / "out"
    rows = rows_of(out / "objects.csv")
    assert [row["class"] for row in rows] == ["leaf", "coin"], "the lesion is too small"
    image = tifffile.imread(out / "labels" / "a.ome.tif")
    assert [int((image == int(row["id"])).sum()) for row in rows] == [int(row["area_px"]) for row in rows]
    assert np.array_equal(np.asarray(Image.open(out / "masks" / "a.png")) > 0, image > 0)
    rois = list(read_rois(out / "rois" / "a.zip", image.shape).values())
    assert np.array_equal(np.sum(rois, axis=0), image > 0)
    assert len(json.loads((out / "geojson" / "a.geojson").read_text())["features"]) == 2
    annotations = json.loads((out / "annotations.json").read_text())["annotations"]
    assert [each["area"] for each in annotations] == [int(row["area_px"]) for row in rows]


def test_a_coin_sets_the_scale_of_each_photo_and_its_absence_is_told(
    masked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--masks", masked / "masks", masked / "photos", "-o", masked / "out", "--touching", "together")
    assert run("measure", *words, "--scale", "coin=20mm", "--within", "lesion=leaf") == 3
    assert "none.jpg shows no coin" in capsys.readouterr().err
    rows = {(row["photo"], row["class"]): row for row in rows_of(masked / "out" / "photos.csv")}
    assert len(rows) == 6
    for photo, radius in (("a.jpg", 40), ("b.jpg", 20)):
        side = 20 / (2 * radius)
        assert float(rows[photo, "leaf"]["area_mm2"]) == pytest.approx(side**2 * np.pi * (150**2 - 30**2), rel=0.03)
        assert float(rows[photo, "lesion"]["share_within"]) == pytest.approx(100 * 30**2 / 150**2, rel=0.01)
        assert rows[photo, "leaf"]["unit_source"] == "coin of 20 mm"
    assert "none.jpg" in (masked / "out" / "report.html").read_text()


def test_a_region_that_is_no_class_is_found_by_otsu_or_in_a_folder(masked: Path) -> None:
    (masked / "leaves").mkdir()
    Image.fromarray((np.pad(disc(150), ((0, 0), (0, 200))) * 255).astype(np.uint8)).save(masked / "leaves" / "a.png")
    only = masked / "lesions"
    only.mkdir()
    (only / "classes.txt").write_text("lesion\n")
    lesion = np.pad(disc(30), ((0, 0), (0, 200)))
    Image.fromarray(lesion.astype(np.uint8)).save(only / "a.png")
    for region in ("leaf=otsu", f"leaf={masked / 'leaves'}"):
        out = masked / f"out-{len(region)}"
        words = ("--masks", only, masked / "photos" / "a.jpg", "-o", out, "--within", "lesion=leaf")
        assert run("measure", *words, "--region", region) == 0
        rows = {row["class"]: row for row in rows_of(out / "photos.csv")}
        covered = 100 * 30**2 / (150**2 + (40**2 if region == "leaf=otsu" else 0))
        assert float(rows["lesion"]["share_within"]) == pytest.approx(covered, rel=0.02)
        assert rows["leaf"]["count"] in ("1", "2")


def test_verdicts_are_told_and_strict_fails(masked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--masks", masked / "masks", masked / "photos", "-o", masked / "out", "--accept", "coin.count == 1")
    assert run("measure", *words) == 0
    assert "2 of 3 photos are OK, 1 NOT OK" in capsys.readouterr().out
    assert {row["photo"]: row["verdict"] for row in rows_of(masked / "out" / "photos.csv")} == {
        "a.jpg": "OK",
        "b.jpg": "OK",
        "none.jpg": "NOT OK",
    }
    assert {row["not_met"] for row in rows_of(masked / "out" / "photos.csv")} == {"", "coin.count == 1"}
    assert "not met: coin.count == 1" in (masked / "out" / "report.html").read_text()
    assert run("measure", *words, "--strict", "--json") == 1
    assert json.loads(capsys.readouterr().out)["not_ok"] == ["none.jpg"]
    (masked / "photos" / "broken.jpg").write_bytes(b"no photo")
    assert run("measure", *words, "--strict") == 1, "a photo that is NOT OK is not hidden by one that was left out"
    assert run("measure", *words) == 3


def test_a_verdict_tells_how_many_false_oks_to_expect(
    fitted: Path, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("measure", fitted, album, "-o", tmp_path / "out")
    assert run(*words, "--accept", "red.area <= 100px") == 0
    printed = capsys.readouterr().out
    assert "1 of 3 photos are OK" in printed
    assert "Of 4 examples that are NOT OK, 0 were called OK" in printed
    assert "4 examples that are NOT OK" in (tmp_path / "out" / "report.html").read_text()


def test_a_verdict_of_which_nothing_is_known_is_refused(tiny_head: Path, album: Path, tmp_path: Path) -> None:
    photo, mask = red_box(10, 30)
    Segmenter.load(tiny_head, learn=True, refine="guided").fit([Example(photo, {"red": mask})]).save(
        tmp_path / "one.emat"
    )
    words = ("measure", tmp_path / "one.emat", album, "-o", tmp_path / "out")
    assert run(*words, "--accept", "red.area == 0") == "too-few-examples"
    assert run(*words) == 0
    assert {row["reliable"] for row in rows_of(tmp_path / "out" / "photos.csv")} == {"not known"}


def test_sixteen_bit_photos_are_measured_by_their_own_values(tmp_path: Path) -> None:
    values = np.full((60, 60), 1000, np.uint16)
    values[10:30, 10:30] = 40000
    for name in ("photos", "masks"):
        (tmp_path / name).mkdir()
    tifffile.imwrite(tmp_path / "photos" / "a.tif", values, imagej=True, resolution=(2, 2), metadata={"unit": "um"})
    Image.fromarray((values > 2000).astype(np.uint8)).save(tmp_path / "masks" / "a.png")
    assert run("measure", "--masks", tmp_path / "masks", tmp_path / "photos", "-o", tmp_path / "out") == 0
    (row,) = rows_of(tmp_path / "out" / "objects.csv")
    assert (row["class"], row["intensity_mean_grey"], row["intensity_sum_grey"]) == ("object", "40000", "16000000")
    assert (row["area_um2"], row["unit_source"]) == ("100", "ImageJ tags")


def test_masks_whose_meaning_is_not_clear_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("photos", "masks"):
        (tmp_path / name).mkdir()
    cells = np.zeros((60, 60), np.uint16)
    cells[5:15, 5:15], cells[5:15, 15:25], cells[40:50, 40:50] = 1, 2, 3
    Image.new("RGB", (60, 60)).save(tmp_path / "photos" / "a.png")
    tifffile.imwrite(tmp_path / "masks" / "a_cp_masks.tif", cells)
    words = ("measure", "--masks", tmp_path / "masks", tmp_path / "photos", "-o", tmp_path / "out")
    assert run(*words) == 3
    assert "--mask-values classes or --mask-values objects" in capsys.readouterr().err
    assert run(*words, "--mask-values", "objects") == 0
    assert [row["area_px"] for row in rows_of(tmp_path / "out" / "objects.csv")] == ["100"] * 3
    tifffile.imwrite(tmp_path / "masks" / "a_cp_masks.tif", cells.astype(np.int32) - 1)
    assert run(*words, "--mask-values", "objects") == 3
    assert "the value -1" in capsys.readouterr().err
    for ending in ("png", "tif"):
        Image.fromarray(cells).save(tmp_path / "masks" / f"a.{ending}")
    assert run(*words, "--mask-values", "objects") == 3
    assert "a.png and" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--masks",), ("--region",)])
@pytest.mark.parametrize("out", ["masks", "masks/out"])
def test_results_are_not_written_among_the_masks_that_are_read(masked: Path, out: str, words: tuple[str, ...]) -> None:
    shutil.copytree(masked / "masks", masked / "other")
    before = sorted(masked.rglob("*"))
    given = ["--masks", masked / ("masks" if words == ("--masks",) else "other")]
    if words == ("--region",):
        given += ["--region", f"soil={masked / 'masks'}"]
    assert run("measure", *given, masked / "photos", "-o", masked / out) == "output-is-input"
    assert sorted(masked.rglob("*")) == before


def test_coco_files_are_measured_too(masked: Path) -> None:
    words = ("--masks", masked / "masks", masked / "photos" / "a.jpg")
    assert run("measure", *words, "-o", masked / "out", "--format", "coco", "--touching", "together") == 0
    again = masked / "again"
    coco = masked / "out" / "annotations.json"
    assert MaskFiles(coco).classes == ("leaf", "lesion", "coin")
    assert run("measure", "--masks", coco, masked / "photos" / "a.jpg", "-o", again) == 0
    first, second = (rows_of(folder / "objects.csv") for folder in (masked / "out", again))
    assert [row["area_px"] for row in first] == [row["area_px"] for row in second]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--within", "lesion=stem"), "unknown-class"),
        (("--scale", "euro=2cm"), "unknown-class"),
        (("--scale", "coin"), "unclear-option"),
        (("--scale", "coin=2cm", "--pixel-size", "1mm"), "conflicting-options"),
        (("--properties", "sizes"), "unknown-choice"),
        (("--min-area", "20"), "unclear-option"),
        (("--border", "cut"), "unknown-choice"),
        (("--touching", "apart"), "unknown-choice"),
        (("--accept", "coin == 0"), "unknown-class"),
        (("--strict",), "missing-option"),
        (("--format", "excel"), "unknown-choice"),
        (("--region", "leaf=here"), "wrong-file-kind"),
    ],
)
def test_what_cannot_be_is_refused_with_one_sentence(
    masked: Path, words: tuple[str, ...], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = masked / "new"
    assert run("measure", "--masks", masked / "masks", masked / "photos", "-o", out, *words) == code
    printed = capsys.readouterr().err
    assert len(printed.strip().splitlines()) == 1
    assert not out.exists(), "nothing is half-written"


def test_a_run_needs_a_fitted_file_or_masks(album: Path, tmp_path: Path) -> None:
    assert run("measure", album, "-o", tmp_path / "out") == "missing-option"
    assert run("measure", album, album, "-o", tmp_path / "out") == "wrong-file-kind"


def test_a_class_with_a_poor_forecast_is_marked_everywhere(
    tiny_head: Path, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    examples = []
    for _ in range(4):  # noise that nothing tells from the noise around it
        mask = np.zeros((60, 60), bool)
        top, left = random.integers(0, 40, 2)
        mask[top : top + 8, left : left + 8] = True
        examples.append(Example(random.integers(0, 255, (60, 60, 3), np.uint8), {"ghost": mask}))
    segmenter = Segmenter.load(tiny_head, learn=True, refine="guided").fit(examples)
    assert (segmenter.forecast_["ghost"].iou or 0) < 0.3
    segmenter.save(tmp_path / "ghost.emat")
    assert run("measure", tmp_path / "ghost.emat", album, "-o", tmp_path / "out", "--threshold-presence", 0) == 0
    assert "ghost: " in (printed := capsys.readouterr().out)
    assert "not reliable" in printed
    for table in ("photos", "objects"):
        assert {row["reliable"] for row in rows_of(tmp_path / "out" / f"{table}.csv")} <= {"not reliable"}
    assert "Not reliable:" in (tmp_path / "out" / "report.html").read_text()


def write_stack(path: Path, axes: str, shape: tuple[int, ...]) -> Any:
    """A stack whose first channel has a box, and whose second one is brighter in every plane."""
    values = np.zeros(shape, np.uint16)
    values += np.arange(int(np.prod(shape[:-2])), dtype=np.uint16).reshape(*shape[:-2], 1, 1) * 100
    values[..., 10:30, 10:40] += 5000
    metadata = {"axes": axes, "Channel": {"Name": ["DAPI", "GFP"]}, "PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5}
    tifffile.imwrite(path, values, ome=True, metadata=metadata, photometric="minisblack")
    return values


def test_every_channel_of_a_microscope_is_measured(tmp_path: Path) -> None:
    for name in ("photos", "masks"):
        (tmp_path / name).mkdir()
    values = write_stack(tmp_path / "photos" / "a.ome.tif", "CYX", (2, 60, 60))
    mask = np.zeros((60, 60), np.uint8)
    mask[10:30, 10:40] = 255
    Image.fromarray(mask).save(tmp_path / "masks" / "a.ome.png")
    words = ("measure", "--masks", tmp_path / "masks", tmp_path / "photos", "-o", tmp_path / "out")
    assert run(*words, "--format", "labels,zarr") == 0
    (row,) = rows_of(tmp_path / "out" / "objects.csv")
    assert row["area_um2"] == "150"
    for index, channel in enumerate(("DAPI", "GFP")):
        assert float(row[f"intensity_mean_{channel}"]) == values[index, 10:30, 10:40].mean()
    stack = open_stack(tmp_path / "out" / "zarr" / "a.ome.zarr", Reading())
    assert stack is not None
    assert np.array_equal(stack.values(Plane(None, None), "none")[..., 0], mask // 255)
    assert stack.pixel == (0.5, 0.5, "micrometer")


def test_depth_and_time_are_columns_and_can_be_projected(fitted: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.ome.tif"
    write_stack(path, "TCZYX", (2, 2, 3, 60, 60))
    assert run("measure", fitted, path, "-o", tmp_path / "out", "--channels", "GFP,DAPI") == 0
    rows = rows_of(tmp_path / "out" / "photos.csv")
    assert [(row["photo"], row["z"], row["t"]) for row in rows] == [
        ("a.ome.tif", str(z), str(t)) for t in range(2) for z in range(3)
    ]
    assert (tmp_path / "out" / "report.html").read_text().count("data:image/jpeg") == 6
    assert run("measure", fitted, path, "-o", tmp_path / "max", "--project", "max") == 0
    rows = rows_of(tmp_path / "max" / "photos.csv")
    assert [row["t"] for row in rows] == ["0", "1"]
    assert "z" not in rows[0]


def test_the_first_photo_of_a_verdict_may_be_a_stack_or_missing(fitted: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_text("no photo")
    write_stack(tmp_path / "photos" / "b.ome.tif", "CYX", (2, 60, 60))
    words = ("measure", fitted, tmp_path / "photos", "-o", tmp_path / "out", "--accept", "red.area <= 4000um2")
    assert run(*words) == 3, "one photo cannot be read"
    assert {row["verdict"] for row in rows_of(tmp_path / "out" / "photos.csv")} <= {"OK", "NOT OK"}
    assert "false OKs to expect" in (tmp_path / "out" / "report.html").read_text()


def test_a_fitted_file_remembers_its_channels(tiny_head: Path, tmp_path: Path) -> None:
    write_stack(tmp_path / "a.ome.tif", "CYX", (2, 60, 60))
    mask = tmp_path / "mask.png"
    Image.fromarray(np.pad(np.ones((20, 30), np.uint8), ((10, 30), (10, 20)))).save(mask)
    words = ("fit", tmp_path / "a.ome.tif", "--mask", f"cell={mask}", "-o", tmp_path / "c.emat", "--model", tiny_head)
    assert run(*words, "--channels", "GFP", "--no-learn", "--refine", "none") == 0
    assert Segmenter.load(tmp_path / "c.emat").reading.channels == ("GFP",)


def test_objects_of_a_slide_are_joined_across_seams(fitted: Path, tmp_path: Path) -> None:
    photo, _ = red_box(60, 110, (160, 240))  # it reaches over two seams of windows that are 80 pixels wide
    photo[100:120, 20:40] = RED
    tifffile.imwrite(tmp_path / "slide.tif", photo, photometric="rgb")
    options = ("--tiles", "3", "--max-pixels", "10000", "--format")
    report, masks = tmp_path / "report", tmp_path / "masks"
    assert (
        run(
            "measure",
            fitted,
            tmp_path / "slide.tif",
            "-o",
            report,
            *options,
            "csv,geojson,rois,png",
            "--pixel-size",
            "2um",
        )
        == 0
    )
    assert run("predict", fitted, tmp_path / "slide.tif", "-o", masks, *options, "png", "--table", masks / "o.csv") == 0
    rows, plain = rows_of(report / "objects.csv"), rows_of(masks / "o.csv")
    assert [[row[key] for key in ("area_px", "left", "top", "width", "height")] for row in rows] == [
        [row[key] for key in ("area_px", "left", "top", "width", "height")] for row in plain
    ]
    label_map = np.asarray(Image.open(report / "masks" / "slide.png"))
    assert np.array_equal(label_map, np.asarray(Image.open(masks / "masks" / "slide.png")))
    large = max(rows, key=lambda row: float(row["area_px"]))
    assert int(large["width"]) > 100, "wider than a window"
    assert float(large["area_um2"]) == 4 * float(large["area_px"])
    (total,) = rows_of(report / "photos.csv")
    assert int(total["area_px"]) == sum(int(row["area_px"]) for row in rows) == int((label_map == 1).sum())
    features = json.loads((report / "geojson" / "slide.geojson").read_text())["features"]
    found = {name: mask.sum() for name, mask in read_rois(report / "rois" / "slide.zip", label_map.shape).items()}
    assert found == {f"red-{int(row['id']):04d}": int(row["area_px"]) for row in rows}
    assert [each["properties"]["measurements"]["area_um2"] for each in features] == [
        float(row["area_um2"]) for row in rows
    ]
    assert "data:image/jpeg" in (report / "report.html").read_text()
    refused = run("measure", fitted, tmp_path / "slide.tif", "-o", tmp_path / "no", *options, "labels")
    assert refused == 3, "there is no label image of a slide"


@pytest.mark.parametrize("channels", [2, 5])
def test_a_slide_with_channels_has_their_intensities(tiny_head: Path, tmp_path: Path, channels: int) -> None:
    names = ["DAPI", "GFP", "RFP", "Cy5", "Cy7"][:channels]
    random = np.random.default_rng(0)
    examples = []
    for number, (left, width) in enumerate([(10, 30), (30, 24), (50, 40), (60, 110)]):
        mask = red_box(left, width, (160, 240) if number == 3 else (80, 120))[1]
        values = random.integers(900, 1100, (channels, *mask.shape)).astype(np.uint16)
        values[:, mask] *= np.arange(20, 20 - channels, -1, dtype=np.uint16)[:, None]
        path = tmp_path / f"{number}.ome.tif"
        tifffile.imwrite(path, values, metadata={"axes": "CYX", "Channel": {"Name": names}}, photometric="minisblack")
        examples.append(Example(path, {"red": mask}))
    segmenter = Segmenter.load(tiny_head, learn=True, refine="guided").fit(examples[:3])
    segmenter.save(tmp_path / "cells.emat")
    words = ("measure", tmp_path / "cells.emat", path, "-o", tmp_path / "out", "--format", "csv,geojson,png")
    assert run(*words, "--tiles", "3", "--max-pixels", "10000") == 0
    (row,) = rows_of(tmp_path / "out" / "objects.csv")
    found = np.asarray(Image.open(tmp_path / "out" / "masks" / "3.ome.png")) > 0
    assert int(row["area_px"]) == found.sum() == pytest.approx(mask.sum(), rel=0.05)
    for name, channel in zip(names, values, strict=True):
        assert float(row[f"intensity_mean_{name}"]) == pytest.approx(channel[found].mean())
        assert float(row[f"intensity_sum_{name}"]) == pytest.approx(channel[found].astype(float).sum())
    measured = json.loads((tmp_path / "out" / "geojson" / "3.geojson").read_text())["features"][0]["properties"]
    assert measured["measurements"][f"intensity_max_{names[0]}"] == values[0][found].max()


CHANGES = ["masks", "region", "mask values", "tiles", "photos", "smaller", "gone"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_resumed_run_measures_anew_what_has_changed(
    fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    photos, masks, regions = (tmp_path / name for name in ("photos", "masks", "regions"))
    for folder in (photos, masks, regions):
        folder.mkdir()
    (masks / "classes.txt").write_text("red\n")
    for number in range(3):
        photo, mask = red_box(10 + 10 * number, 30)
        Image.fromarray(photo).save(photos / f"{number}.png")
        for folder in (masks, regions):
            Image.fromarray(mask.astype(np.uint8)).save(folder / f"{number}.png")
    source: list[object] = [fitted, photos] if change == "tiles" else ["--masks", masks, photos]
    options: list[object] = ["--format", "csv,labels", "--region", f"box={regions}", "--no-report"]

    def interrupted(items: Any, total: int, what: str) -> Any:
        for index, item in enumerate(items):
            if index == 2:
                raise KeyboardInterrupt
            yield item

    with monkeypatch.context() as patch:
        patch.setattr(measure_run, "follow", interrupted)
        assert run("measure", *source, "-o", tmp_path / "out", *options) == 130
    changed = {"masks": masks, "region": regions}.get(change)
    if changed is not None:  # of the same size, at the same time
        for path in changed.glob("*.png"):
            times, value = path.stat(), np.asarray(Image.open(path))
            Image.fromarray(np.roll(value, 20, axis=0)).save(path)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif change == "photos":
        Image.fromarray(red_box(50, 20)[0]).save(photos / "0.png")
    elif change == "gone":
        (tmp_path / "out" / "labels" / "0.ome.tif").unlink()
    else:
        options += {
            "mask values": ["--mask-values", "objects"], "tiles": ["--tiles", "2"], "smaller": ["--min-area", "5000px"]
        }[change]  # fmt: skip
    for out in ("out", "afresh"):
        assert run("measure", *source, "-o", tmp_path / out, *options) == 0
    for name in ("objects.csv", "photos.csv", "labels/0.ome.tif"):
        found, expected = ((tmp_path / out / name).read_bytes() for out in ("out", "afresh"))
        if name.endswith(".csv"):
            assert sorted(found.splitlines()) == sorted(expected.splitlines())
        else:
            assert np.array_equal(tifffile.imread(tmp_path / "out" / name), tifffile.imread(tmp_path / "afresh" / name))


def test_measuring_replaces_no_file_that_it_reads_or_did_not_write(
    masked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("measure", "--masks", masked / "masks", masked / "photos" / "a.jpg", "--no-report")
    (masked / "out" / "photos.csv").write_text("precious")
    assert run(*words, "-o", masked / "out") == "refuses-overwrite"
    assert "photos.csv is there already" in capsys.readouterr().err
    theirs = masked / "out" / "zarr" / "a.ome.zarr"
    theirs.mkdir(parents=True)
    (theirs / "0").write_text("precious")
    assert run(*words, "-o", masked / "out", "--format", "zarr") == "refuses-overwrite"
    assert (theirs / "0").read_text() == (masked / "out" / "photos.csv").read_text() == "precious"
    for _ in range(2):
        assert run(*words, "-o", masked / "new", "--format", "csv,zarr") == 0


def test_a_video_has_rows_of_every_frame_and_objects_keep_their_track(fitted: Path, tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="needs PyAV (the extra video)")
    clip = tmp_path / "clip.mp4"
    with av.open(str(clip), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 120, 80, "yuv420p", 8_000_000
        for left in (10, 16, 22):
            frame = av.VideoFrame.from_ndarray(red_box(left, 40)[0], format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    options = ("--min-area", "300px", "--touching", "together")
    assert run("measure", fitted, clip, "-o", tmp_path / "report", *options) == 0
    rows = rows_of(tmp_path / "report" / "objects.csv")
    assert [(row["photo"], row["t"], row["track"]) for row in rows] == [("clip.mp4", str(t), "1") for t in range(3)]
    lefts = [float(row["centroid_x"]) for row in rows]
    assert lefts[0] < lefts[1] < lefts[2]
    # The table of `emat predict` has the same object in every frame.
    assert run("predict", fitted, clip, "-o", tmp_path / "masks", "--table", tmp_path / "objects.csv") == 0
    large = [row for row in rows_of(tmp_path / "objects.csv") if int(row["area_px"]) >= 300]
    assert [row["frame"] for row in large] == ["0", "1", "2"]
    assert len({row["id"] for row in large}) == 1
    table = tmp_path / "objects.csv"
    assert run("predict", fitted, clip, "-o", tmp_path / "masks", "--table", table) == 0
    assert sorted(path.name for path in (tmp_path / "masks" / "masks").iterdir()) == [
        f"clip_t{t:05d}.png" for t in range(3)
    ]
    large = [row for row in rows_of(table) if int(row["area_px"]) > 300]
    assert [(row["frame"], row["id"]) for row in large] == [(str(t), large[0]["id"]) for t in range(3)]
