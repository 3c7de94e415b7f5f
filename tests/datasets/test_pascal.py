"""VOC trees as they are found in the wild."""

import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.datasets import Dataset, open_dataset
from emat.datasets.checking import inspect_all, report
from emat.datasets.dataset import Missing
from emat.datasets.file_tree import FileTree
from emat.datasets.pascal import PascalDataset
from emat.images import resize_mask, write_indexed_png
from tests.raises import raises_code

from .conftest import classes_in, half_mask, save_photo

Build = Callable[[str], Path]


def test_the_augmented_masks_are_preferred(build: Build) -> None:
    root = build("voc tree")
    write_indexed_png(root / "SegmentationClassAug" / "2007_000001.png", half_mask(7))
    assert classes_in(PascalDataset(root), "2007_000001") == (7,)


def test_the_tree_may_lie_below_vocdevkit(build: Build, tmp_path: Path) -> None:
    shutil.move(build("voc tree"), tmp_path / "download" / "VOCdevkit" / "VOC2012")
    dataset = PascalDataset(tmp_path / "download")
    assert dataset.image("2007_000001").shape == (6, 8, 3)


def test_a_folder_of_masks_alone_is_enough(build: Build) -> None:
    dataset = PascalDataset(build("voc tree") / "SegmentationClass")
    assert dataset.names == ("2007_000001", "2007_000002")
    assert not dataset.has_photos


def test_classes_may_be_someones_own(build: Build) -> None:
    root = build("voc tree")
    (root / "classes.txt").write_text("0 background\n1 nut\n2 bolt\n255 void\n")
    assert PascalDataset(root).classes == ("nut", "bolt")


def test_listed_names_without_mask_and_masks_without_photo_are_missing(build: Build) -> None:
    root = build("voc tree")
    (root / "JPEGImages" / "2007_000001.jpg").unlink()
    (root / "ImageSets" / "Segmentation" / "val.txt").write_text("2007_000001\n2007_000077\n")
    assert list(PascalDataset(root).missing()) == [
        Missing("photo", "2007_000001"),
        Missing("mask", "2007_000077"),
    ]


def test_masks_in_several_folders_are_not_guessed_at(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_indexed_png(tmp_path / folder / "x.png", half_mask(1))
    with raises_code("unknown-layout"):
        PascalDataset(tmp_path)


def test_a_damaged_zip_member_is_named(build: Build) -> None:
    path = build("voc zip")
    content = bytearray(path.read_bytes())
    start = content.index(b"IDAT")
    content[start : start + 30] = bytes(30)
    path.write_bytes(content)
    with raises_code("damaged-file"):
        PascalDataset(path).mask("2007_000001")


FULL, SMALL = (60, 81), (30, 40)  # 40.5 pixels were rounded down


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))


def stripes(size: tuple[int, int] = FULL) -> np.ndarray:
    """A mask of several classes and void, which no resizing but nearest neighbour leaves intact."""
    columns = np.arange(size[1]) // 7
    return np.broadcast_to(np.array([0, 3, 15, 255], np.uint8)[columns % 4], size)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("2007_000001", "2007_000002"):
        save_photo(tmp_path / "small" / "JPEGImages" / f"{name}.webp", SMALL)
    return tmp_path / "small"


@pytest.fixture
def masks(tmp_path: Path) -> Path:
    """More masks than there are photos, in a zip."""
    path = tmp_path / "masks.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("2007_000001", "2007_000002", "2007_000003"):
            write_indexed_png(tmp_path / "mask.png", stripes())
            archive.write(tmp_path / "mask.png", f"SegmentationClassAug/{name}.png")
    return path


@pytest.mark.parametrize("inside", ["", "JPEGImages"])
def test_masks_of_a_zip_are_resized_to_the_photos(photos: Path, masks: Path, inside: str) -> None:
    dataset = open_dataset(photos / inside, masks=masks)
    assert (dataset.kind, dataset.name) == ("pascal", "pascal")
    assert dataset.names == ("2007_000001", "2007_000002")
    assert dataset.image("2007_000001").shape == (*SMALL, 3)
    mask = dataset.mask("2007_000001")
    assert np.array_equal(mask, resize_mask(stripes(), SMALL))
    assert set(np.unique(mask)) == {0, 3, 15, 255}
    assert np.array_equal(pickle.loads(pickle.dumps(dataset)).mask("2007_000001"), mask)


