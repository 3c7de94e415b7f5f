import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from emat.datasets import open_dataset
from emat.datasets.fold_lists import fold_classes
from emat.features import FeatureCache
from emat.formats.class_names import VOC_CLASSES
from emat.images import Pixels, write_indexed_png
from emat.methods.base import Method
from emat.methods.registry import build_method
from emat.model.encoding import support_mask
from emat.tasks.task import Queries
from emat.tasks.training_tasks import SourcePhoto, TrainingList, TrainingSource, TrainingTask
from emat.training.data import TaskTensors, open_run_data, shrink
from emat.training.options import TrainingOptions
from tests.raises import raises_code
from tests.training.tiny import CLASSES, tiny_dataset, tiny_options


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photos of each of VOC's classes, and lists as they circulate: two for training, one and two for val."""
    root = tmp_path_factory.mktemp("voc")
    for class_id in range(1, 21):
        for photo in range(4):
            name = f"2007_{class_id:02d}{photo:04d}"
            mask = np.zeros((6, 8), np.uint8)
            mask[:, :4] = class_id
            write_indexed_png(root / "SegmentationClass" / f"{name}.png", mask)
            (root / "JPEGImages").mkdir(exist_ok=True)
            Image.new("RGB", (8, 6)).save(root / "JPEGImages" / f"{name}.jpg")
            split = "trn" if photo < 2 else "val"
            lists = root / "lists" / "pascal" / split
            lists.mkdir(parents=True, exist_ok=True)
            with (lists / f"fold{(class_id - 1) // 5}.txt").open("a") as file:
                file.write(f"{name}__{class_id:02d}\n")
    return root


def test_a_pascal_fold_trains_on_the_other_folds_lists(voc: Path) -> None:
    data = open_run_data(TrainingOptions(data=(voc,), lists=voc / "lists", fold=1))
    drawn_from = data.tasks.drawn_from
    assert set(drawn_from.classes) == set(VOC_CLASSES) - {VOC_CLASSES[c - 1] for c in fold_classes("pascal", 1)}
    assert len(drawn_from.entries) == 15 * 2
    assert data.tasks.queries is Queries.LISTED
    assert data.validation is not None
    assert data.validation.sampler.class_ids == (6, 7, 8, 9, 10)
    trained = {photo.name for photo in drawn_from.photos}
    assert trained.isdisjoint(image for task in data.validation.sampler for image in task.photos)


def test_lists_that_name_other_photos_are_reported(voc: Path, fold_lists: Path) -> None:
    with raises_code("no-such-mask"):
        open_run_data(TrainingOptions(data=(voc,), lists=fold_lists, fold=0))


def test_the_fold_is_left_out_of_every_data_set(tiny: Path, tmp_path: Path) -> None:
    other = tiny_dataset(tmp_path / "other", ("Bee", "c-a-t", "yak"))
    data = open_run_data(TrainingOptions(data=(tiny, other), fold=0))
    assert data.tasks.drawn_from.classes == ("cat", "dog", "elk", "fox", "gnu", "hen", "yak")
    assert len(data.tasks.drawn_from.photos_of_class[0]) == 12
    assert data.tasks.queries is Queries.DRAWN
    assert data.validation is not None
    assert data.validation.sampler.class_ids == (1, 2)


def test_names_restrict_their_data_set_and_leave_the_rest_for_validation(tiny: Path, tmp_path: Path) -> None:
    train = tmp_path / "train.txt"
    train.write_text("".join(f"{name}{k}\n" for name in ("ant", "bee", "cat", "dog", "hen") for k in (0, 1)))
    data = open_run_data(TrainingOptions(data=(tiny,), names=(train,)))
    assert {photo.name[-1] for photo in data.tasks.drawn_from.photos} == {"0", "1"}
    assert data.validation is not None
    held_out = {image for task in data.validation.sampler for image in task.photos}
    assert held_out.isdisjoint(train.read_text().split())


