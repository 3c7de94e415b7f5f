"""The picture of docs/own-photos.md: a photo of nuclei by the head alone and with what five examples taught.

    python docs/nuclei_picture.py NUCLEI docs/images/own-photos-nuclei.jpg

NUCLEI is a VOC-like folder with the class "fluorescent nucleus", such as one made from the public domain photos of the
2018 Data Science Bowl.
"""

import sys
from pathlib import Path

from PIL import Image

from emat import Example, Segmenter
from emat.datasets.layouts import open_dataset

CLASS, EXAMPLES, SIDE = "fluorescent nucleus", 5, 300


def main(root: Path, out: Path) -> None:
    """Fit twice, predict the next photo, and put photo and answers side by side."""
    dataset = open_dataset(root)
    number = 1 + list(dataset.classes).index(CLASS)
    names = [name for name, classes in dataset.class_areas().of(dataset.names) if number in classes][: EXAMPLES + 1]
    shown = [Example(dataset.image(name), {CLASS: dataset.mask(name) == number}, name=name) for name in names[:-1]]
    photo = dataset.image(names[-1])
    pictures = [Image.fromarray(photo)]
    for learn in (False, True):
        pictures.append(Segmenter.load("default", learn=learn).fit(shown).predict(photo).overlay())
    joined = Image.new("RGB", (SIDE * len(pictures) + 8 * (len(pictures) - 1), SIDE), "white")
    for index, picture in enumerate(pictures):
        joined.paste(picture.convert("RGB").resize((SIDE, SIDE)), ((SIDE + 8) * index, 0))
    joined.save(out, quality=88)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
