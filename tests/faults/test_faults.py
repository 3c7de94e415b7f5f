"""Killed, out of room, not allowed, or two at once: nothing is lost, half-written or said in a traceback."""

import csv
import io
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from emat.backbone.vit import ViT
from emat.files import UNFINISHED
from emat.model import build
from tests.faults.conftest import Commands
from tests.file_server import Server
from tests.test_archives import write_archive

KILLS = 2  # of each command
EVALUATION = ("eval", "--method", "prototype", "--size", 64, "--device", "cpu", "--folds", 2, "--tasks", 6)
FORMATS = "png,coco,labelme,yolo,csv"
Arguments = Callable[[Path], list[object]]


def files_in(folder: Path) -> dict[str, bytes]:
    if folder.is_file():
        return {folder.name: folder.read_bytes()}
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def verbs(head: Path, album: Path, fitted: Path) -> dict[str, Arguments]:
    """What to run for each verb, given where its result goes."""
    return {
        "fit": lambda out: ["fit", album, "-o", out / "pets.emat", "--model", head, "--no-learn"],
        "predict": lambda out: [
            "predict",
            fitted,
            album / "images",
            "-o",
            out,
            "--format",
            "png,coco,labelme,yolo,csv",
        ],
        "eval": lambda out: [*EVALUATION, "--data", album, "-o", out / "results.json"],
        "convert": lambda out: ["convert", album, "-o", out, "--to", "coco,png", "--copy-photos"],
    }


@pytest.mark.parametrize("verb", ["fit", "predict", "convert"])
def test_a_killed_run_ends_as_if_it_had_not_been_killed(
    commands: Commands, verbs: dict[str, Arguments], tmp_path: Path, verb: str
) -> None:
    whole = commands.run(*verbs[verb](tmp_path / "whole"))
    assert whole.code == 0, whole.err
    chance = random.Random(verb)
    for _ in range(KILLS):
        commands.run(*verbs[verb](tmp_path / "killed"), kill_after=chance.uniform(0.02, whole.seconds))
    ended = commands.run(*verbs[verb](tmp_path / "killed"))
    assert ended.code == 0, ended.err
    found, expected = files_in(tmp_path / "killed"), files_in(tmp_path / "whole")
    for name in ("scores.csv", "annotations.json"):  # a run that goes on has its photos in another order
        if name in expected:
            assert len(found.pop(name)) == len(expected.pop(name))
    assert found == expected
    assert not [name for name in found if UNFINISHED in name]


def test_a_killed_evaluation_goes_on_and_has_the_same_results(
    commands: Commands, verbs: dict[str, Arguments], tmp_path: Path
) -> None:
    whole = commands.run(*verbs["eval"](tmp_path / "whole"))
    assert whole.code == 0, whole.err
    commands.run(*verbs["eval"](tmp_path / "killed"), kill_after=0.6 * whole.seconds)
    ended = commands.run(*verbs["eval"](tmp_path / "killed"))
    assert ended.code == 0, ended.err
    assert [path.name for path in (tmp_path / "killed").iterdir()] == ["results.json"]
    contents = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("whole", "killed")]
    assert contents[0]["cells"] == contents[1]["cells"]


def test_a_killed_training_resumes_and_has_the_same_weights(commands: Commands, album: Path, tmp_path: Path) -> None:
    run = ("train", "--data", album, "--size", 64, "--support-grid", 4, "--batch", 2, "--tasks-per-epoch", 4)
    options = (*run, "--max-tasks", 12, "--val-tasks", 0, "--device", "cpu", "--out")
    whole = commands.run(*options, tmp_path / "whole")
    assert whole.code == 0, whole.err
    chance, killed = random.Random("train"), tmp_path / "killed"
    for _ in range(KILLS):
        resumed = ["--resume"] if (killed / "state.pt").is_file() else []
        commands.run(*options, killed, *resumed, kill_after=chance.uniform(0.3, 1) * whole.seconds)
    ended = commands.run(*options, killed, *(["--resume"] if (killed / "state.pt").is_file() else []))
    assert ended.code == 0, ended.err
    found, expected = (load_file(folder / "last.safetensors") for folder in (killed, tmp_path / "whole"))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert not [name for name in files_in(killed) if UNFINISHED in name]


