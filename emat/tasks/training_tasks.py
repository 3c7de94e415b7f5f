"""Training tasks, 1-way 1-shot, drawn from any number of data sets whose classes are merged by name.

Every task follows from (seed, epoch, index) alone, so any number of processes draw the same tasks in any order.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import numpy as np

from emat.datasets.dataset import Dataset
from emat.errors import EmatError
from emat.tasks.task import Queries

SAME_CLASS = {  # the names of VOC and of COCO for the same class, as `class_key` writes them
    "aeroplane": "airplane",
    "motorbike": "motorcycle",
    "tvmonitor": "tv",
    "sofa": "couch",
}
POSITIVE = 0.5  # published protocol: half of the tasks ask for the class that the query was drawn for
LEAST_PHOTOS = 2  # one for the query and one for the support


def class_key(name: str) -> str:
    """Return a key that the names of one class share, whichever data set they are from.

    >>> class_key("Dining table") == class_key("diningtable"), class_key("sofa") == class_key("couch")
    (True, True)
    """
    plain = re.sub(r"[\s_-]", "", name.lower())
    return SAME_CLASS.get(plain, plain)


@dataclass(frozen=True)
class TrainingSource:
    """A data set and its list: photos, each with the id of a class that it may be drawn for."""

    dataset: Dataset
    entries: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class SourcePhoto:
    """A photo, given by the index of its data set among the sources and by its name in it."""

    source: int
    name: str


@dataclass(frozen=True)
class TrainingTask:
    """A 1-way 1-shot task: is the class `way`, which the support shows, in the query, and where?

    Classes are indices into `TrainingList.classes`.
    """

    query: SourcePhoto
    query_class: int  # the class that the query was drawn for; it need not be the way
    support: SourcePhoto
    way: int
    flip_query: bool = False  # mirror the photo
    flip_support: bool = False


class TrainingList:
    """The photos and classes that tasks are drawn from: the entries of all sources, with classes merged by name.

    Classes in `excluded`, under any of their names, are never drawn for a query or a support, but photos may show them
    as background. A class with a single photo is left out and listed in `lone`, because a task needs two photos of it.
    """

    def __init__(self, sources: Sequence[TrainingSource], excluded: Collection[str] = ()) -> None:
        self.sources = tuple(sources)
        unwanted = {class_key(name) for name in excluded}
        names: dict[str, str] = {}  # by key, the first name that was found
        photos_of: dict[str, list[SourcePhoto]] = {}
        self._mask_values: dict[tuple[int, str], int] = {}
        for index, source in enumerate(sources):
            for class_id, name in enumerate(source.dataset.classes, start=1):
                key = class_key(name)
                if self._mask_values.setdefault((index, key), class_id) != class_id:
                    raise EmatError(
                        "given-twice",
                        f"{source.dataset.root} has two classes called {name!r}; give them different names",
                    )
                names.setdefault(key, name)
            for name, class_id in source.entries:
                key = class_key(source.dataset.classes[class_id - 1])
                if key not in unwanted:
                    photos_of.setdefault(key, []).append(SourcePhoto(index, name))
        self._keys = tuple(key for key in names if len(photos_of.get(key, ())) >= LEAST_PHOTOS)
        self.classes = tuple(names[key] for key in self._keys)
        self.lone = tuple(names[key] for key, photos in photos_of.items() if len(photos) < LEAST_PHOTOS)
        self.photos_of_class = tuple(tuple(photos_of[key]) for key in self._keys)
        if not self.classes:
            roots = ", ".join(str(source.dataset.root) for source in sources)
            raise EmatError(
                "too-few-photos", f"there is nothing to train on: no class has two photos in {roots or 'any data set'}"
            )

    @cached_property
    def entries(self) -> tuple[tuple[SourcePhoto, int], ...]:
        """Every photo with every class that it may be drawn for."""
        return tuple((photo, index) for index, photos in enumerate(self.photos_of_class) for photo in photos)

    @property
    def photos(self) -> tuple[SourcePhoto, ...]:
        """The different photos."""
        return tuple(dict.fromkeys(photo for photo, _ in self.entries))

    @property
    def mask_values(self) -> Sequence[Mapping[int, int]]:
        """For every class, its value in the masks of each source that has the class."""
        sources = range(len(self.sources))
        values = self._mask_values
        return [{index: values[index, key] for index in sources if (index, key) in values} for key in self._keys]

    @cached_property
    def sha256(self) -> str:
        """The hash of all photos and classes that can be drawn, in their order."""
        lines = [f"{self.classes[c]}\t{photo.source}\t{photo.name}\n" for photo, c in self.entries]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @cached_property
    def files_state(self) -> str:
        """A hash that changes when a file of these photos or of their masks changes, also if it is only copied."""
        names: dict[int, list[str]] = {}
        for photo in self.photos:
            names.setdefault(photo.source, []).append(photo.name)
        states = [self.sources[index].dataset.state(own) for index, own in sorted(names.items())]
        return hashlib.sha256("".join(states).encode()).hexdigest()


class TrainingTasks:
    """The tasks of a training run, drawn when they are asked for.

    Args:
        drawn_from: The photos and classes to draw from.
        seed: All tasks follow from it.
        positive: The share of tasks that ask for the class that the query was drawn for.
        queries: LISTED goes through all entries, in another order in each epoch. DRAWN draws a class and then one of
            its photos, so that rare classes are drawn as often as frequent ones.
        flip: Mirror each photo half of the time.

    Raises:
        EmatError: If a value is out of range, or if there is one class only and negative tasks are wanted.
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
            raise EmatError("bad-number", f"the share of positive tasks is {positive}; it must be between 0 and 1")
        if seed < 0:
            raise EmatError("bad-number", f"the seed is {seed}; it must be 0 or more")
        if len(drawn_from.classes) == 1 and positive < 1:
            raise EmatError(
                "too-few-photos",
                f"{drawn_from.classes[0]} is the only class to train on, "
                "so there is no other class for negative tasks; add classes or set the share of positive tasks to 1",
            )
        self.drawn_from, self.seed, self.positive = drawn_from, seed, positive
        self.queries, self.flip = queries, flip
        self._order = lru_cache(maxsize=1)(self._shuffled)
        self._classes_of_source: defaultdict[int, set[int]] = defaultdict(set)
        for photo, class_index in drawn_from.entries:
            self._classes_of_source[photo.source].add(class_index)
        self._others = cache(self._absent_classes)

    def draw(self, epoch: int, index: int) -> TrainingTask:
        """Draw task `index` of an epoch; the index may be any number from 0 on."""
        random = _random(self.seed, epoch, index)
        query, query_class = self._draw_query(epoch, index, random)
        way = query_class
        if random.random_sample() >= self.positive:
            others = self._others(query.source, query_class)
            way = others[random.randint(len(others))]
        photos = self.drawn_from.photos_of_class[way]
        support = query
        while support == query:
            support = photos[random.randint(len(photos))]
        flips = random.randint(2, size=2) if self.flip else (0, 0)
        return TrainingTask(query, query_class, support, way, bool(flips[0]), bool(flips[1]))

    def _absent_classes(self, source: int, query_class: int) -> list[int]:
        """Return the classes for negative tasks: those that the query's own data set has photos of, if there are any.

        The photos of another data set look different. A network would learn to recognise the data set and not that the
        class is absent.
        """
        count = len(self.drawn_from.classes)
        others = [(query_class + offset) % count for offset in range(1, count)]
        return [other for other in others if other in self._classes_of_source[source]] or others

    def _draw_query(self, epoch: int, index: int, random: np.random.RandomState) -> tuple[SourcePhoto, int]:
        if self.queries is Queries.DRAWN:
            query_class = random.randint(len(self.drawn_from.classes))
            photos = self.drawn_from.photos_of_class[query_class]
            return photos[random.randint(len(photos))], query_class
        entries = self.drawn_from.entries
        walk, position = divmod(index, len(entries))
        return entries[self._order(epoch, walk)[position]]

    def _shuffled(self, epoch: int, walk: int) -> Sequence[int]:
        # The fourth number keeps these random numbers apart from those of every task.
        return _random(self.seed, epoch, walk, 1).permutation(len(self.drawn_from.entries)).tolist()


def _random(*numbers: int) -> np.random.RandomState:
    """Return NumPy's legacy generator, whose stream is promised never to change, seeded with all the numbers."""
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(numbers)))
