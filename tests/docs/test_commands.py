"""Every `emat` command of every page runs: in the page's order, in a folder with the files that the pages speak of.

Photos are small and the head is tiny, so that each command takes a second; a command that needs something else is named
in `ELSEWHERE`, with the test that runs it. The tutorials on research and on measuring have tests of their own.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from glob import glob
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from emat import Example, Segmenter
from emat.backbone.registry import BACKBONES
from emat.backbone.vit import ViT
from emat.images import write_indexed_png
from emat.methods.trained_head import save_head
from emat.model import build
from emat.tensor_files import write_tensors
from tests.cli.command import run
from tests.docs.test_pages import PAGES, ROOT, commands, name_of
from tests.docs.test_research import write_benchmark, write_checkpoint
from tests.evaluation.conftest import make_photos
from tests.inference.conftest import tiny_head

__all__ = ["tiny_head"]

WITH_OWN_TESTS = {
    "docs/extending.md": "test_extending.py",
    "docs/tutorials/research.md": "test_research.py",
    **{f"docs/tutorials/{name}.md": "test_measure_tutorials.py" for name in ("crack-width", "leaf-severity", "nuclei")},
}
ELSEWHERE = {  # a command begins so: where it is run, and why not here
    "weights fetch": "tests/test_weights.py and tests/methods/test_published.py, against a server on this machine",
    "demo": "tests/cli/test_demo.py",
    "export": "tests/scale/test_export.py: needs a minute",
    "eval --model emat-pascal-fold{fold}": "tests/methods/test_published.py: needs what was fetched",
    "predict pets.emat photos/ -o rows/ --engine ray": "tests/scale/test_ray_predict.py",
    "predict pets.emat s3://": "tests/scale/test_ray_predict.py, with folders in the place of buckets",
    "eval --model default --data VOC2012 --refine": "tests/cli/test_eval.py: needs minutes with the default head",
    "report runs/emat-*.json": "test_research.py, with the results that its page makes",
    "measure leaves.emat photos/ -o report --within": "test_measure_tutorials.py, with photos that show a coin",
    "measure parts.emat line/": "tests/cli/test_measure.py: judges only what was found well on examples left out",
    "reproduce pascal": "tests/cli/test_reproduce.py: needs minutes",
}
SMALLER = {  # what makes a command end within seconds; {head} is the tiny head
    "fit": ("--model", "{head}"),
    "eval": ("--tasks", "2", "--size", "112"),
    "train": ("--size", "112", "--max-tasks", "2", "--val-tasks", "2", "--batch", "1"),
    "tune": ("--tasks", "2"),
}
SLOW = ("weights", "training", "backbones")  # pages that train, and that import a backbone of the usual size
SERVERS = ("serve", "studio")
WITH_COMMANDS = [page for page in PAGES if commands(page) and name_of(page) not in WITH_OWN_TESTS]
SIZE = 64, 48  # width and height of a photo
COLOURS = {"cat": (220, 40, 40), "dog": (40, 60, 220)}


def draw(number: int, colour: tuple[int, int, int]) -> tuple[Image.Image, Image.Image]:
    """A photo of noise with a coloured square, and the square's mask."""
    random = np.random.default_rng(number)
    photo = random.integers(90, 140, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
    mask = np.zeros((SIZE[1], SIZE[0]), np.uint8)
    top, left = (int(value) for value in random.integers(4, 20, 2))
    photo[top : top + 20, left : left + 24], mask[top : top + 20, left : left + 24] = colour, 255
    return Image.fromarray(photo), Image.fromarray(mask)


def write_photos(folder: Path, prefix: str = "", count: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        draw(number, COLOURS["cat"])[0].save(folder / f"{prefix}{number}.jpg")


def write_class_folders(folder: Path, names: Sequence[str], count: int = 2) -> None:
    for place, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            photo, mask = draw(10 * place + number, list(COLOURS.values())[place % 2])
            photo.save(folder / name / f"{name}{number}.jpg")
            mask.save(folder / name / f"{name}{number}.png")


def write_dataset(folder: Path, count: int = 4) -> None:
    """photos with label maps: images/, masks/ and classes.txt."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    (folder / "classes.txt").write_text("cat\ndog\n")
    for number in range(count):
        photo, mask = draw(number, list(COLOURS.values())[number % 2])
        photo.save(folder / "images" / f"{number}.jpg")
        write_indexed_png(folder / "masks" / f"{number}.png", (np.asarray(mask) > 0) * np.uint8(1 + number % 2))


def write_labelme(folder: Path) -> None:
    """Two photos, one of them with an annotation beside it."""
    write_photos(folder)
    outline = {"label": "cat", "points": [[20, 10], [40, 10], [40, 30], [20, 30]], "shape_type": "polygon"}
    content = {"imagePath": "0.jpg", "imageHeight": SIZE[1], "imageWidth": SIZE[0], "shapes": [outline]}
    (folder / "0.json").write_text(json.dumps(content))


def write_yolo(folder: Path) -> None:
    write_photos(folder / "images")
    (folder / "labels").mkdir()
    (folder / "data.yaml").write_text("names:\n  0: cat\n")
    for number in range(2):
        (folder / "labels" / f"{number}.txt").write_text("0 0.3 0.2 0.6 0.2 0.6 0.6 0.3 0.6\n")


@pytest.fixture(scope="module")
def everything(tiny_head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files that the pages start from."""
    root = tmp_path_factory.mktemp("pages")
    for name in ("photos", "holiday", "new_photos", "all_photos", "dishes", "line"):
        write_photos(root / name)
    write_photos(root / "more", "more")
    for name in ("my_pets", "SRC", "my-photos"):
        write_dataset(root / name)
    write_class_folders(root / "examples", ("cat", "dog"))
    write_class_folders(root / "leaves", ("leaf", "lesion"))
    write_class_folders(root / "nuclei", ("fluorescent nucleus",))
    write_yolo(root / "my_data")
    write_benchmark(root / "VOC2012", root / "splits")
    (root / "VOCdevkit").mkdir()
    (root / "VOCdevkit" / "VOC2012").symlink_to(root / "VOC2012")
    for name in ("a", "b", "cells", "new"):
        photo, mask = draw(3, COLOURS["cat"])
        photo.save(root / f"{name}.jpg")
        photo.save(root / f"{name}.png")
    for name in ("a_mask.png", "a_masks.png", "strokes.png", "masks/0.png", "masks/1.png"):
        (root / name).parent.mkdir(exist_ok=True)
        mask.save(root / name)
    Image.fromarray(np.flipud(np.asarray(mask))).save(root / "ground.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMAT_HOME", str(root / "home"))  # where no weights are that the tests' own homes lack
        for name, classes in {
            "pets": ("cat", "dog"),
            "cells": ("cell",),
            "parts": ("crack", "defect"),
            "leaves": ("leaf", "lesion", "coin"),
        }.items():
            shown = [
                Example(np.asarray(draw(number, COLOURS["cat"])[0]), {each: (8, 8, 30, 30)})
                for number, each in enumerate(classes)
            ]
            Segmenter.load(tiny_head, device="cpu").fit(shown).save(root / f"{name}.emat")
    write_heads(root)
    return root


def write_heads(root: Path) -> None:
    """Heads and checkpoints, untrained; backbones of few features as in `narrow`."""
    torch.manual_seed(0)
    save_head(root / "head.safetensors", build("emat", 42).state_dict(), {"backbone": "efficientnet-lite2"})
    with pytest.MonkeyPatch.context() as patch:
        narrow(patch)
        write_checkpoint(root / "runs" / "first" / "best.ckpt")
        save_file(BACKBONES["dinov3-s"].make().state_dict(), root / "model.safetensors")
    shutil.copy(root / "runs" / "first" / "best.ckpt", root / "best.ckpt")
    shutil.copy(root / "head.safetensors", root / "hsnet.safetensors")


def narrow(patch: pytest.MonkeyPatch) -> None:
    """Backbones of the usual depth with a few features."""
    patch.setitem(
        BACKBONES,
        "dinov2-s",
        replace(BACKBONES["dinov2-s"], make=partial(ViT, 48, 12, 6, patch=14, pos_grid=5), width=8),
    )


@pytest.mark.parametrize(
    "page",
    [pytest.param(each, id=name_of(each), marks=[pytest.mark.slow] * (each.stem in SLOW)) for each in WITH_COMMANDS],
)
def test_every_command_of_a_page_runs(
    page: Path,
    everything: Path,
    tiny_head: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(everything, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    narrow(monkeypatch)
    if (write := {"labelme-cvat.md": write_labelme, "training.md": make_photos}.get(page.name)) is not None:
        shutil.rmtree(folder / "photos")  # a data set on these pages
        write(folder / "photos")
    if page.stem == "backbones":  # what its script writes
        tensors = BACKBONES["resnet50-v1"].make().state_dict()
        write_tensors(folder / "resnet50-v1.safetensors", tensors, {"backbone": "resnet50-v1"})
    if any("dinov2-s" in words for words in commands(page)):
        assert run("weights", "import", "best.ckpt", "--as", "with-dinov2-s") == 0
    for words in commands(page):
        line = " ".join(words)
        if words[0] in SERVERS or any(line.startswith(beginning) for beginning in ELSEWHERE):
            continue
        if words[0] == "fit":
            Path(words[words.index("-o") + 1]).unlink(missing_ok=True)  # other pages begin with it
        more = () if "--model" in words and words[0] == "fit" else SMALLER.get(words[0], ())
        added = [word.format(head=tiny_head) for word in more]
        words = [found for word in words for found in (sorted(glob(word)) or [word])]
        assert run(*words, *added) == 0, f"emat {line}\n{capsys.readouterr().err}"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="ends processes by signals")
@pytest.mark.parametrize(
    "line", sorted({" ".join(words) for page in PAGES for words in commands(page) if words[0] in SERVERS})
)
def test_every_server_of_a_page_answers(line: str, everything: Path, tiny_head: Path, tmp_path: Path) -> None:
    words = re.sub(r" --port \d+", "", line).split()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    more = ["--port", str(port), *(["--model", str(tiny_head)] if words[0] == "studio" else [])]
    environment = {**os.environ, "EMAT_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "BROWSER": "true"}
    address = f"http://127.0.0.1:{port}/{'health' if words[0] == 'serve' else ''}"
    command = [sys.executable, "-m", "emat", *words, *more]
    with subprocess.Popen(command, cwd=everything, env=environment, stderr=subprocess.PIPE) as server:
        try:
            for _ in range(600):
                with suppress(OSError), urllib.request.urlopen(address, timeout=9) as answer:
                    assert answer.status == 200
                    break
                assert server.poll() is None, server.stderr and server.stderr.read()
                time.sleep(0.2)
            else:
                pytest.fail(f"emat {line} does not answer")
        finally:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(timeout=60)
            server.kill()


def test_what_is_run_elsewhere_is_still_on_a_page() -> None:
    lines = [" ".join(words) for page in PAGES for words in commands(page)]
    assert [beginning for beginning in ELSEWHERE if not any(line.startswith(beginning) for line in lines)] == []
    assert set(WITH_OWN_TESTS) <= {name_of(page) for page in PAGES}
