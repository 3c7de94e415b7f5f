"""The photos and the output of bulk prediction, and what a worker writes, without a cluster."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from emat.cli import main
from emat.inference.prediction import Thresholds
from emat.inference.segmenter import Segmenter
from emat.scale.ray_predict import (
    BulkOptions,
    BulkOutput,
    Photo,
    Storage,
    _Job,
    _refuse_same_results,
    _Worker,
    find_bulk_photos,
)
from tests.cli.command import run
from tests.raises import raises_code
from tests.scale.conftest import photo_of

parquet = pytest.importorskip("pyarrow.parquet", reason="bulk prediction needs the extra `ray`, not part of `all`")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """18 photos, so that there are two batches, and one that cannot be read."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for number in range(18):
        Image.fromarray(photo_of(number)).save((folder / "more" if number % 2 else folder) / f"{number:02}.png")
    (folder / "broken.jpg").write_bytes(b"nonsense")
    (folder / ".hidden.png").write_bytes(b"nonsense")
    return folder


def work(fitted_file: Path, source: Sequence[str], out: str, options: BulkOptions, most: int = 99) -> list[int]:
    """Do what `predict_in_bulk` does, with one worker and at most so many batches, in this process."""
    output = BulkOutput(out)
    found = find_bulk_photos(source, leave_out=output.storage)
    plan = output.plan(found)
    worker = _Worker(_Job(fitted_file.read_bytes(), tuple(source), out, options))
    failed = []
    for number in [number for number in plan if number not in output.done()][:most]:
        rows = {"paths": [photo.path for photo in plan[number]], "names": [photo.name for photo in plan[number]]}
        failed.append(worker({"batch": number, **rows})["failed"])
    if "coco" in options.formats:
        output.join_coco()
    return failed


def predicted_here(fitted_file: Path, photos: Path, out: Path, formats: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(fitted_file), str(photos), "-o", str(out), "--format", formats])
    assert ended.value.code == 3  # one photo is broken


def objects_by_photo(path: Path) -> dict[str, list[dict[str, Any]]]:
    content = json.loads(path.read_text())
    assert [one["id"] for one in content["images"]] == list(range(1, len(content["images"]) + 1))
    assert [one["id"] for one in content["annotations"]] == list(range(1, len(content["annotations"]) + 1))
    names = {one["id"]: one["file_name"] for one in content["images"]}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for one in content["annotations"]:
        found[names[one["image_id"]]].append({key: value for key, value in one.items() if "id" not in key[-2:]})
    return found


def test_files_are_those_of_predict_in_one_process(fitted_file: Path, photos: Path, tmp_path: Path) -> None:
    predicted_here(fitted_file, photos, tmp_path / "here", "png,coco,yolo,overlay")
    options = BulkOptions(formats=("png", "coco", "yolo", "overlay"))
    assert sum(work(fitted_file, [f"file://{photos}"], str(tmp_path / "bulk"), options)) == 1
    for pattern in ("masks/**/*.png", "labels/**/*.txt", "**/*.jpg", "classes.txt", "data.yaml"):
        here, bulk = (
            {path.relative_to(root).as_posix(): path.read_bytes() for path in root.glob(pattern)}
            for root in (tmp_path / "here", tmp_path / "bulk")
        )
        assert here
        assert bulk == here
    assert objects_by_photo(tmp_path / "bulk" / "annotations.json") == objects_by_photo(
        tmp_path / "here" / "annotations.json"
    )


