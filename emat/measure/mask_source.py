"""Where the masks of photos come from: files that somebody else made, or a fitted segmenter. `Region` has one class."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from emat.errors import EmatError
from emat.files import file_sha256, folder_sha256
from emat.images import Pixels, Reading
from emat.measure.mask_files import MaskFiles
from emat.measure.measuring import FindRegion
from emat.measure.scene import Mask, Scene
from emat.measure.shares import otsu_region
from emat.refine.refiner import refiner_of

if TYPE_CHECKING:
    from emat.inference.segmenter import Segmenter


@dataclass(frozen=True)
class MaskSource:
    """Finds the masks of photos.

    Attributes:
        path: The masks, or the fitted file.
        classes: The names of the classes.
        reading: How photos are read.
        touching: "split" takes objects that touch apart, "together" keeps connected pixels one object.
        scene: Returns the scene of a photo, by its name and its pixels.
        identity: What the masks depend on, beside the photo.
        smallest: What is smaller does not count, in words.
        expected: The IoU that the forecast expects of each class; None where it knows nothing. Empty if the masks were
            not predicted.
        hashes: The files that were read, and their SHA-256.
        fitted: What predicts the masks; None if they are files.
        files: The files; None if the masks are predicted.
        all_objects: Whether objects count that `fit` found too small.
    """

    path: Path
    classes: Sequence[str]
    reading: Reading
    touching: str
    scene: Callable[[str, Pixels], Scene]
    identity: str
    smallest: str = "every object counts"
    expected: Mapping[str, float | None] = field(default_factory=dict)
    hashes: Sequence[tuple[str, str]] = ()
    fitted: Segmenter | None = None
    files: MaskFiles | None = None
    all_objects: bool = False

    @classmethod
    def of_files(cls, masks: MaskFiles, reading: Reading, touching: str) -> MaskSource:
        """Take masks that somebody else drew."""

        def scene(name: str, photo: Pixels) -> Scene:
            return masks.scene(name, photo[..., :3], touching)

        return cls(masks.path, masks.classes, reading, touching, scene, content_of(masks.path), files=masks)

    @classmethod
    def of_fitted(cls, path: Path, fitted: Segmenter, touching: str, all_objects: bool) -> MaskSource:
        """Let a segmenter predict the masks; `path` is its file."""

        def scene(name: str, photo: Pixels) -> Scene:
            prediction = fitted.predict(photo)
            prediction = prediction.with_all_objects() if all_objects else prediction
            return Scene.of_prediction(prediction, name, source=path.name, touching=touching)

        forecast = fitted.forecast_
        shares = {name: one.smallest for name, one in fitted.decisions_.classes.items() if one.smallest}
        listed = ", ".join(f"{name} {100 * share:.2g} %" for name, share in shares.items())
        hashes = [(path.name, file_sha256(path))]
        return cls(
            path,
            fitted.classes_,
            fitted.reading,
            touching,
            scene,
            json.dumps([*hashes, None if fitted.refine is None else refiner_of(fitted.refine)]),
            f"a tenth of the smallest example: {listed} of the photo" if listed else "every object counts",
            {name: forecast[name].iou if name in forecast else None for name in fitted.classes_},
            hashes,
            fitted,
            all_objects=all_objects,
        )


@dataclass(frozen=True)
class Region:
    """A region that is no class, found by Otsu's threshold, read from a folder, or predicted by another file.

    Attributes:
        name: What it is called in tables.
        source: Where its masks come from.
        find: Returns its mask (H, W) on a photo, by the photo's name and its pixels.
        path: What is read for it.
        files: Its masks, if they are files.
    """

    name: str
    source: str
    find: Callable[[str, Pixels], Mask]
    path: Path | None = None
    files: MaskFiles | None = None

    @classmethod
    def read(cls, text: str, load: Callable[[Path], Segmenter]) -> Region:
        """Read what --region says.

        Args:
            text: Such as `leaf=otsu`.
            load: Loads a fitted file.

        Raises:
            EmatError: It is not a region, or its masks or its class do not exist.
        """
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise EmatError(
                "unclear-option", f"--region is {text!r}; write it as in leaf=otsu, leaf=masks/ or leaf=leaf.emat"
            )
        path = Path(value)
        if value == "otsu":
            return cls(name, "otsu", lambda _, photo: otsu_region(photo))
        if path.is_dir():
            masks = MaskFiles(path)
            return cls(name, path.name, lambda photo, _: masks.region(photo), path, masks)
        if path.suffix == ".emat":
            fitted = load(path)
            wanted = name if name in fitted.classes_ else fitted.classes_[0] if len(fitted.classes_) == 1 else None
            if wanted is None:
                raise EmatError(
                    "unknown-class", f"--region {text}: {path} has no class {name!r} but {', '.join(fitted.classes_)}"
                )
            return cls(name, path.name, lambda _, photo: fitted.predict(photo).mask(wanted), path)
        raise EmatError(
            "wrong-file-kind",
            f"--region is {text!r}, but {value} is neither otsu, nor a folder of masks, nor a fitted file",
        )

    @property
    def find_anywhere(self) -> FindRegion | None:
        """Finds it on a photo without a name, such as an example; None if its masks belong to photos by name."""
        return None if self.files is not None else lambda photo: self.find("", photo)

    @property
    def identity(self) -> str:
        """What its masks depend on, beside the photo."""
        return self.source if self.path is None else content_of(self.path)


def content_of(path: Path) -> str:
    """Return the SHA-256 of a file, or of all files in a folder."""
    return folder_sha256(path) if path.is_dir() else file_sha256(path)