def test_data_sets_with_the_same_photo_names_have_a_list_each_in_their_order(tiny: Path, tmp_path: Path) -> None:
    twin = tiny_dataset(tmp_path / "twin")
    lists = [tmp_path / f"{number}.txt" for number in (0, 1)]
    for number, file in enumerate(lists):
        file.write_text("".join(f"{name}{k}\n" for name in CLASSES for k in (0, number + 1)))
    data = open_run_data(TrainingOptions(data=(tiny, twin), names=tuple(lists)))
    drawn = {(photo.source, photo.name[-1]) for photo in data.tasks.drawn_from.photos}
    assert drawn == {(0, "0"), (0, "1"), (1, "0"), (1, "2")}
    with raises_code("names-do-not-match", "0.txt"):
        open_run_data(TrainingOptions(data=(tiny, twin), names=(lists[0],)))


def test_two_lists_of_one_data_set_are_refused(tiny: Path, tmp_path: Path) -> None:
    other = tiny_dataset(tmp_path / "other", ("yak", "zebu"))
    lists = [tmp_path / f"{number}.txt" for number in (0, 1)]
    for number, file in enumerate(lists):
        file.write_text(f"ant{number}\n")
    with raises_code("names-do-not-match", "tiny"):
        open_run_data(TrainingOptions(data=(tiny, other), names=tuple(lists)))


def test_names_restrict_published_lists_too(voc: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("".join(f"2007_{class_id:02d}{photo:04d}\n" for class_id in (1, 2) for photo in range(4)))
    data = open_run_data(TrainingOptions(data=(voc,), lists=voc / "lists", fold=1, names=(names,)))
    assert data.tasks.drawn_from.classes == VOC_CLASSES[:2]
    assert len(data.tasks.drawn_from.entries) == 4


def test_the_folds_classes_are_found_in_another_data_set_by_any_of_their_names(voc: Path, tmp_path: Path) -> None:
    other = tiny_dataset(tmp_path / "other", ("airplane", "bicycle", "yak"))
    data = open_run_data(TrainingOptions(data=(voc,), lists=voc / "lists", fold=0, val_data=other))
    assert data.validation is not None
    assert data.validation.sampler.class_ids == (1, 2)


def test_without_fold_or_held_out_photos_there_is_no_validation(tiny: Path) -> None:
    assert open_run_data(TrainingOptions(data=(tiny,))).validation is None


def test_validation_photos_can_be_named(tiny: Path, tmp_path: Path) -> None:
    val = tmp_path / "val.txt"
    val.write_text("ant0\nant1\nbee0\nhen0\n")
    data = open_run_data(TrainingOptions(data=(tiny,), fold=0, val_names=val, val_tasks=20))
    assert data.validation is not None
    assert {image for task in data.validation.sampler for image in task.photos} <= {"ant0", "ant1", "bee0", "hen0"}


@pytest.mark.parametrize(("min_area", "entries"), [(0.0, 48), (0.5, 0)])
def test_objects_below_the_least_area_are_not_asked_for(tiny: Path, min_area: float, entries: int) -> None:
    options = TrainingOptions(data=(tiny,), min_area=min_area)
    if not entries:
        with raises_code("too-few-photos"):
            open_run_data(options)
    else:
        assert len(open_run_data(options).tasks.drawn_from.entries) == entries


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"data": ()}, "missing-option"),
        ({"fold": 9}, "unknown-fold"),
        ({"exclude_classes": ("unicorn",)}, "unknown-class"),
        ({"names": ("strangers.txt",)}, "names-do-not-match"),
        ({"names": ("empty.txt",)}, "empty-list"),
        ({"fold": 0, "val_names": "lone.txt"}, "too-few-photos"),
    ],
)
def test_what_does_not_fit_is_reported_before_training(
    changes: dict[str, object], code: str, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "strangers.txt").write_text("ant0\nnobody\n")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "lone.txt").write_text("fox0\n")
    if "names" in changes:
        changes = {**changes, "names": tuple(tmp_path / str(name) for name in changes["names"])}  # type: ignore[attr-defined]
    if "val_names" in changes:
        changes = {**changes, "val_names": tmp_path / str(changes["val_names"])}
    with raises_code(code):
        open_run_data(TrainingOptions(**{"data": (tiny,), **changes}))  # type: ignore[arg-type]


