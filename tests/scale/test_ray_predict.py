"""Bulk prediction on a real Ray cluster of two workers. Skipped where Ray is not installed, as in CI.

The tests start clusters, so they take minutes: run them with `pytest -m slow tests/scale/test_ray_predict.py`.
"""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from emat import Segmenter
from emat.formats.run_lengths import mask_of_counts, unpack
from emat.scale.ray_predict import BulkOptions, RayOptions, predict_in_bulk
from tests.raises import raises_code
from tests.scale.conftest import photo_of

pytest.importorskip("ray", reason="bulk prediction needs the extra `ray`, which is not part of `all`")
parquet = pytest.importorskip("pyarrow.parquet", reason="bulk prediction needs the extra `ray`")

PHOTOS = 60
PATIENT = {"RAY_raylet_start_wait_time_s": "300"}  # a busy machine starts Ray slowly


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for number in range(PHOTOS):
        where = folder if number % 2 else folder / "more"
        Image.fromarray(photo_of(number)).save(where / f"{number:03}.png")
    (folder / "broken.jpg").write_bytes(b"nonsense")
    (folder / ".hidden.png").write_bytes(b"nonsense")
    return folder


def rows_of(out: Path) -> list[dict[str, Any]]:
    files = sorted((out / "parts").glob("[0-9]*.parquet"))
    return [row for file in files for row in parquet.read_table(file).to_pylist()]


def assert_complete(out: Path, photos: Path, fitted: Segmenter) -> None:
    """Exactly one row for every photo and class, each what `predict` says."""
    rows = rows_of(out)
    paths = {str(path) for path in photos.rglob("*.png") if not path.name.startswith(".")}
    found = [(row["path"], row["class"]) for row in rows]
    expected = {(path, name) for path in paths for name in fitted.classes_} | {(str(photos / "broken.jpg"), None)}
    assert len(found) == len(expected)
    assert set(found) == expected
    for row in rows:
        if row["class"] is None:
            assert "is not JPEG" in row["problem"]
            continue
        prediction = fitted.predict(row["path"])
        assert row["score"] == pytest.approx(prediction.scores[row["class"]], abs=1e-6)
        mask = mask_of_counts(unpack(row["counts"]), (row["height"], row["width"]))
        assert np.array_equal(mask, prediction.mask(row["class"]))
        assert row["present"] == (row["class"] in prediction.present)
        assert row["area"] == mask.sum()