def test_a_stopped_job_goes_on_with_the_batches_that_are_left(
    fitted_file: Path, fitted: Segmenter, photos: Path, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    assert len(work(fitted_file, [str(photos)], out, BulkOptions(), most=1)) == 1
    (tmp_path / "out" / "parts" / ".000000001.parquet.killed").write_bytes(b"half")
    Image.fromarray(photo_of(40)).save(photos / "a-new-one.png")
    assert len(work(fitted_file, [str(photos)], out, BulkOptions())) == 2  # the second batch, and the new photo
    rows = parquet.read_table(tmp_path / "out" / "parts").to_pylist()
    expected = {str(path) for path in photos.rglob("*.png") if path.name != ".hidden.png"}
    found = [(row["path"], row["class"]) for row in rows if row["class"] is not None]
    assert sorted(found) == sorted((path, name) for path in expected for name in fitted.classes_)
    (broken,) = [row for row in rows if row["class"] is None]
    assert broken["path"].endswith("broken.jpg")
    assert "broken.jpg is not" in broken["problem"]


def test_thresholds_are_kept_to(fitted_file: Path, photos: Path, tmp_path: Path) -> None:
    work(fitted_file, [str(photos)], str(tmp_path / "out"), BulkOptions(thresholds=Thresholds(1.0, 0.5)))
    rows = parquet.read_table(tmp_path / "out" / "parts").to_pylist()
    assert not any(row["present"] for row in rows)


def test_pictures_in_the_output_are_not_photos(photos: Path) -> None:
    (photos / "out" / "masks").mkdir(parents=True)
    Image.fromarray(photo_of(1)).save(photos / "out" / "masks" / "00.png")
    found = find_bulk_photos([str(photos)], leave_out=Storage.at(str(photos / "out")))
    assert not [photo for photo in found if "masks" in photo.path]
    assert {photo.name for photo in found} >= {"00.png", "more/01.png"}
    assert (
        find_bulk_photos([str(photos), str(photos / "00.png")], Storage.at("elsewhere"))
        == find_bulk_photos([str(photos)], Storage.at("elsewhere"))[: len(found) + 1]
    )


def test_two_photos_of_one_result_are_refused(tmp_path: Path) -> None:
    same = [Photo("/a/x.png", "x.png"), Photo("/b/x.jpg", "x.jpg")]
    with raises_code("same-output-name", "/a/x.png", "/b/x.jpg", "masks/x.png"):
        _refuse_same_results(same, ["cat"], BulkOptions(formats=("png",)))
    _refuse_same_results(same, ["cat"], BulkOptions(formats=("coco",)))
    _refuse_same_results(same, ["cat"], BulkOptions())


def test_many_photos_are_put_into_larger_batches(tmp_path: Path) -> None:
    output = BulkOutput(str(tmp_path / "out"))
    plan = output.plan([Photo(f"/{number}.png", f"{number}.png") for number in range(400_000)])
    assert len(plan) == 20_000
    assert {len(batch) for batch in plan.values()} == {20}
    assert output.plan([Photo("/more.png", "more.png")])[20_000] == [Photo("/more.png", "more.png")]


def test_an_output_is_of_one_segmenter_and_its_options(tmp_path: Path) -> None:
    output = BulkOutput(str(tmp_path / "out"))
    output.claim("one")
    output.claim("one")
    with raises_code("other-run"):
        output.claim("two")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--engine", "spark"), "unknown-choice"),
        (("--ray-workers", "2"), "missing-option"),
        (("--engine", "ray", "--format", "png,sheet", "--table", "t.csv"), "conflicting-options"),
        (("--engine", "ray", "--format", "tiff"), "unknown-choice"),
    ],
)
def test_what_the_user_can_fix_is_one_sentence(
    words: tuple[str, ...], code: str, fitted_file: Path, photos: Path
) -> None:
    assert run("predict", fitted_file, photos, "-o", "out", *words) == code
    assert not Path("out").exists()


def test_an_address_of_no_file_system_is_one_sentence() -> None:
    with raises_code("bad-address"):
        Storage.at("gopher://x/y")
    assert Storage.at("file:///tmp/x").holds("file:///tmp/x/a.png")
    assert not Storage.at("/tmp/x").holds("/tmp/xy/a.png")
    assert np.array_equal([Storage.at("~/x").root.startswith("~")], [False])


def test_a_photo_that_was_replaced_or_has_the_name_of_another_is_not_taken_for_done(
    photos: Path, tmp_path: Path
) -> None:
    output = BulkOutput(str(tmp_path / "out"))
    output.plan(find_bulk_photos([str(photos)], output.storage))
    output.plan(find_bulk_photos([str(photos)], output.storage))
    Image.fromarray(photo_of(40)).save(photos / "00.png")
    with raises_code("other-run"):
        output.plan(find_bulk_photos([str(photos)], output.storage))


def test_files_of_somebody_else_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("precious")
    with raises_code("refuses-overwrite"):
        BulkOutput(str(tmp_path)).claim("one")
    BulkOutput(str(tmp_path)).claim("one", overwrite=True)
    BulkOutput(str(tmp_path)).claim("one")