@pytest.mark.parametrize("given_as", ["data", "val_data"])
def test_masks_alone_are_refused(given_as: str, tiny: Path, tmp_path: Path) -> None:
    alone = tiny_dataset(tmp_path / "alone")
    shutil.rmtree(alone / "images")
    options = TrainingOptions(data=(alone,)) if given_as == "data" else TrainingOptions(data=(tiny,), val_data=alone)
    with raises_code("no-photos", "alone"):
        open_run_data(options)


@pytest.mark.parametrize("photo", ["2007_010000", "2007_060002"])
def test_a_listed_photo_that_is_missing_is_reported_before_training(photo: str, voc: Path, tmp_path: Path) -> None:
    shutil.copytree(voc, tmp_path / "voc")
    (tmp_path / "voc" / "JPEGImages" / f"{photo}.jpg").unlink()
    with raises_code("no-such-photo", photo):
        open_run_data(TrainingOptions(data=(tmp_path / "voc",), lists=voc / "lists", fold=1))
    with raises_code("no-such-photo", photo):
        open_run_data(TrainingOptions(data=(tmp_path / "voc",), fold=1))


def test_slips_that_would_train_something_else_are_reported(tiny: Path) -> None:
    for changes, code in (
        ({"dataset": "pascl"}, "unknown-choice"),
        ({"data": (tiny, tiny)}, "given-twice"),
        ({"fold": None, "folds": "3"}, "missing-option"),
    ):
        with raises_code(code):
            open_run_data(replace(tiny_options(tiny, tiny / "run"), **changes))


@pytest.fixture(scope="module")
def method() -> Method:
    return build_method("emat", image_size=64, device="cpu")


@pytest.fixture
def drawn_from(tiny: Path) -> TrainingList:
    dataset = open_dataset(tiny)
    areas = dataset.class_areas().of(dataset.names)
    return TrainingList([TrainingSource(dataset, tuple((name, c) for name, classes in areas for c in classes))])


def test_masks_are_the_ways_own_pixels(method: Method, drawn_from: TrainingList) -> None:
    tensors = TaskTensors(method, drawn_from, FeatureCache(method, memory_bytes=10**8), mask_size=32)
    ant, elk = SourcePhoto(0, "ant0"), SourcePhoto(0, "elk0")
    batch = tensors.batch([TrainingTask(ant, 0, SourcePhoto(0, "ant1"), 0), TrainingTask(ant, 0, elk, 4)])
    assert batch.query_masks.shape == (2, 32, 32)
    assert [bool(mask.any()) for mask in batch.query_masks] == [True, False]
    assert all(mask.shape == (64, 64) and mask.any() for mask in batch.support_masks)
    assert set(batch.query_masks.unique().tolist()) == {0, 1}
    rows, columns = np.nonzero(batch.query_masks[0].numpy())
    assert columns.max() < 16
    assert rows.min() >= 4


def test_a_support_is_trained_with_the_mask_of_an_evaluation(method: Method, drawn_from: TrainingList) -> None:
    tensors = TaskTensors(method, drawn_from, FeatureCache(method, memory_bytes=10**8), mask_size=32)
    batch = tensors.batch([TrainingTask(SourcePhoto(0, "ant0"), 0, SourcePhoto(0, "ant1"), 0)])
    whole = torch.from_numpy(drawn_from.sources[0].dataset.mask("ant1") == 1)
    assert whole.shape != (64, 64)
    assert torch.equal(batch.support_masks[0], support_mask(whole, 64))
    trained, tested = (method.encode_support(batch.supports[0], mask) for mask in (batch.support_masks[0], whole))
    assert torch.equal(trained.kept, tested.kept)
    assert torch.equal(trained.kept_later, tested.kept_later)


