"""A check finds each fault that was planted, and nothing in a sound data set."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.datasets.checking import Report, inspect_all, report
from emat.datasets.layouts import open_dataset
from emat.images import write_indexed_png

from .conftest import BUILDERS, half_mask, save_photo

Build = Callable[[str], Path]


def check(root: Path, decode: bool = True) -> Report:
    dataset = open_dataset(root)
    return report(dataset, inspect_all(dataset, decode=decode))


def faults(outcome: Report) -> dict[str, int]:
    return {finding.kind: finding.count for finding in outcome.findings if finding.fault}


@pytest.mark.parametrize("layout", BUILDERS)
def test_a_sound_data_set_is_clean(build: Build, layout: str) -> None:
    outcome = check(build(layout))
    assert outcome.clean, outcome.findings
    assert outcome.masks >= 2


def test_every_planted_fault_is_found_and_counted(build: Build) -> None:
    root = build("folder")
    for name in ("truncated", "tilted", "small", "strange", "colours", "empty", "zero", "letter"):
        save_photo(root / "images" / f"{name}.jpg")
        write_indexed_png(root / "masks" / f"{name}.png", half_mask(1))
    content = (root / "images" / "truncated.jpg").read_bytes()
    (root / "images" / "truncated.jpg").write_bytes(content[:-40])
    (root / "images" / "zero.jpg").write_bytes(b"")
    (root / "images" / "letter.jpg").write_text("dear photo")
    write_indexed_png(root / "masks" / "tilted.png", half_mask(1).T)
    write_indexed_png(root / "masks" / "small.png", half_mask(1)[:3])
    write_indexed_png(root / "masks" / "strange.png", half_mask(9))
    Image.new("RGB", (8, 6), (1, 2, 3)).save(root / "masks" / "colours.png")
    write_indexed_png(root / "masks" / "empty.png", half_mask(0))
    save_photo(root / "images" / "lonely.jpg")
    write_indexed_png(root / "masks" / "orphan.png", half_mask(2))
    outcome = check(root)
    assert not outcome.clean
    assert faults(outcome) == {
        "missing photo": 1,
        "missing mask": 1,
        "unreadable photo": 3,
        "unreadable mask": 1,
        "mask of another size": 2,
        "unknown class id": 1,
    }
    details = {finding.kind: " ".join(finding.examples) for finding in outcome.findings}
    assert "strange: 9" in details["unknown class id"]
    assert "tilted: mask 6 x 8, photo 8 x 6 (turned by a quarter)" in details["mask of another size"]
    assert details["no class in mask"] == "empty"
    assert (outcome.photos, outcome.masks) == (10, 11)


def test_headers_alone_do_not_show_a_truncated_photo(build: Build) -> None:
    root = build("folder")
    path = root / "images" / "a.jpg"
    Image.effect_noise((99, 99), 50).save(path)
    path.write_bytes(path.read_bytes()[:-200])
    write_indexed_png(root / "masks" / "a.png", np.ones((99, 99), np.uint8))
    assert faults(check(root)) == {"unreadable photo": 1}
    assert check(root, decode=False).clean


def test_classes_that_never_occur_are_noted_and_no_fault(build: Build) -> None:
    outcome = check(build("coco png"))
    (finding,) = outcome.findings
    assert (finding.kind, finding.count, finding.fault) == ("class without photo", 78, False)


def test_class_names_that_no_file_can_hold_are_a_fault(build: Build) -> None:
    root = build("folder")
    (root / "classes.txt").write_text("cat\na\x1b[2J\nbird\n", encoding="utf-8")
    details = {finding.kind: finding.examples for finding in check(root).findings if finding.fault}
    assert details["unwritable class name"] == ("'a\\x1b[2J'",)


def test_the_real_photos_are_sound(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path))
    for name, photos in (("voc2012-mini", 454), ("coco2017-mini", 381)):
        outcome = check(shared / "data" / name, decode=False)
        assert outcome.findings == ()
        assert outcome.photos == outcome.masks == photos
