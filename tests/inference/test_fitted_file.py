"""A fitted segmenter as one file, and support encodings as named tensors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from emat import Example, Segmenter
from emat.errors import EmatError
from emat.images import Reading, Stretch
from emat.inference.decisions import ClassDecisions
from emat.inference.fitted_file import FREE, SHAPES, check_learnt, check_tensors, pack, unpack
from emat.methods.panet import FeatureSums
from emat.methods.persam import PerSAMSupport
from emat.methods.pfenet import PFENetSupport
from emat.methods.prior import SupportWithPrior
from emat.methods.prototype import Prototypes
from emat.methods.registry import build_method
from emat.methods.resnet_base import HyperFeatures
from emat.methods.trained_head import save_head, shape_metadata
from emat.methods.training_free import SupportPatches
from emat.model import Shape, SupportEncoding, build
from emat.pixel_learner.cross_validation import Learnt
from emat.tensor_files import load_safetensors, read_metadata, write_tensors
from tests.inference.colour_method import ColourMethod
from tests.methods.tiny import KINDS, tiny_method
from tests.raises import raises_code

RANDOM = np.random.default_rng(0)
PHOTO = RANDOM.integers(0, 255, (50, 70, 3), np.uint8)
ASKED = RANDOM.integers(0, 255, (40, 30, 3), np.uint8)


@pytest.fixture
def fitted(tiny_head: Path) -> Segmenter:
    examples = [
        Example(PHOTO, {"cat": (5, 5, 40, 40), "dög": (40, 0, 70, 50)}, name="a.jpg"),
        Example(PHOTO, {"cat": (0, 0, 9, 9)}),
    ]
    return Segmenter.load(tiny_head).fit(examples)


def test_a_saved_segmenter_predicts_the_same_without_its_photos(fitted: Segmenter, tmp_path: Path) -> None:
    fitted.save(tmp_path / "pets.emat")
    loaded = Segmenter.load(tmp_path / "pets.emat")
    assert loaded.classes_ == fitted.classes_ == ("cat", "dög")
    assert loaded.thresholds == fitted.thresholds
    one, other = fitted.predict(ASKED), loaded.predict(ASKED)
    assert one.scores == other.scores
    assert np.array_equal(one.label_map, other.label_map)
    assert [example.name for example in loaded.examples_] == ["a.jpg", "the array"]


def test_a_loaded_segmenter_learns_on_and_saves_again(fitted: Segmenter, tmp_path: Path) -> None:
    fitted.save(tmp_path / "pets.emat")
    loaded = Segmenter.load(tmp_path / "pets.emat").add(Example(PHOTO, {"cow": (0, 0, 30, 30)})).remove(1)
    loaded.save(tmp_path / "pets.emat")
    assert Segmenter.load(tmp_path / "pets.emat").classes_ == ("cat", "dög", "cow")


def test_thumbnails_are_kept_unless_not_wanted(fitted: Segmenter, tmp_path: Path) -> None:
    fitted.save(tmp_path / "with.emat")
    fitted.save(tmp_path / "without.emat", thumbnails=False)
    small = Segmenter.load(tmp_path / "with.emat").examples_[0].thumbnail
    assert small is not None
    assert small.photo.shape == (50, 70, 3)
    assert small.masks["cat"].sum() == 35 * 35
    assert Segmenter.load(tmp_path / "without.emat").examples_[0].thumbnail is None


def test_a_damaged_file_is_refused_in_one_sentence(fitted: Segmenter, tmp_path: Path) -> None:
    path = tmp_path / "pets.emat"
    fitted.save(path)
    content = path.read_bytes()
    for cut in (0, 5, 200, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:cut])
        with raises_code("damaged-file", "pets.emat") as caught:
            Segmenter.load(path)
        assert "\n" not in str(caught.value)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    for name, content in (("a.emat", b"hello there, I am text"), ("b.emat", b"PK\x03\x04 a zip perhaps")):
        (tmp_path / name).write_bytes(content)
        with raises_code("damaged-file", name):
            Segmenter.load(tmp_path / name)
    write_tensors(tmp_path / "c.emat", {"weight": torch.ones(3)}, {"made_by": "someone"})
    with raises_code("weights-do-not-fit"):
        Segmenter.load(tmp_path / "c.emat")


NAN = float("nan")
USUAL = {"refine": None, "smallest": 0.0}
WRONG_DECISIONS = [
    json.dumps({"classes": {"cat": USUAL, "dög": USUAL}, "tiles": None, "size": None, **change})
    for change in (
        {"classes": {"cat": {**USUAL, "smallest": 10**400}, "dög": USUAL}},
        {"classes": {"cat": {**USUAL, "smallest": float("nan")}, "dög": USUAL}},
        {"classes": {"cat": {**USUAL, "smallest": -1}, "dög": USUAL}},
        {"classes": {"cat": {**USUAL, "refine": ["auto"]}, "dög": USUAL}},
        {"classes": {"cat": USUAL}},
        {"classes": [["cat", USUAL]]},
        {"tiles": 10**400},
        {"tiles": "all"},
        {"tiles": True},
        {"size": float("inf")},
        {"size": -5},
        {"size": 10**9},
        {"overlap": ["cow"]},
        {"overlap": 7},
    )
]

NO_TILES: list[Any] = [[2, 2, 2], [-1, 2, 2], [0, 0, 2], [0, 2, 10**400], [0, 2], [0, 2, "2"], [True, 2, 2], {}]
WRONG_TILES = [json.dumps([{"name": "a.jpg", "classes": ["cat", "dög"], "tiles": [tile]}]) for tile in NO_TILES]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": "99"}, "of version 99, this emat reads version 2"),
        ({"examples": "[{"}, "is damaged"),
        ({"examples": "[]"}, "is damaged .*no examples"),
        ({"examples": json.dumps([{"name": "x", "classes": ["a"], "encodings": ["os.system"]}])}, "is damaged"),
        ({"backbone": "none-such"}, "none-such"),
        ({"image_size": "99999"}, "an image size of 99999, which is 8 to 4096"),
        ({"image_size": "-5"}, "an image size of -5"),
        ({"stretch": "sideways"}, "'sideways'"),
        ({"examples": "[" * 100_000}, "is damaged"),
        ({"examples": json.dumps([[["a"]]])}, "is damaged .*an example without a name"),
        ({"examples": json.dumps([{"name": "x", "classes": "ab", "encodings": ["a"]}])}, "the classes of 'x'"),
        ({"examples": json.dumps([{"name": "x", "classes": [["a"]], "encodings": ["a"]}])}, "the classes of 'x'"),
        ({"examples": json.dumps({"name": "x"})}, "is damaged"),
        ({"examples": json.dumps([{"name": "x", "classes": ["a\x1b[2J"]}])}, "a character that cannot be shown"),
        *(({"examples": text}, "is damaged .*tile") for text in WRONG_TILES),
        *(({"decisions": text}, "is damaged") for text in WRONG_DECISIONS),
        ({"decisions": "[" * 100_000}, "is damaged"),
        ({"channels": "7"}, "is damaged"),
    ],
)
def test_a_file_that_says_nonsense_is_refused(
    fitted: Segmenter, tmp_path: Path, change: dict[str, str], sentence: str
) -> None:
    path = tmp_path / "pets.emat"
    fitted.save(path)
    write_tensors(path, load_safetensors(path), {**read_metadata(path), **change})
    with pytest.raises(EmatError, match=sentence):
        Segmenter.load(path)


@pytest.mark.parametrize(
    ("part", "change", "sentence"),
    [
        ("cells", lambda value: value * float("nan"), "cells holds values that are not numbers"),
        ("cells", lambda value: value[0], "cells has the shape"),
        ("cells", lambda value: value[:, :5], "has the shape"),
        ("kept", lambda value: value.flatten(), "kept has the shape"),
        ("kept_later", lambda value: value + 10_000, "kept_later is not a list of tokens"),
        ("kept_later", lambda value: value.float(), "kept_later is not a list of tokens"),
        ("kept_later", lambda value: value - 10_000, "kept_later holds numbers from"),
        ("cells", lambda value: value.to(torch.int32), "cells is of torch.int32"),
        ("cells", lambda value: value.to(torch.int64), "cells is of torch.int64"),
        ("cells", lambda value: value.double(), "cells is of torch.float64"),
        ("cells", lambda value: value * 1e30, "cells holds the value"),
        ("thumbnail", lambda value: value[:3], "thumbnail"),
    ],
)
def test_tensors_that_cannot_be_are_refused_when_the_file_is_loaded(
    fitted: Segmenter, tmp_path: Path, part: str, change: Any, sentence: str
) -> None:
    path = tmp_path / "pets.emat"
    fitted.save(path)
    tensors = load_safetensors(path)
    tensors[f"example.0.0.{part}"] = change(tensors[f"example.0.0.{part}"])
    write_tensors(path, tensors, read_metadata(path))
    with pytest.raises(EmatError, match=sentence) as caught:
        Segmenter.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", ["example.0.0.cells", "example.", "learnt."])
def test_fractions_of_half_precision_are_read_too(fitted: Segmenter, tmp_path: Path, part: str) -> None:
    path = tmp_path / "pets.emat"
    fitted.save(path)
    tensors = load_safetensors(path)
    halves = {
        name: value.half() for name, value in tensors.items() if name.startswith(part) and value.is_floating_point()
    }
    write_tensors(path, {**tensors, **halves}, read_metadata(path))
    before, after = fitted.predict(ASKED).scores, Segmenter.load(path).predict(ASKED).scores
    assert after == pytest.approx(before, abs=0.01)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda value: value * 1e30, "holds the value"),
        (lambda value: value * float("inf"), "not numbers"),
        (lambda value: value.to(torch.int32), "is of torch.int32"),
        (lambda value: value.to(torch.int64), "is of torch.int64"),
    ],
)
def test_weights_of_the_head_that_cannot_be_are_refused(
    fitted: Segmenter, tmp_path: Path, change: Any, sentence: str
) -> None:
    path = tmp_path / "pets.emat"
    fitted.save(path)
    tensors = load_safetensors(path)
    name = next(name for name, value in tensors.items() if name.startswith("head.") and value.any())
    write_tensors(path, {**tensors, name: change(tensors[name])}, read_metadata(path))
    with pytest.raises(EmatError, match=sentence):
        Segmenter.load(path)


def test_what_was_learnt_has_its_ranges_too() -> None:
    good = {"spread": torch.ones(3), "presence": torch.tensor([[0.1, 0.0, 1.0], [NAN, NAN, NAN]])}
    check_learnt(good)
    for name, value, sentence in (
        ("spread", torch.zeros(3), "spread is not positive"),
        ("presence", torch.tensor([[7.0, 0.0, 1.0]]), "more than the whole photo"),
        ("presence", torch.tensor([[-1.0, 0.0, 1.0]]), "more than the whole photo"),
        ("presence", torch.tensor([[NAN, 0.0, 1.0]]), "half a rule"),
    ):
        with pytest.raises(ValueError, match=sentence):
            check_learnt({**good, name: value})


def test_to_fit_and_save_twice_gives_the_same_bytes(tiny_head: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        examples = [Example(PHOTO, {"cat": (5, 5, 40, 40)}, name="a"), Example(ASKED, {"cat": (0, 0, 9, 9)}, name="b")]
        Segmenter.load(tiny_head).fit(examples).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_how_photos_are_read_is_kept_in_the_file(tiny_head: Path, tmp_path: Path) -> None:
    reading = Reading(Stretch.read("100,900"), channels=("DAPI", "2"), project="max")
    Segmenter.load(tiny_head, reading=reading).fit([Example(PHOTO, {"cat": (5, 5, 40, 40)})]).save(tmp_path / "x.emat")
    assert Segmenter.load(tmp_path / "x.emat").reading == reading


def test_masks_that_lack_mobilesam_on_another_machine_are_announced(
    tiny_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    segmenter = Segmenter.load(tiny_head, learn=False).fit([Example(PHOTO, {"cat": (5, 5, 40, 40)})])
    assert segmenter._fit is not None
    decided = replace(segmenter.decisions_, classes={"cat": ClassDecisions("auto")})
    segmenter._fit = replace(segmenter._fit, decisions=decided)
    segmenter.save(tmp_path / "cat.emat")
    Segmenter.load(tmp_path / "cat.emat", refine="guided")
    assert "MobileSAM" not in caplog.text
    Segmenter.load(tmp_path / "cat.emat")
    assert "masks of cat follow the photo's edges" in caplog.text


def test_what_cannot_be_saved_says_so(fitted: Segmenter, tmp_path: Path) -> None:
    with raises_code("not-fitted"):
        Segmenter(fitted.method).save(tmp_path / "x.emat")
    colours = Segmenter(ColourMethod()).fit([Example(PHOTO, {"cat": (0, 0, 9, 9)})])
    with raises_code("unknown-method", "'colour'"):
        colours.save(tmp_path / "x.emat")
    (tmp_path / "file").touch()
    with raises_code("cannot-write"):
        fitted.save(tmp_path / "file" / "x.emat")


def test_a_method_that_needs_no_training_is_saved_too(tmp_path: Path) -> None:
    fitted = Segmenter.load("prototype").fit([Example(PHOTO, {"cat": (5, 5, 40, 40), "all": np.ones((50, 70), bool)})])
    fitted.save(tmp_path / "pets.emat")
    loaded = Segmenter.load(tmp_path / "pets.emat")
    assert loaded.method.name == "prototype"
    assert loaded.predict(ASKED).scores == fitted.predict(ASKED).scores


ONE, TWO = torch.rand(3), torch.rand(2, 2)
ENCODINGS = [
    SupportEncoding(ONE, TWO, torch.arange(3)),
    Prototypes(ONE, None),
    Prototypes(None, None),
    FeatureSums(ONE, TWO, ONE, TWO),
    PFENetSupport(ONE, TWO),
    HyperFeatures((ONE, TWO, ONE), torch.ones(4, 4, dtype=torch.bool)),
    HyperFeatures((ONE, TWO, ONE)),
    SupportWithPrior(ONE, TWO, ONE, ONE, None),
    SupportPatches(TWO, ONE, ONE),
    PerSAMSupport(TWO, ONE, ONE, ONE),
    Learnt(ONE, ONE, TWO, ONE, TWO, TWO, TWO, ONE),
]


@pytest.mark.parametrize("encoding", [*ENCODINGS, ONE], ids=lambda one: type(one).__name__)
def test_an_encoding_survives(encoding: Any) -> None:
    form = type(encoding)
    again = unpack(form, pack(encoding, form))
    assert type(again) is form
    assert pack(again, form).keys() == pack(encoding, form).keys()
    assert all(torch.equal(value, pack(again, form)[name]) for name, value in pack(encoding, form).items())


def test_every_kind_is_tested() -> None:
    assert {type(encoding) for encoding in ENCODINGS} == set(SHAPES)


@pytest.mark.parametrize("name", [*KINDS, "emat", "cst", "emat-prior", "prototype", "promi", "persam"])
def test_a_method_says_how_long_the_axes_of_its_encodings_are(name: str) -> None:
    method = tiny_method(name) if name in KINDS else build_method(name, image_size=64)
    lengths = method.support_lengths()
    word = "".join(word for words in SHAPES[method.support_type].values() for word in words.split("|"))
    assert set(lengths) == {letter for letter in word if letter.isalpha() and letter not in FREE}
    if name == "persam":  # it needs MobileSAM
        return
    encoding = method.encode_support(method.photo_features(PHOTO), torch.ones(50, 70))
    check_tensors(method.support_type, pack(encoding, method.support_type), dict(lengths))


@pytest.mark.parametrize(
    ("name", "axis"), [("cells", 0), ("cells", 2), ("kept", 0), ("foreground", 0), ("close_up", 0), ("close_up", 1)]
)
def test_a_file_whose_only_example_does_not_fit_its_method_is_refused(tmp_path: Path, name: str, axis: int) -> None:
    path = tmp_path / "pets.emat"
    Segmenter.load("default", refine=None).fit([Example(PHOTO, {"cat": (5, 5, 40, 40)})]).save(path)
    tensors, metadata = load_safetensors(path), read_metadata(path)
    changed = f"example.0.0.{name}"
    tensors[changed] = torch.cat([tensors[changed]] * 2, dim=axis)
    write_tensors(path, tensors, metadata)
    with raises_code("damaged-file", name):
        Segmenter.load(path)


def test_a_head_for_some_channels_of_its_backbone_has_fitted_files(tmp_path: Path) -> None:
    shape = Shape(channels=(2, 30))
    metadata = {"backbone": "efficientnet-lite2", "image_size": "64", **shape_metadata(shape)}
    save_head(tmp_path / "head.safetensors", build("emat", 28, shape).state_dict(), metadata)
    segmenter = Segmenter.load(tmp_path / "head.safetensors", learn=False).fit(
        [Example(PHOTO, {"cat": (5, 5, 40, 40)})]
    )
    segmenter.save(tmp_path / "cat.emat")
    assert Segmenter.load(tmp_path / "cat.emat").predict(ASKED).scores == segmenter.predict(ASKED).scores


def test_a_tile_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pets.emat"
    Segmenter.load("prototype", refine=None, tiles=2).fit([Example(PHOTO, {"cat": (5, 5, 40, 40)})]).save(path)
    metadata = read_metadata(path)
    listed = json.loads(metadata["examples"])
    assert listed[0]["tiles"]
    listed[0]["tiles"] *= 2
    write_tensors(path, load_safetensors(path), {**metadata, "examples": json.dumps(listed)})
    with raises_code("damaged-file", "twice"):
        Segmenter.load(path)


def test_a_missing_tensor_is_noticed() -> None:
    tensors = pack(ENCODINGS[0], SupportEncoding)
    del tensors["kept"]
    with pytest.raises(ValueError, match="no kept"):
        unpack(SupportEncoding, tensors)


def test_what_is_no_encoding_of_its_method_cannot_be_kept() -> None:
    with raises_code("broken-plugin"):
        pack(np.zeros(3), SupportEncoding)