def test_a_folder_of_masks_is_as_good_as_a_zip(photos: Path, masks: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(masks) as archive:
        archive.extractall(tmp_path / "unpacked")
    zipped = open_dataset(photos, masks=masks)
    for folder in (tmp_path / "unpacked", tmp_path / "unpacked" / "SegmentationClassAug"):
        dataset = open_dataset(photos, "pascal", masks=str(folder))
        assert np.array_equal(dataset.mask("2007_000002"), zipped.mask("2007_000002"))
        assert dataset.mask_file("2007_000002") is not None


def test_classes_and_areas_are_counted_at_full_size(photos: Path, masks: Path) -> None:
    dataset, alone = open_dataset(photos, masks=masks), open_dataset(masks)
    assert dataset.class_areas()["2007_000001"] == alone.class_areas()["2007_000001"]


def test_resizing_is_said_once_in_one_line(photos: Path, masks: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        open_dataset(photos, masks=masks).mask("2007_000001")
    (message,) = caplog.messages
    assert f"{masks} are resized to their photos" in message
    assert "2007_000001 from 81 x 60 to 40 x 30 pixels" in message


def test_masks_of_the_photos_size_stay_as_they_are(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_indexed_png(tmp_path / "same" / "2007_000001.png", stripes(SMALL))
    dataset = open_dataset(photos, masks=tmp_path / "same")
    assert np.array_equal(dataset.mask("2007_000001"), stripes(SMALL))
    assert caplog.messages == []


def other_sizes(photos: Path, masks: Path) -> Dataset:
    save_photo(photos / "JPEGImages" / "2007_000002.webp", (40, 40))
    return open_dataset(photos, masks=masks)


def test_any_other_size_is_an_error(photos: Path, masks: Path) -> None:
    dataset = other_sizes(photos, masks)
    dataset.mask("2007_000001")
    with raises_code("mask-size", "2007_000002.png", "81 x 60", "40 x 40"):
        dataset.mask("2007_000002")


def test_a_check_accepts_the_same_scale_and_nothing_else(photos: Path, masks: Path) -> None:
    dataset = open_dataset(photos, masks=masks)
    assert report(dataset, inspect_all(dataset)).clean
    dataset = other_sizes(photos, masks)
    (fault,) = [each for each in report(dataset, inspect_all(dataset)).findings if each.fault]
    assert (fault.kind, fault.count) == ("mask of another size", 1)


def test_what_does_not_belong_together_is_refused(photos: Path, masks: Path, tmp_path: Path) -> None:
    with raises_code("conflicting-options", "coco"):
        open_dataset(photos, "coco", masks)
    with raises_code("no-such-file"):
        open_dataset(photos, masks=tmp_path / "nowhere.zip")
    save_photo(tmp_path / "others" / "holiday.jpg")
    with raises_code("names-do-not-match", "others", "masks.zip", "holiday", "2007_000001"):
        open_dataset(tmp_path / "others", masks=masks)
    save_photo(tmp_path / "others" / "more" / "holiday.jpg")
    with raises_code("unknown-layout"):
        open_dataset(tmp_path / "others", masks=masks)


def test_opening_reads_few_files(photos: Path, masks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3, 40):
        Image.new("RGB", (SMALL[1], SMALL[0])).save(photos / "JPEGImages" / f"2007_{number:06}.webp")
    read: list[str] = []
    source = FileTree.source

    def counted(tree: FileTree, path: str) -> Path | bytes:
        read.append(path)
        return source(tree, path)

    monkeypatch.setattr(FileTree, "source", counted)
    open_dataset(photos, masks=masks)
    assert len(read) <= 6


def test_all_of_pascal_opens_with_its_full_size_masks(shared: Path) -> None:
    if not (shared / "data" / "pascal").is_dir():
        pytest.skip("the photos of PASCAL-5i are not there")
    dataset = open_dataset(shared / "data" / "pascal", masks=shared / "data" / "voc2012-masks.zip")
    assert len(dataset.names) == 12031
    for name in dataset.names[::1000]:
        assert dataset.mask(name).shape == dataset.image_size(name)
