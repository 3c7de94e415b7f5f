"""A folder and a zip look the same from outside."""

import os
import tracemalloc
import zipfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

from emat.datasets import open_dataset
from emat.datasets.file_tree import FileTree
from tests.raises import raises_code

Build = Callable[[str], Path]


def test_a_zip_lists_and_reads_what_its_folder_does(build: Build, tmp_path: Path) -> None:
    folder = FileTree(build("folder"))
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, files in folder.folders.items():
            for file in files:
                member = f"{name}/{file}" if name else file
                archive.write(folder.root / member, member)
    zipped = FileTree(path)
    assert zipped.folders == folder.folders
    assert zipped.text("classes.txt") == folder.text("classes.txt")
    assert (
        zipped.files("masks", (".png",))
        == folder.files("masks", (".png",))
        == {
            "a": "masks/a.png",
            "b": "masks/b.png",
        }
    )


def test_of_two_files_of_one_name_the_suffix_named_first_counts(tmp_path: Path) -> None:
    for name in ("x.png", "x.jpg", ".hidden.jpg"):
        (tmp_path / name).touch()
    assert FileTree(tmp_path).files("", (".jpg", ".png")) == {"x": "x.jpg"}
    assert FileTree(tmp_path).files("", (".png", ".jpg")) == {"x": "x.png"}


def test_a_file_that_is_left_out_for_another_one_of_its_name_is_said(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    root = build("folder")
    photo = next((root / "images").iterdir())
    open_dataset(root)
    assert "is left out" not in caplog.text
    photo.with_suffix(".webp").write_bytes(photo.read_bytes())
    open_dataset(root)
    assert f"{photo.stem}.webp is left out" in caplog.text


def test_a_forked_process_opens_the_zip_for_itself(build: Build) -> None:
    tree = FileTree(build("voc zip"))
    inherited = tree._zip()

    def leave_with_verdict() -> None:
        os._exit(0 if tree._zip() is not inherited else 1)

    child = get_context("fork").Process(target=leave_with_verdict)
    child.start()
    child.join()
    assert child.exitcode == 0
    assert tree._zip() is inherited


def test_a_path_that_is_no_tree_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.zip").write_bytes(b"PK\x03\x04 and no more")
    with raises_code("not-a-folder"):
        FileTree(tmp_path / "cut.zip")
    with raises_code("no-such-file"):
        FileTree(tmp_path / "nothing")


@pytest.mark.parametrize("layout", ["voc tree", "coco mini", "folder", "class folders", "labelme", "yolo"])
def test_folders_may_be_links(build: Build, tmp_path: Path, layout: str) -> None:
    root = build(layout)
    expected = open_dataset(root).names
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in [each for each in root.iterdir() if each.is_dir()]:
        path.rename(moved / path.name)
        (root / path.name).symlink_to(moved / path.name)
        (moved / path.name / "loop").symlink_to(root)
    dataset = open_dataset(root)
    assert dataset.names == expected
    assert dataset.has_photos
    assert dataset.image(expected[0]).shape == (6, 8, 3)


@pytest.mark.parametrize("said", [True, False])
def test_a_small_zip_with_a_huge_class_list_is_refused_in_little_memory(tmp_path: Path, said: bool) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("masks/a.png", b"")
        archive.writestr("classes.txt", b"\n" * (64 << 20))
    if not said:  # the size that the zip states is not trusted
        content = path.read_bytes()
        size = (64 << 20).to_bytes(4, "little")
        assert size in content
        path.write_bytes(content.replace(size, (1 << 20).to_bytes(4, "little")))
    tracemalloc.start()
    with raises_code("damaged-file|file-too-large", "classes.txt"):
        open_dataset(path)
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()
