"""`emat predict` as a user runs it."""

import csv
import json
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from emat import Example, Segmenter
from emat.cli import predict
from emat.formats.writing import open_writer
from emat.outputs import claim_folder
from tests.cli.command import run


@pytest.fixture(scope="module")
def fitted(tiny_head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fitted") / "pets.emat"
    photo = np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)
    Segmenter.load(tiny_head).fit([Example(photo, {"cat": (5, 5, 30, 25), "dog": (20, 0, 40, 30)})]).save(path)
    return path


@pytest.fixture
def album(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    for name, size in (("a.jpg", (20, 30)), ("b.png", (64, 48)), ("deep/c.jpg", (33, 10))):
        path = tmp_path / "album" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (*size, 3), np.uint8)).save(path)
    return tmp_path / "album"


def _masks(out: Path) -> dict[str, bytes]:
    found = {path.relative_to(out).as_posix(): path for path in out.rglob("*.png")}
    return {name: np.asarray(Image.open(path)).tobytes() for name, path in found.items()}


def test_a_folder_of_photos_becomes_masks_at_their_own_size(fitted: Path, album: Path, tmp_path: Path) -> None:
    assert run("predict", fitted, album, "-o", tmp_path / "out") == 0
    for name, size in (("a", (30, 20)), ("b", (48, 64)), ("deep/c", (10, 33))):
        mask = Image.open(tmp_path / "out" / "masks" / f"{name}.png")
        assert (mask.mode, mask.size) == ("P", size)
    segmenter = Segmenter.load(fitted)
    expected = segmenter.predict(album / "b.png")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out" / "masks" / "b.png")), expected.label_map)
    with (tmp_path / "out" / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["photo"] for row in rows] == ["a.jpg", "b.png", "deep/c.jpg"]
    assert float(rows[1]["dog"]) == pytest.approx(expected.scores["dog"], abs=1e-4)