def test_a_mirrored_photo_has_its_mask_mirrored(method: Method, drawn_from: TrainingList) -> None:
    tensors = TaskTensors(method, drawn_from, FeatureCache(method, memory_bytes=10**8), mask_size=32)
    ant, bee = SourcePhoto(0, "ant0"), SourcePhoto(0, "ant1")
    plain = tensors.batch([TrainingTask(ant, 0, bee, 0)])
    mirrored = tensors.batch([TrainingTask(ant, 0, bee, 0, flip_query=True, flip_support=True)])
    assert torch.equal(mirrored.query_masks, plain.query_masks.flip(2))
    assert torch.equal(mirrored.support_masks[0], plain.support_masks[0].flip(1))
    assert not torch.equal(mirrored.queries[0].tensors[0], plain.queries[0].tensors[0])


def test_photos_are_read_once(method: Method, drawn_from: TrainingList) -> None:
    cache = FeatureCache(method, memory_bytes=10**8)
    tensors = TaskTensors(method, drawn_from, cache, mask_size=32)
    task = TrainingTask(SourcePhoto(0, "ant0"), 0, SourcePhoto(0, "ant1"), 0)
    first = tensors.batch([task])
    second = tensors.batch([task])
    assert cache.counts.misses == 2
    assert torch.equal(first.query_masks, second.query_masks)


def test_without_a_cache_features_are_the_same(method: Method, drawn_from: TrainingList) -> None:
    task = TrainingTask(SourcePhoto(0, "ant0"), 0, SourcePhoto(0, "ant1"), 0)
    kept = TaskTensors(method, drawn_from, FeatureCache(method, memory_bytes=10**8), 32).batch([task])
    anew = TaskTensors(method, drawn_from, None, 32).batch([task])
    torch.testing.assert_close(anew.queries[0].tensors[0], kept.queries[0].tensors[0], atol=0.3, rtol=0.1)


def test_a_mirrored_photo_has_the_mirrored_features_and_is_encoded_once(
    method: Method, drawn_from: TrainingList
) -> None:
    tasks = [
        TrainingTask(SourcePhoto(0, "ant0"), 0, SourcePhoto(0, "ant1"), 0, flip_query=flip) for flip in (False, True)
    ]
    cache = FeatureCache(method, memory_bytes=10**8)
    batch = TaskTensors(method, drawn_from, cache, 32).batch(tasks)
    plain, mirrored = (query.tensors for query in batch.queries)
    assert all(torch.equal(one.flip(2), other) for one, other in zip(plain, mirrored, strict=True))
    assert torch.equal(batch.query_masks[0].flip(1), batch.query_masks[1])
    assert cache.counts.misses == 2


def test_a_class_that_is_kept_takes_no_other_class_s_last_pixel() -> None:
    mask = np.zeros((90, 90), np.uint8)
    mask[45, 45], mask[40, 40], mask[40, 41] = 1, 2, 3  # all in the middle of nine cells, where 1 is seen
    assert np.unique(shrink(mask, 3)).tolist() == [0, 1]
    mask[31, 61] = 2
    assert shrink(mask, 3).tolist() == [[0, 0, 0], [0, 1, 2], [0, 0, 0]]


@settings(max_examples=60)
@given(arrays(np.uint8, st.tuples(st.integers(1, 20), st.integers(1, 20)), elements=st.sampled_from([0, 1, 255])))
def test_no_class_appears_and_none_is_lost_where_there_is_room(mask: Pixels) -> None:
    small = shrink(mask, 8)
    assert small.shape == (8, 8)
    assert set(np.unique(small)) <= set(np.unique(mask))
    assert (1 in small) == (1 in mask)