def test_a_killed_import_of_weights_leaves_all_or_nothing(commands: Commands, head: Path, tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "home", tmp_path / "best.ckpt"
    torch.save({"state_dict": {f"learner.{name}": value for name, value in load_file(head).items()}}, checkpoint)
    words = ("weights", "import", checkpoint, "--as", "mine")
    whole = commands.run(*words, home=folder / "whole")
    assert whole.code == 0, whole.err
    chance = random.Random("import")
    for _ in range(2 * KILLS):
        commands.run(*words, home=folder / "killed", kill_after=chance.uniform(0, 1) * whole.seconds)
        kept = [path for path in (folder / "killed").rglob("mine*") if UNFINISHED not in path.name]
        assert all(load_file(path) for path in kept if path.suffix == ".safetensors"), "a file that is there is whole"
    ended = commands.run(*words, home=folder / "killed")
    assert ended.code == 0, ended.err
    assert files_in(folder / "killed") == files_in(folder / "whole")


def narrow_backbone() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return ViT(48, 12, 6, patch=14, pos_grid=5).state_dict()


def published_archive(folder: Path) -> bytes:
    """An archive as the authors publish it: a checkpoint for each fold, with the backbone in each."""
    content = {}
    for fold in range(4):
        state = {f"backbone.{name}": value for name, value in narrow_backbone().items()}
        state |= {f"learner.{name}": value for name, value in build("emat", 72).state_dict().items()}
        file = io.BytesIO()
        torch.save({"state_dict": state}, file)
        content[f"emat-coco/fold-{fold}/best.ckpt"] = file.getvalue()
    return write_archive(folder / "archive", content, "zip").read_bytes()


@pytest.mark.parametrize("name", ["emat-coco", "dinov2-s"])
def test_a_killed_download_of_weights_leaves_nothing_behind_when_it_is_run_again(
    commands: Commands, tmp_path: Path, name: str
) -> None:
    server = Server(published_archive(tmp_path) if name == "emat-coco" else save(narrow_backbone()))
    server.pause = 0.02
    words, address = ("weights", "fetch", name), server.url.rpartition("/")[0]
    whole = commands.run(*words, home=tmp_path / "whole", server=address)
    assert whole.code == 0, whole.err
    chance, killed = random.Random(name), tmp_path / "killed"
    for _ in range(3 * KILLS):
        commands.run(*words, home=killed, server=address, kill_after=chance.uniform(0, 1) * whole.seconds)
        kept = [path for path in killed.rglob("*.safetensors") if UNFINISHED not in path.name]
        assert all(load_file(path) for path in kept), "a file that is there is whole"
    ended = commands.run(*words, home=killed, server=address)
    assert ended.code == 0, ended.err
    assert files_in(killed) == files_in(tmp_path / "whole")
    assert not list(killed.rglob(f"{UNFINISHED}*"))
    # Killed after the weights were stored and before the download was removed:
    folder = next(path for path in killed.rglob("*.safetensors") if name in path.name).parent
    left = f"{name}.archive-0" if name == "emat-coco" else f"{name}.{server.url.split('/')[2]}.backbone.safetensors"
    for suffix in ("", ".part", ".part.etag"):
        (folder / f"{left}{suffix}").write_bytes(b"x")
    assert commands.run(*words, home=killed, server=address).code == 0
    assert files_in(killed) == files_in(tmp_path / "whole")
    server.http.shutdown()
    server.http.server_close()


@pytest.mark.parametrize("verb", ["fit", "predict", "convert"])
@pytest.mark.parametrize("limit", [600, 6000])
def test_a_full_disk_is_one_sentence_and_leaves_no_half_file(
    commands: Commands, verbs: dict[str, Arguments], tmp_path: Path, verb: str, limit: int
) -> None:
    out = tmp_path / "out"
    ended = commands.run(*verbs[verb](out), file_limit=limit)
    assert "Traceback" not in ended.err
    if ended.code != 0:  # a command may need no more
        assert ended.code == 2, ended.err
        assert ended.err.count("cannot be written") == 1, ended.err
        assert "left out" not in ended.err
    assert not [path for path in files_in(out) if UNFINISHED in path] if out.exists() else True
    again = commands.run(*verbs[verb](out))
    assert again.code == 0, again.err


@pytest.mark.parametrize("verb", ["fit", "predict", "convert"])
def test_a_folder_that_cannot_be_written_is_one_sentence(
    commands: Commands, verbs: dict[str, Arguments], verb: str
) -> None:
    ended = commands.run(*verbs[verb](Path("/proc/nothing/can/be/here")))
    assert ended.code == 2
    assert "cannot be written" in ended.err
    assert ended.err.count("\n") == 1, ended.err


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_without_permission_is_one_sentence(
    commands: Commands, verbs: dict[str, Arguments], tmp_path: Path
) -> None:
    tmp_path.chmod(0o555)
    ended = commands.run(*verbs["predict"](tmp_path / "out"))
    assert (ended.code, ended.err.count("\n")) == (2, 1)


def test_of_two_writers_the_second_says_who_is_at_work_and_nothing_is_lost(
    commands: Commands, verbs: dict[str, Arguments], tmp_path: Path
) -> None:
    program = (
        "import sys, time; from pathlib import Path; from emat.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]) / '.emat-journal.jsonl', {}); print('here', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "out")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "here\n"
        second = commands.run(*verbs["predict"](tmp_path / "out"))
        assert second.code == 2
        assert f"is being written by process {first.pid} on " in second.err
        assert second.err.count("\n") == 1
        first.kill()
    assert commands.run(*verbs["predict"](tmp_path / "out")).code == 0
    with (tmp_path / "out" / "scores.csv").open() as file:
        assert sorted(row["photo"] for row in csv.DictReader(file)) == [f"{number}.png" for number in range(6)]


def test_a_pipe_is_refused_and_not_waited_for(commands: Commands, fitted: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "photo.jpg")
    began = time.monotonic()
    ended = commands.run("predict", fitted, tmp_path / "photo.jpg", "-o", tmp_path / "out", kill_after=60)
    assert ended.code == 3
    assert "is not a file but a pipe or a device" in ended.err
    assert time.monotonic() - began < 60


def test_a_name_that_is_not_utf8_concerns_its_photo_alone(
    commands: Commands, fitted: Path, album: Path, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    content = (album / "images" / "0.png").read_bytes()
    (photos / "good.png").write_bytes(content)
    with open(os.fsencode(photos) + b"/caf\xe9.png", "wb") as file:
        file.write(content)
    ended = commands.run("predict", fitted, photos, "-o", tmp_path / "out")
    assert ended.code == 3, ended.err
    assert "is not UTF-8; rename the file" in ended.err
    assert (tmp_path / "out" / "masks" / "good.png").is_file()
