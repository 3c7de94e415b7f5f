"""Killed, out of room, not allowed, or two at once: nothing is lost, half-written or said in a traceback."""

import csv
import io
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from safetensors.torch import load, load_file, save

from emat.backbone.vit import ViT
from emat.model import build
from emat.outputs import RECORD, UNFINISHED
from tests.faults.conftest import Commands
from tests.file_server import Server
from tests.test_archives import write_archive

KILLS = 2  # of each command
EVALUATION = ("eval", "--method", "prototype", "--size", 64, "--device", "cpu", "--folds", 2, "--tasks", 6)
TRAINING = (
    "--size", 64, "--support-grid", 4, "--batch", 2, "--tasks-per-epoch", 4, "--val-tasks", 0, "--device", "cpu"
)  # fmt: skip
FORMATS = "png,coco,labelme,yolo,csv"
Arguments = Callable[[Path], list[object]]


def files_in(folder: Path) -> dict[str, bytes]:
    """The files of a folder, but for the record of what emat wrote, which a killed run leaves with further lines."""
    if folder.is_file():
        return {folder.name: folder.read_bytes()}
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != RECORD]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


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


CHANGING = ("predict", "slides", "convert", "fit", "measure", "eval", "train", "show", "tasks")


class Changing:
    """Runs that are killed, each time with other photos, masks, options or another fitted file than before."""

    def __init__(
        self, commands: Commands, head: Path, album: Path, folder: Path, seed: int, seconds: dict[str, float]
    ) -> None:
        self._commands, self._head, self._folder = commands, head, folder
        self._seconds = seconds  # that each verb took when it was last not killed
        self._chance = random.Random(seed)
        self._album = folder / "album"
        shutil.copytree(album, self._album)
        self._slide = folder / "slide.tif"  # it has more pixels than may be in memory, and the photos have fewer
        self._scan()
        self._fitted = folder / "pets.emat"
        self._fit(2)
        self.kills = 0

    def run(self, verb: str, kills: int) -> None:
        """Kill a command so often, then let it end, and compare with a run that was never killed."""
        out, options = self._folder / f"killed-{verb}-{self.kills}", self._options(verb)
        if verb not in self._seconds:
            self._afresh(verb, f"timed-{verb}-{self.kills}", options)
        for _ in range(kills):
            after = self._chance.uniform(0.1, 1.1) * self._seconds[verb]
            self._commands.run(*self._words(verb, out, options), kill_after=after)
            self.kills += 1
            if self._chance.random() < 0.7:
                options = self._change(verb, options)
        ended = self._commands.run(*self._words(verb, out, options))
        if verb == "eval" and ended.code == 2:  # it does not mix outcomes, and says so
            assert "another run" in ended.err, ended.err
            shutil.rmtree(out)
            ended = self._commands.run(*self._words(verb, out, options))
        assert ended.code == 0, ended.err
        assert "Traceback" not in ended.err
        self._compare(verb, files_in(out), files_in(self._afresh(verb, f"afresh-{verb}-{self.kills}", options)))

    def _afresh(self, verb: str, name: str, options: list[object]) -> Path:
        """Run a command that is not killed, into a folder of its own."""
        out = self._folder / name
        whole = self._commands.run(*self._words(verb, out, options))
        assert whole.code == 0, whole.err
        self._seconds[verb] = whole.seconds
        return out

    def _compare(self, verb: str, found: dict[str, bytes], expected: dict[str, bytes]) -> None:
        assert not [name for name in found if UNFINISHED in name]
        missing = {name for name in expected if name not in found and not name.startswith("tensorboard/")}
        assert missing == set()
        if verb == "train":  # photos may have changed on the way, which is said; what there is is whole
            assert all(load(content) for name, content in found.items() if name.endswith(".safetensors"))
            return
        for name, content in expected.items():
            if name.endswith(".csv"):  # a run that goes on has its photos in another order
                assert sorted(found[name].splitlines()) == sorted(content.splitlines()), name
            elif name == "annotations.json":
                assert _by_photo(found[name]) == _by_photo(content)
            elif name == "results.json":
                assert json.loads(found[name])["cells"] == json.loads(content)["cells"]
            else:
                assert found[name] == content, name

    def _words(self, verb: str, out: Path, options: list[object]) -> list[object]:
        photos = self._album / "images"
        if verb == "train":
            resumed = ["--resume"] if (out / "state.pt").is_file() else []
            return ["train", "--data", self._album, *TRAINING, *options, "--out", out, *resumed]
        return {
            "predict": ["predict", self._fitted, photos, "-o", out],
            "slides": [
                "predict",
                self._fitted,
                self._slide,
                photos,
                "-o",
                out,
                "--table",
                out / "objects.csv",
                "--tiles",
                2,
                "--max-pixels",
                2500,
            ],
            "convert": ["convert", self._album, "-o", out],
            "measure": ["measure", "--masks", self._album / "masks", photos, "-o", out, "--no-report"],
            "eval": [*EVALUATION, "--data", self._album, "-o", out / "results.json"],
            "show": ["show", self._fitted, "--html", out / "page.html"],
            "tasks": ["tasks", "freeze", "--data", self._album, "--folds", 2, "-o", out / "tasks.jsonl"],
            "fit": ["fit", self._album, "-o", out / "pets.emat", "--model", self._head, "--no-learn"],
        }[verb] + options

    def _options(self, verb: str) -> list[object]:
        chance = self._chance
        if verb in ("predict", "slides"):
            level, formats = chance.choice(("0.2", "0.5")), "png,coco" if verb == "predict" else "png"
            return ["--format", formats, "--threshold-mask", level, "--threshold-presence", 0, "--refine", "none"]
        if verb == "convert":
            return ["--to", "coco,png", *(["--copy-photos"] if chance.random() < 0.5 else [])]
        if verb == "measure":
            formats = chance.choice(("csv,geojson", "csv,coco"))
            return ["--format", formats, *chance.choice(([], ["--min-area", "200px"], ["--region", "part=otsu"]))]
        if verb == "train":
            return ["--max-tasks", chance.choice((12, 16))]
        if verb == "show":
            return []
        return ["--shot" if verb in ("eval", "tasks") else "--shots", chance.choice((1, 2))]

    def _change(self, verb: str, options: list[object]) -> list[object]:
        what = self._chance.choice(("photos", "masks", "options", "fitted"))
        if what == "options" and verb != "train":  # with fewer tasks, a training is not continued
            return self._options(verb)
        if what == "fitted":
            self._fit(self._chance.randint(1, 3))
            return options
        if what == "photos":
            self._scan()
        for path in self._chance.sample(sorted((self._album / "images").iterdir()), 3):
            if what == "photos":
                turned = np.asarray(Image.open(path))[::-1]
                Image.fromarray(np.ascontiguousarray(turned)).save(path)
            else:
                mask = self._album / "masks" / path.name
                Image.fromarray(np.roll(np.asarray(Image.open(mask)), 1, axis=1)).save(mask)
        return options

    def _scan(self) -> None:
        """Make the slide anew, with another number of objects on it."""
        scanned = np.full((160, 200, 3), 120, np.uint8)
        for number in range(self._chance.randint(1, 9)):
            top, left = 8 + 50 * (number // 3), 8 + 60 * (number % 3)
            scanned[top : top + 30, left : left + 40] = (230, 30, 30) if number % 2 else (30, 30, 230)
        tifffile.imwrite(self._slide, scanned, photometric="rgb", tile=(64, 64))

    def _fit(self, shots: int) -> None:
        words = ("fit", self._album, "-o", self._fitted, "--model", self._head, "--no-learn", "--shots", shots)
        ended = self._commands.run(*words)
        assert ended.code == 0, ended.err


def _by_photo(content: bytes) -> dict[str, list[str]]:
    """What a COCO file says of each photo, without the numbers, which depend on the order of the photos."""
    read = json.loads(content)
    names = {photo["id"]: photo["file_name"] for photo in read["images"]}
    found: dict[str, list[str]] = {name: [] for name in names.values()}
    for drawn in read["annotations"]:
        found[names[drawn["image_id"]]].append(json.dumps({**drawn, "id": 0, "image_id": 0}))
    return found


@pytest.mark.parametrize(
    ("verb", "seed"), [("predict", 1), ("predict", 2), ("slides", 4), ("convert", 3), ("fit", 5), ("measure", 6)]
)
def test_what_a_killed_run_left_of_other_photos_masks_or_options_is_not_continued(
    commands: Commands, head: Path, album: Path, tmp_path: Path, verb: str, seed: int
) -> None:
    Changing(commands, head, album, tmp_path, seed, {}).run(verb, kills=2)


@pytest.mark.slow
def test_many_kills_with_changes_between_them(
    commands: Commands, head: Path, album: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The campaign: `pytest tests/faults -m slow -s --kills 200`, or a part of it with --kills-from SEED."""
    asked, kills, seconds = int(request.config.getoption("--kills")), 0, dict[str, float]()
    for seed in itertools.count(int(request.config.getoption("--kills-from"))):
        changing = Changing(commands, head, album, tmp_path / str(seed), seed, seconds)
        for verb in CHANGING:
            changing.run(verb, kills=random.Random(f"{seed} {verb}").randint(1, 4))
        shutil.rmtree(tmp_path / str(seed))
        kills += changing.kills
        print(f"seed {seed}: {kills} kills", flush=True)
        if kills >= asked:
            break


def test_a_killed_evaluation_goes_on_and_has_the_same_results(
    commands: Commands, verbs: dict[str, Arguments], tmp_path: Path
) -> None:
    whole = commands.run(*verbs["eval"](tmp_path / "whole"))
    assert whole.code == 0, whole.err
    commands.run(*verbs["eval"](tmp_path / "killed"), kill_after=0.6 * whole.seconds)
    ended = commands.run(*verbs["eval"](tmp_path / "killed"))
    assert ended.code == 0, ended.err
    assert sorted(files_in(tmp_path / "killed")) == ["results.json"]
    contents = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("whole", "killed")]
    assert contents[0]["cells"] == contents[1]["cells"]


def test_a_killed_training_resumes_and_has_the_same_weights(commands: Commands, album: Path, tmp_path: Path) -> None:
    options = ("train", "--data", album, *TRAINING, "--max-tasks", 12, "--out")
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
    left = f"{name}.{server.url.split('/')[2]}.{'download' if name == 'emat-coco' else 'backbone.safetensors'}"
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