def start(fitted_file: Path, photos: Path, out: Path) -> "subprocess.Popen[str]":
    words = ["predict", fitted_file, photos, "-o", out, "--engine", "ray", "--ray-workers", "2", "--json"]
    words += ["--format", "png,coco"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"} | PATIENT
    command = [sys.executable, "-m", "emat", *map(str, words)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_a_part(out: Path, job: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 1800
    while not list((out / "parts").glob("[0-9]*.parquet")):
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_worker_and_a_killed_driver_lose_nothing_and_double_nothing(
    fitted_file: Path, fitted: Segmenter, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = start(fitted_file, photos, out)
    wait_for_a_part(out, first)
    family = psutil.Process(first.pid).children(recursive=True)
    first.send_signal(signal.SIGKILL)  # the driver
    first.wait()
    for process in family:  # the cluster that it had started on this machine
        if process.is_running():
            process.kill()
    before = len(list((out / "parts").glob("[0-9]*.parquet")))
    second = start(fitted_file, photos, out)
    deadline = time.monotonic() + 1800
    while len(list((out / "parts").glob("[0-9]*.parquet"))) == before and second.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = [
        process
        for process in psutil.Process(second.pid).children(recursive=True)
        if process.name().startswith("ray::") and "MapWorker" in process.name()
    ]
    if workers:
        workers[0].kill()
    printed, problems = second.communicate(timeout=1200)
    assert second.returncode == 3, problems  # one photo is broken
    assert json.loads(printed.splitlines()[-1])["photos"] == PHOTOS + 1
    assert_complete(out, photos, fitted)
    names = {f"more/{number:03}" if number % 2 == 0 else f"{number:03}" for number in range(PHOTOS)}
    masks = {path.relative_to(out / "masks").with_suffix("").as_posix() for path in (out / "masks").rglob("*.png")}
    assert masks == names
    images = [one["file_name"] for one in json.loads((out / "annotations.json").read_text())["images"]]
    assert sorted(images) == sorted(f"{name}.png" for name in names)


@pytest.mark.slow
def test_a_finished_job_does_nothing_again_and_new_photos_are_added(
    fitted_file: Path, fitted: Segmenter, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = RayOptions(workers=2)
    done = predict_in_bulk(fitted_file, [str(photos)], str(out), options)
    assert (done.photos, done.done_before, done.predicted, done.failed) == (PHOTOS + 1, 0, PHOTOS, 1)
    assert_complete(out, photos, fitted)
    again = predict_in_bulk(fitted_file, [str(photos)], str(out), options)
    assert (again.done_before, again.predicted) == (PHOTOS + 1, 0)
    Image.fromarray(photo_of(99)).save(photos / "new.png")
    more = predict_in_bulk(fitted_file, [str(photos)], str(out), options)
    assert (more.photos, more.predicted) == (PHOTOS + 2, 1)
    assert_complete(out, photos, fitted)


def test_the_output_of_another_segmenter_and_an_empty_folder_are_refused(
    fitted_file: Path, tmp_path: Path, photos: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with raises_code("no-photos"):
        predict_in_bulk(fitted_file, [str(tmp_path / "empty")], str(tmp_path / "out"), RayOptions())
    with raises_code("no-such-file"):
        predict_in_bulk(fitted_file, [str(tmp_path / "absent")], str(tmp_path / "out"), RayOptions())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "options.sha256").write_text("0" * 64)
    with raises_code("other-run"):
        predict_in_bulk(fitted_file, [str(photos)], str(tmp_path / "out"), RayOptions())


@pytest.mark.slow
def test_what_a_worker_cannot_write_is_one_sentence(fitted_file: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "masks").mkdir(parents=True)
    (out / "masks" / "more").write_text("a file where a folder is needed")
    options = BulkOptions(formats=("png",))
    with raises_code("cannot-write", "masks/more"):
        predict_in_bulk(fitted_file, [str(photos)], str(out), RayOptions(workers=1), options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_photos_and_rows_in_a_bucket(fitted_file: Path, fitted: Segmenter, tmp_path: Path) -> None:
    """moto answers as S3 does, at an address of this machine."""
    pytest.importorskip("moto.server", reason="a local S3 needs the package moto[server]")
    from pyarrow import fs

    port = free_port()
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stderr=subprocess.DEVNULL)
    query = f"?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    try:
        files, _ = fs.FileSystem.from_uri(f"s3://key:secret@photos{query}&allow_bucket_creation=true")
        deadline = time.monotonic() + 120
        while True:
            try:
                files.create_dir("photos")
                files.create_dir("results")
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.5)
        for number in range(20):
            out = io.BytesIO()
            Image.fromarray(photo_of(number)).save(out, "PNG")
            with files.open_output_stream(f"photos/in/{number:03}.png") as stream:
                stream.write(out.getvalue())
        source, target = f"s3://key:secret@photos/in{query}", f"s3://key:secret@results/rows{query}"
        options = BulkOptions(formats=("png", "coco"))
        done = predict_in_bulk(fitted_file, [source], target, RayOptions(workers=2), options)
        assert (done.photos, done.predicted) == (20, 20)
        again = predict_in_bulk(fitted_file, [source], target, RayOptions(workers=2), options)
        assert again.done_before == 20
        names = {f"s3://photos/in/{number:03}.png" for number in range(20)}
        table = parquet.read_table("results/rows/parts", filesystem=files)
        assert set(table["path"].to_pylist()) == names
        assert len(table) == 20 * len(fitted.classes_)
        mask = np.array(Image.open(files.open_input_file("results/rows/masks/007.png")))
        assert np.array_equal(mask, fitted.predict(photo_of(7)).label_map)
        joined = json.loads(files.open_input_stream("results/rows/annotations.json").read())
        assert len(joined["images"]) == 20
    finally:
        server.terminate()
        server.wait()