def test_the_verdict_on_a_photo_agrees_with_its_mask(
    fitted: Path, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run("predict", fitted, album, "-o", out, "--threshold-presence", "0", "--json") == 0
    counted = json.loads(capsys.readouterr().out)["present"]
    with (out / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    masks = [np.asarray(Image.open(out / "masks" / f"{row['photo'].rpartition('.')[0]}.png")) for row in rows]
    for label, name in enumerate(("cat", "dog"), start=1):
        drawn = [mask == label for mask in masks]
        assert [row[f"{name}: present"] for row in rows] == [str(int(mask.any())) for mask in drawn]
        assert [float(row[f"{name}: share of pixels"]) for row in rows] == pytest.approx(
            [mask.mean() for mask in drawn], abs=1e-4
        )
        assert all((int(row[f"{name}: regions"]) > 0) == mask.any() for row, mask in zip(rows, drawn, strict=True))
        assert counted[name] == sum(mask.any() for mask in drawn)
    assert run("predict", fitted, album / "a.jpg", "-o", out) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("a.jpg", "cat", "regions", "1 of 1 photos predicted"))


@pytest.mark.parametrize("format", ["png", "coco", "labelme", "yolo", "overlay", "sheet"])
def test_every_format_can_be_asked_for(fitted: Path, album: Path, tmp_path: Path, format: str) -> None:
    assert run("predict", fitted, album / "a.jpg", "-o", tmp_path / "out", "--format", format) == 0
    assert len([path for path in (tmp_path / "out").rglob("*") if path.is_file()]) >= 2


def test_regions_are_written_as_masks_or_as_polygons_of_a_given_tolerance(
    fitted: Path, album: Path, tmp_path: Path
) -> None:
    def predicted(*options: object) -> list[Any]:
        out = tmp_path / "-".join(map(str, options))
        half = ("--threshold-presence", 0, "--threshold-mask", level)
        assert run("predict", fitted, album / "b.png", "-o", out, "--format", "labelme", *half, *options) == 0
        return json.loads((out / "b.json").read_text())["shapes"]

    prediction = Segmenter.load(fitted).predict(album / "b.png")
    level = float(np.median([prediction.probability(name) for name in prediction.classes]))
    exact, loose = predicted("--tolerance", 0), predicted("--tolerance", 5)
    assert {shape["shape_type"] for shape in exact} == {"polygon"}
    assert sum(len(shape["points"]) for shape in loose) < sum(len(shape["points"]) for shape in exact)
    assert {shape["shape_type"] for shape in predicted("--shapes", "masks")} == {"mask"}


def test_results_are_the_same_one_by_one_and_together(fitted: Path, album: Path, tmp_path: Path) -> None:
    assert run("predict", fitted, album / "a.jpg", album / "b.png", "-o", tmp_path / "all") == 0
    for name in ("a.jpg", "b.png"):
        assert run("predict", fitted, album / name, "-o", tmp_path / "one") == 0
    assert _masks(tmp_path / "all") == _masks(tmp_path / "one")


def test_bad_photos_are_reported_and_skipped_with_code_3(
    fitted: Path, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (album / "empty.jpg").touch()
    (album / "cut.jpg").write_bytes((album / "a.jpg").read_bytes()[:300])
    (album / "text.png").write_text("not a photo")
    assert run("predict", fitted, album, album / "gone.jpg", "-o", tmp_path / "out", "--json") == 3
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert (summary["photos"], summary["predicted"]) == (7, 3)
    assert [Path(one["photo"]).name for one in summary["skipped"]] == ["cut.jpg", "empty.jpg", "text.png", "gone.jpg"]
    codes = ["damaged-file", "empty-file", "not-an-image", "no-such-file"]
    assert [one["code"] for one in summary["skipped"]] == codes
    sentences = [line for line in printed.err.splitlines() if line.startswith("emat: ")]  # a slow machine adds progress
    assert len(sentences) == 4, "one sentence each"
    assert set(_masks(tmp_path / "out")) == {"masks/a.png", "masks/b.png", "masks/deep/c.png"}


def test_an_interrupted_run_continues_where_it_stopped(
    fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    album, out = tmp_path / "many", tmp_path / "out"
    album.mkdir()
    random = np.random.default_rng(2)
    names = [f"{number}.png" for number in range(6)]
    for name in names:
        Image.fromarray(random.integers(0, 255, (40, 40, 3), np.uint8)).save(album / name)

    def interrupted(items: Iterable[Any], total: int, what: str) -> Iterator[Any]:
        for index, item in enumerate(items):
            if index == 3:
                signal.raise_signal(signal.SIGINT)  # what Ctrl-C does
            yield item

    with monkeypatch.context() as patch:
        patch.setattr(predict, "follow", interrupted)
        assert run("predict", fitted, album, "-o", out) == 130
    before = {path: path.stat().st_mtime_ns for path in out.rglob("masks/*.png")}
    assert sorted(path.stem for path in before) == ["0", "1", "2"]
    assert run("predict", fitted, album, "-o", out) == 0
    after = {path: path.stat().st_mtime_ns for path in out.rglob("masks/*.png")}
    assert len(after) == len(names)
    assert before.items() <= after.items(), "what was written stays as it is"
    with (out / "scores.csv").open() as file:
        assert sorted(row["photo"] for row in csv.DictReader(file)) == names


def _noise(folder: Path, seed: int, count: int = 3) -> Path:
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(seed)
    for number in range(count):
        Image.fromarray(random.integers(0, 255, (30, 30, 3), np.uint8)).save(folder / f"{number}.png")
    return folder


def _interrupted_after(count: int) -> Any:
    def follow(items: Iterable[Any], total: int, what: str) -> Iterator[Any]:
        for index, item in enumerate(items):
            if index == count:
                signal.raise_signal(signal.SIGINT)
            yield item

    return follow


@pytest.mark.parametrize(
    "change", ["other folder", "replaced in place", "other names", "fitted again", "max-pixels", "channels"]
)
def test_a_resumed_run_gives_no_result_of_another_photo_or_option(
    fitted: Path, tiny_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    album, out, fit = _noise(tmp_path / "a", 1), tmp_path / "out", tmp_path / "pets.emat"
    if change == "channels":
        for path in list(album.iterdir()):
            channels = np.asarray(Image.open(path)).transpose(2, 0, 1)
            tifffile.imwrite(path.with_suffix(".ome.tif"), channels, ome=True, metadata={"axes": "CYX"})
            path.unlink()
    fit.write_bytes(fitted.read_bytes())
    options = ["--threshold-presence", "0", "--threshold-mask", "0.3"]
    with monkeypatch.context() as patch:
        patch.setattr(predict, "follow", _interrupted_after(2))
        assert run("predict", fit, album, "-o", out, *options) == 130
    if change == "other folder":
        album = _noise(tmp_path / "b", 2)
    elif change == "replaced in place":
        times = (album / "0.png").stat()
        _noise(album, 2)
        os.utime(album / "0.png", ns=(times.st_atime_ns, times.st_mtime_ns))
    elif change == "other names":
        for path in list(album.iterdir()):
            path.rename(path.with_stem(f"new{path.stem}"))
    elif change == "fitted again":
        photo = np.random.default_rng(9).integers(0, 255, (30, 40, 3), np.uint8)
        Segmenter.load(tiny_head).fit([Example(photo, {"cat": (9, 9, 20, 20), "dog": (0, 0, 9, 30)})]).save(fit)
    elif change == "channels":
        options += ["--channels", "0"]
    else:
        options += ["--max-pixels", "100"]
    code = run("predict", fit, album, "-o", out, *options)
    assert run("predict", fit, album, "-o", tmp_path / "afresh", *options) == code
    assert (out / "scores.csv").read_bytes() == (tmp_path / "afresh" / "scores.csv").read_bytes()
    expected = _masks(tmp_path / "afresh")
    assert {name: content for name, content in _masks(out).items() if name in expected} == expected


def test_no_file_is_overwritten_that_is_read_or_that_emat_did_not_write(
    fitted: Path, album: Path, tmp_path: Path
) -> None:
    out, photo = tmp_path / "out", album / "b.png"
    before = photo.read_bytes()
    assert run("predict", fitted, photo, "-o", out, "--table", photo) == "wrong-suffix"
    (tmp_path / "mine.csv").write_text("a,b\n")
    assert run("predict", fitted, photo, "-o", out, "--table", tmp_path / "mine.csv") == "refuses-overwrite"
    assert not (out / "scores.csv").exists()
    (out / "masks").mkdir(parents=True, exist_ok=True)
    (out / "masks" / "b.png").write_bytes(before)
    assert run("predict", fitted, photo, "-o", out) == "refuses-overwrite"
    assert (out / "masks" / "b.png").read_bytes() == photo.read_bytes() == before
    assert run("predict", fitted, photo, "-o", out, "--overwrite") == 0
    assert run("predict", fitted, photo, "-o", out) == 0, "emat wrote it by now"
    (out / "masks" / "b.png").write_bytes(before)  # corrected by hand
    assert run("predict", fitted, photo, "-o", out) == "refuses-overwrite"


def test_thresholds_can_be_given(fitted: Path, album: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("predict", fitted, album, "-o", out, "--threshold-presence", "0", "--threshold-mask", "0") == 0
    assert all(0 not in mask for mask in _masks(out).values())
    assert run("predict", fitted, album, "-o", out, "--threshold-presence", "1") == 0
    assert all(not any(mask) for mask in _masks(out).values())


def test_what_another_segmenter_left_unfinished_is_not_continued(fitted: Path, album: Path, tmp_path: Path) -> None:
    out, foreign = tmp_path / "out", np.full((20, 30), 2, np.uint8)

    def interrupted() -> None:
        with open_writer("png", out, ["cat", "dog"], run="another segmenter") as writer:
            writer.write("a.jpg", foreign)
            raise KeyboardInterrupt

    claim_folder(out)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert run("predict", fitted, album, "-o", out, "--threshold-presence", "1") == 0
    assert not any(_masks(out)["masks/a.png"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--format", "gif"), "unknown-choice"),
        (("--tiles", "few"), "unknown-choice"),
        (("--threshold-presence", "7"), "bad-number"),
        (("--shapes", "boxes"), "unknown-choice"),
        (("--tolerance", "-1"), "bad-number"),
        (("--device", "abacus"), "unknown-device"),
    ],
)
def test_wrong_options_are_one_sentence(
    fitted: Path,
    album: Path,
    tmp_path: Path,
    arguments: tuple[str, str],
    code: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("predict", fitted, album, "-o", tmp_path / "out", *arguments) == code
    said = capsys.readouterr().err
    assert said.count("\n") == 1


def test_a_head_a_missing_file_and_an_unwritable_folder_are_refused(
    fitted: Path, tiny_head: Path, album: Path, tmp_path: Path
) -> None:
    assert run("predict", tiny_head, album, "-o", tmp_path / "out") == "not-fitted"
    assert run("predict", tmp_path / "no.emat", album, "-o", tmp_path / "out") == "no-such-file"
    assert run("predict", album, album, "-o", tmp_path / "out") == "not-a-file"
    (tmp_path / "file").touch()
    assert run("predict", fitted, album, "-o", tmp_path / "file" / "out") == "cannot-write"


def test_the_progress_of_a_long_run_says_how_long_it_will_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from emat import progress

    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    assert list(progress.follow(range(3), 3, "photos predicted")) == [0, 1, 2]
    assert "photos predicted: 2 of 3, about 0 s left" in capsys.readouterr().err


EVERYWHERE = ("--threshold-presence", 0, "--threshold-mask", 0)


def test_a_table_has_a_row_for_each_object_with_areas_in_real_units(fitted: Path, album: Path, tmp_path: Path) -> None:
    table = tmp_path / "objects.csv"
    options = ("--table", table, "--pixel-size", "0.5um", *EVERYWHERE)
    assert run("predict", fitted, album / "b.png", "-o", tmp_path / "out", *options) == 0
    with table.open() as file:
        rows = list(csv.DictReader(file))
    mask = np.asarray(Image.open(tmp_path / "out" / "masks" / "b.png"))
    assert sum(int(row["area_px"]) for row in rows) == (mask > 0).sum()
    assert {row["class"] for row in rows} <= {"cat", "dog"}
    assert all(float(row["area_um2"]) == pytest.approx(int(row["area_px"]) * 0.25) for row in rows)
    assert [int(row["id"]) for row in rows if row["class"] == rows[0]["class"]] == list(
        range(1, 1 + sum(row["class"] == rows[0]["class"] for row in rows))
    )


def test_instances_are_written_one_by_one(fitted: Path, album: Path, tmp_path: Path) -> None:
    table = tmp_path / "objects.csv"
    options = ("--format", "coco", "--instances", "--table", table, *EVERYWHERE)
    assert run("predict", fitted, album / "b.png", "-o", tmp_path / "out", *options) == 0
    annotations = json.loads((tmp_path / "out" / "annotations.json").read_text())["annotations"]
    with table.open() as file:
        areas = sorted(int(row["area_px"]) for row in csv.DictReader(file))
    assert sum(one["area"] for one in annotations) == sum(areas)
    assert len(annotations) >= len(areas)


def test_refining_along_edges_needs_no_weights(fitted: Path, album: Path, tmp_path: Path) -> None:
    assert run("predict", fitted, album / "b.png", "-o", tmp_path / "out", "--refine", "guided", *EVERYWHERE) == 0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--refine", "sharp"), "unknown-choice"),
        (("--pixel-size", "0.32um"), "missing-option"),
        (("--table", "t.csv", "--pixel-size", "3 parsec"), "unclear-option"),
        (("--instances",), "conflicting-options"),
    ],
)
def test_options_of_refinement_and_tables_are_checked(
    fitted: Path,
    album: Path,
    tmp_path: Path,
    options: tuple[str, ...],
    code: str,
) -> None:
    assert run("predict", fitted, album, "-o", tmp_path / "out", *options) == code


@pytest.mark.parametrize(
    "option", [("--format", "sheet"), ("--format", "csv"), ("--table", "objects.csv"), ("--pages", "all")]
)
def test_options_that_need_all_photos_in_one_process_are_refused_on_ray(
    fitted: Path, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: tuple[object, ...]
) -> None:
    assert run("predict", fitted, album, "-o", tmp_path / "rows", "--engine", "ray", *option) == "conflicting-options"
    flag = " ".join(map(str, option)) if option[0] == "--format" else option[0]
    assert f"does not take {flag}; leave it out" in capsys.readouterr().err
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize(("table", "code"), [("out/scores.csv", "same-output-name"), ("album", "cannot-write")])
def test_a_table_that_cannot_be_written_is_refused_before_any_photo_is_predicted(
    fitted: Path, album: Path, tmp_path: Path, table: str, code: str
) -> None:
    assert run("predict", fitted, album, "-o", tmp_path / "out", "--table", tmp_path / table) == code
    assert not (tmp_path / "out" / "masks").exists()


def test_results_never_go_into_the_folder_of_the_photos(fitted: Path, album: Path) -> None:
    assert run("predict", fitted, album, "-o", album) == "output-is-input"


def test_every_page_of_a_stack_is_predicted(fitted: Path, tmp_path: Path) -> None:
    pages = [Image.new("L", (30, 20), 60 * number) for number in range(3)]
    pages[0].save(tmp_path / "stack.tif", save_all=True, append_images=pages[1:])
    assert run("predict", fitted, tmp_path / "stack.tif", "-o", tmp_path / "out", "--pages", "all") == 0
    assert sorted(_masks(tmp_path / "out" / "masks")) == [f"stack_p00{number}.png" for number in (1, 2, 3)]


def test_the_page_of_a_fitted_file_replaces_nothing(
    fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pets.html"
    path.write_bytes(fitted.read_bytes())
    assert run("show", fitted, "--html", fitted) == "wrong-suffix"
    assert "must end in .html" in capsys.readouterr().err
    assert run("show", path, "--html", path) == "output-is-input"
    assert "is read by this command" in capsys.readouterr().err
    (tmp_path / "mine.html").write_text("precious")
    assert run("show", fitted, "--html", tmp_path / "mine.html") == "refuses-overwrite"
    assert (tmp_path / "mine.html").read_text() == "precious"
    for _ in range(2):
        assert run("show", fitted, "--html", tmp_path / "page.html") == 0
    assert path.read_bytes() == fitted.read_bytes()
