"""The authors' archives, fetched end to end from a server on this machine: same layout, small real tensors."""

import argparse
import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from safetensors.torch import save

from emat import Example, Segmenter
from emat.backbone.registry import BACKBONES
from emat.backbone.vit import ViT
from emat.cli import main
from emat.methods import trained_head
from emat.methods.trained_head import (
    BITSTREAMS,
    PUBLISHED_ARCHIVES,
    best_head,
    head_file,
    load_head,
    recorded_sha256,
    training_of,
)
from emat.model import build
from emat.refine.mobilesam import MobileSAM
from emat.weights import MOBILESAM, say_once
from tests.evaluation.conftest import make_photos
from tests.file_server import Server
from tests.test_archives import write_archive


@pytest.fixture(autouse=True)
def home(online_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and a DINOv2 of the published depth and number of heads that is 8 times narrower."""
    make = partial(ViT, 48, 12, 6, patch=14, pos_grid=5)
    narrow = replace(BACKBONES["dinov2-s"], make=make, width=8, image_size=56, urls=())
    monkeypatch.setitem(BACKBONES, "dinov2-s", narrow)
    say_once.cache_clear()
    return online_home


def narrow_backbone(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return ViT(48, 12, 6, patch=14, pos_grid=5).state_dict()


def checkpoint(method: str, fold: int, backbone: int = 0) -> bytes:
    """As published: backbone and learner in one state, hyper-parameters pickled beside it."""
    state = {f"backbone.{name}": value for name, value in narrow_backbone(backbone).items()}
    torch.manual_seed(100 + fold)
    state |= {f"learner.{name}": value for name, value in build(method, 72).state_dict().items()}
    file = io.BytesIO()
    torch.save({"state_dict": state, "hyper_parameters": argparse.Namespace(way=1), "epoch": 3}, file)
    return file.getvalue()


def archive(
    path: Path, kind: str = "zip", name: str = "emat-coco", changed: Mapping[str, bytes] = MappingProxyType({})
) -> bytes:
    content = {f"{name}/fold-{fold}/config.yaml": b"way: 1\n" for fold in range(4)}
    content |= {f"{name}/fold-{fold}/best.ckpt": checkpoint(name.partition("-")[0], fold) for fold in range(4)}
    return write_archive(path / "archive", {**content, **changed}, kind).read_bytes()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    running = Server(archive(tmp_path))
    monkeypatch.setattr(trained_head, "HOST", running.url.removesuffix("/file.bin"))
    yield running
    running.http.shutdown()
    running.http.server_close()


def run(*words: object) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code


def test_one_command_brings_four_heads_and_their_backbone(
    server: Server, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("weights", "fetch", "emat-coco") == 0
    shown = capsys.readouterr()
    assert "dinov2-s: verified" in shown.out
    assert "emat-coco-fold3: ready" in shown.out
    assert "MB (100 %)" in shown.err
    assert recorded_sha256("emat-coco") == hashlib.sha256(server.content).hexdigest()
    head = load_head("emat-coco-fold2")
    assert (head.method, head.backbone, head.image_size) == ("emat", "dinov2-s", 56)
    assert training_of("emat-coco-fold2").fold == 2
    expected = torch.load(io.BytesIO(checkpoint("emat", 2)), weights_only=False)["state_dict"]
    assert all(torch.equal(value, expected[f"learner.{name}"]) for name, value in head.tensors.items())
    left = {path.name for path in (home / "heads").iterdir()}
    assert left == {f"emat-coco-fold{n}.safetensors" for n in range(4)} | {"emat-coco.archive.json", "emat-coco.lock"}
    assert run("weights", "fetch", "emat-coco") == 0
    assert len(server.ranges) == 1  # nothing is fetched again


def test_a_fetched_head_predicts_is_evaluated_and_is_the_best(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert best_head() == "default"
    assert run("weights", "fetch", "emat-coco") == 0
    photo = np.zeros((40, 60, 3), np.uint8)
    photo[10:30, 10:30] = 200
    segmenter = Segmenter.load("best", learn=False).fit([Example(photo, {"square": (10, 10, 30, 30)})])
    assert capsys.readouterr().err.count("the best head on this machine is emat-coco-fold0") == 1
    assert segmenter.predict(photo).label_map.shape == (40, 60)
    named = Segmenter.load("emat-coco-fold0", learn=False).fit([Example(photo, {"square": (10, 10, 30, 30)})])
    assert named.predict(photo).scores == segmenter.predict(photo).scores
    monkeypatch.chdir(tmp_path)
    photos = make_photos(tmp_path / "shapes")
    words = ("--folds", 2, "--tasks", 2, "--device", "cpu", "-o", "run.json")
    assert run("eval", "--model", "emat-coco-fold{fold}", "--data", photos, *words) == 0
    assert "emat on dinov2-s at 56 px" in capsys.readouterr().out


def test_fetch_best_brings_backbone_heads_and_mobilesam_and_the_papers_model_is_best(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backbone, sam = Server(save(narrow_backbone())), Server(b"")
    file = io.BytesIO()
    torch.save(MobileSAM().state_dict(), file)
    sam.content = file.getvalue()
    spec = replace(MOBILESAM, urls=(sam.url,), sha256=hashlib.sha256(sam.content).hexdigest(), wheel=None)
    monkeypatch.setitem(BACKBONES, "mobilesam", replace(BACKBONES["mobilesam"], shared=spec))
    monkeypatch.setitem(BACKBONES, "dinov2-s", replace(BACKBONES["dinov2-s"], urls=(backbone.url,)))
    assert run("weights", "fetch", "best") == 0
    shown = capsys.readouterr().out
    for line in ("dinov2-s: verified", "emat-coco-fold0: ready", "emat-pascal-fold3: ready", "mobilesam: verified"):
        assert line in shown
    assert "was not imported" not in shown  # the archive's backbone is the one that was there
    assert best_head() == "emat-coco-fold0"
    assert Segmenter.load("best", learn=False).method.name == "emat"
    counts = [len(one.ranges) for one in (server, backbone, sam)]
    assert run("weights", "fetch", "best") == 0
    assert [len(one.ranges) for one in (server, backbone, sam)] == counts == [2, 1, 1]
    spec.path.unlink()
    sam.content = b"something else"
    (home / "heads" / "emat-pascal-fold0.safetensors").unlink()
    assert run("weights", "fetch", "best") == 2  # and all else is fetched
    assert "mobilesam was not fetched" in capsys.readouterr().err
    assert (home / "heads" / "emat-pascal-fold0.safetensors").is_file()
    for one in (backbone, sam):
        one.http.shutdown()
        one.http.server_close()


def test_best_says_that_it_is_the_default_where_nothing_else_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        Segmenter.load("best", fetch=False).method.preparation
        == Segmenter.load("default", fetch=False).method.preparation
    )
    assert "the best head on this machine is default" in capsys.readouterr().err


def test_a_head_without_its_backbone_is_not_the_best(server: Server, home: Path) -> None:
    assert run("weights", "fetch", "emat-coco") == 0
    (home / "backbones" / "dinov2-s.safetensors").unlink()
    assert best_head() == "default"


@pytest.mark.parametrize(("kind", "name"), [("", "emat-pascal"), ("gz", "cst-pascal"), ("zip", "cst-coco")])
def test_tar_and_zip_of_both_methods_are_taken(server: Server, tmp_path: Path, kind: str, name: str) -> None:
    server.content = archive(tmp_path, kind, name)
    assert run("weights", "fetch", name) == 0
    assert load_head(f"{name}-fold1").method == name.partition("-")[0]
    assert best_head() == f"{name}-fold0"


def test_a_download_that_breaks_goes_on_even_in_another_process(server: Server, home: Path) -> None:
    server.breaks_after = [100_000] + [0] * 4 + [50_000] + [0] * 4  # both addresses give up
    assert run("weights", "fetch", "emat-coco") == 2
    assert sorted(path.stat().st_size for path in (home / "heads").glob("*.part")) == [50_000, 100_000]
    before = len(server.ranges)
    assert run("weights", "fetch", "emat-coco") == 0
    assert server.ranges[before:] == ["bytes=100000-"]
    assert load_head("emat-coco-fold0").method == "emat"


def test_an_archive_with_another_digest_than_the_first_is_refused(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("weights", "fetch", "emat-coco") == 0
    kept = head_file("emat-coco-fold0").read_bytes()
    head_file("emat-coco-fold1").unlink()
    server.content = archive(tmp_path, "gz")
    assert run("weights", "fetch", "emat-coco") == 2
    assert "the archive that was trusted first has" in capsys.readouterr().err
    assert head_file("emat-coco-fold0").read_bytes() == kept
    assert not head_file("emat-coco-fold1").exists()


def test_a_digest_that_the_user_knows_is_checked(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("weights", "fetch", "emat-coco", "--sha256", "0" * 64) == 2
    assert "instead of 000000000000…" in capsys.readouterr().err
    assert not head_file("emat-coco-fold0").exists()
    right = hashlib.sha256(server.content).hexdigest()
    assert run("weights", "fetch", "emat-coco", "--sha256", right) == 0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"../../fold-0/best.ckpt": b"x"}, "leads out of the archive"),
        ({"other/fold-0/best.ckpt": b"x"}, "two checkpoints of fold 0"),
        ({"emat-coco/fold-3/best.ckpt": b"nonsense"}, "is damaged"),
        ({"emat-coco/fold-3/best.ckpt": checkpoint("cst", 3)}, "has a head of the method cst, not of emat"),
        ({"emat-coco/fold-3/best.ckpt": checkpoint("emat", 3, backbone=1)}, "backbone of fold 3"),
    ],
)
def test_a_wrong_archive_is_refused_whole(
    server: Server,
    tmp_path: Path,
    home: Path,
    changed: dict[str, bytes],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.content = archive(tmp_path, changed=changed)
    assert run("weights", "fetch", "emat-coco") == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert "emat weights import FILE --as emat-coco" in shown
    assert [path.name for path in (home / "heads").iterdir()] == ["emat-coco.lock"]
    assert not (tmp_path / "fold-0").exists()


def test_a_truncated_archive_and_a_web_page_are_refused(
    server: Server, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = server.content
    for content, words in ((whole[: len(whole) // 2], "cut short"), (b"<!doctype html>", "a web page")):
        server.content = content
        assert run("weights", "fetch", "emat-coco") == 2
        assert words in capsys.readouterr().err
        assert [path.name for path in (home / "heads").iterdir()] == ["emat-coco.lock"]


def test_an_archive_that_was_brought_by_hand_is_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMAT_OFFLINE", "1")
    assert run("weights", "fetch", "emat-pascal") == 2
    assert "EMAT_OFFLINE" in capsys.readouterr().err
    archive(tmp_path, "gz", "emat-pascal")
    assert run("weights", "import", tmp_path / "archive", "--as", "emat-pascal") == 0
    assert load_head("emat-pascal-fold3").method == "emat"


def test_the_doctor_proposes_the_command_until_a_published_head_is_here(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("doctor", "--json") == 0
    assert json.loads(capsys.readouterr().out)["proposal"] == "emat weights fetch best"
    assert run("weights", "fetch", "emat-coco") == 0
    capsys.readouterr()
    assert run("doctor", "--json") == 0
    assert json.loads(capsys.readouterr().out)["proposal"] is None


def test_every_archive_has_an_address() -> None:
    assert set(BITSTREAMS) == set(PUBLISHED_ARCHIVES)
