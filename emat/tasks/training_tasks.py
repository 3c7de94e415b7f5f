"""Training tasks, 1-way 1-shot, from any number of data sets whose classes are merged by name.

A task follows from (seed, epoch, index) alone, so any number of processes draws the same ones, in any order.
"""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from emat.datasets.dataset import Dataset
from emat.errors import EmatError
from emat.tasks.sampling import Queries

SAME_CLASS = {  # VOC's names and COCO's, as `class_key` writes them
    "aeroplane": "airplane",
    "motorbike": "motorcycle",
    "tvmonitor": "tv",
    "sofa": "couch",
}
POSITIVE = 0.5  # the published protocol: half of the tasks ask for the query's own class
LEAST_IMAGES = 2  # query and support


def class_key(name: str) -> str:
    """What names of one class have in common, whichever data set writes them.

    >>> class_key("Dining table") == class_key("diningtable"), class_key("sofa") == class_key("couch")
    (True, True)
    """
    plain = re.sub(r"[\s_-]", "", name.lower())
    return SAME_CLASS.get(plain, plain)


@dataclass(frozen=True)
class TrainingSource:
    """A data set and its list: photos with the class ids they may stand for."""

    dataset: Dataset
    entries: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Photo:
    """A photo by its data set's place among the sources, and its name there."""

    source: int
    name: str


@dataclass(frozen=True)
class TrainingTask:
    """Is `way` in the query, and where? The support shows it. Classes are places in `TrainingList.classes`."""

    query: Photo
    query_class: int  # the class it was drawn for, which need not be the way
    support: Photo
    way: int
    flip_query: bool = False  # left and right exchanged
    flip_support: bool = False


class TrainingList:
    """What can be drawn: the sources' entries, their classes merged by name.

    Classes in `excluded`, by any of their names, are never query or support class; where photos show them, they are
    background. A class with a single image cannot be query and support: it is left out and named in `lone`.
    """

    def __init__(self, sources: Sequence[TrainingSource], excluded: Collection[str] = ()) -> None:
        self.sources = tuple(sources)
        unwanted = {class_key(name) for name in excluded}
        names: dict[str, str] = {}  # key -> the first name met
        images: dict[str, list[Photo]] = {}
        self._mask_values: dict[tuple[int, str], int] = {}
        for place, source in enumerate(sources):
            for class_id, name in enumerate(source.dataset.classes, start=1):
                key = class_key(name)
                if self._mask_values.setdefault((place, key), class_id) != class_id:
                    raise EmatError(f"{source.dataset.root} has two classes called {name!r}; give them different names")
                names.setdefault(key, name)
            for name, class_id in source.entries:
                key = class_key(source.dataset.classes[class_id - 1])
                if key not in unwanted:
                    images.setdefault(key, []).append(Photo(place, name))
        self._keys = tuple(key for key in names if len(images.get(key, ())) >= LEAST_IMAGES)
        self.classes = tuple(names[key] for key in self._keys)
        self.lone = tuple(names[key] for key, photos in images.items() if len(photos) < LEAST_IMAGES)
        self.images_of_class = tuple(tuple(images[key]) for key in self._keys)
        if not self.classes:
            roots = ", ".join(str(source.dataset.root) for source in sources)
            raise EmatError(f"there is nothing to train on: no class has two images in {roots or 'no data set'}")

    @cached_property
    def entries(self) -> tuple[tuple[Photo, int], ...]:
        """Every photo with every class it may stand for."""
        return tuple((photo, place) for place, photos in enumerate(self.images_of_class) for photo in photos)

    @property
    def photos(self) -> tuple[Photo, ...]:
        """The different photos."""
        return tuple(dict.fromkeys(photo for photo, _ in self.entries))

    @property
    def mask_values(self) -> Sequence[Mapping[int, int]]:
        """For every class, its value in the masks of each source that has it."""
        sources = range(len(self.sources))
        values = self._mask_values
        return [{place: values[place, key] for place in sources if (place, key) in values} for key in self._keys]

    @cached_property
    def sha256(self) -> str:
        """Hash of what can be drawn, in its order."""
        lines = [f"{self.classes[c]}\t{photo.source}\t{photo.name}\n" for photo, c in self.entries]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


class TrainingTasks:
    """The tasks of a training run, drawn when asked for.

    `queries` LISTED walks all entries in an order of each epoch's own; DRAWN draws a class, then one of its images,
    so that rare classes are asked for as often as frequent ones. With `flip` each photo is mirrored half of the time.
    """

    def __init__(
        self,
        drawn_from: TrainingList,
        seed: int,
        positive: float = POSITIVE,
        queries: Queries = Queries.LISTED,
        flip: bool = False,
    ) -> None:
        if not 0 <= positive <= 1:
            raise EmatError(f"the share of positive tasks is between 0 and 1, not {positive}")
        if seed < 0:
            raise EmatError(f"a seed is 0 or more, not {seed}")
        if len(drawn_from.classes) == 1 and positive < 1:
            raise EmatError(
                f"{drawn_from.classes[0]} is the only class to train on, so there are no others to ask for in vain; "
                "add classes or set the share of positive tasks to 1"
            )
        self.drawn_from, self.seed, self.positive = drawn_from, seed, positive
        self.queries, self.flip = queries, flip
        self._order = lru_cache(maxsize=1)(self._shuffled)

    def draw(self, epoch: int, index: int) -> TrainingTask:
        """Task `index` of an epoch; any index from 0 on has one."""
        random = _random(self.seed, epoch, index)
        query, query_class = self._draw_query(epoch, index, random)
        way = query_class
        if random.random_sample() >= self.positive:
            others = len(self.drawn_from.classes) - 1
            way = (query_class + 1 + random.randint(others)) % (others + 1)
        images = self.drawn_from.images_of_class[way]
        support = query
        while support == query:
            support = images[random.randint(len(images))]
        flips = random.randint(2, size=2) if self.flip else (0, 0)
        return TrainingTask(query, query_class, support, way, bool(flips[0]), bool(flips[1]))

    def _draw_query(self, epoch: int, index: int, random: np.random.RandomState) -> tuple[Photo, int]:
        if self.queries is Queries.DRAWN:
            query_class = random.randint(len(self.drawn_from.classes))
            images = self.drawn_from.images_of_class[query_class]
            return images[random.randint(len(images))], query_class
        entries = self.drawn_from.entries
        walk, place = divmod(index, len(entries))
        return entries[self._order(epoch, walk)[place]]

    def _shuffled(self, epoch: int, walk: int) -> Sequence[int]:
        # A fourth number, other than 0, keeps these from being any task's random numbers.
        return _random(self.seed, epoch, walk, 1).permutation(len(self.drawn_from.entries)).tolist()


def _random(*numbers: int) -> np.random.RandomState:
    """NumPy's legacy generator, whose stream is promised never to change, started from all the numbers."""
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(numbers)))
