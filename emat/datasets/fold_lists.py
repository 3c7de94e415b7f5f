"""Fold lists: which photos stand for which class in a fold of a data set.

Lists are read from files by `fold_files`, or made here from the masks of a data set, whose classes are divided into
folds evenly or as the user says. Class ids start at 1 as in the masks. The SHA-256 of a list is computed from its
entries, so it is the same in all file formats. The table at the end has the hashes of the published lists.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from emat.datasets.dataset import Dataset
from emat.errors import EmatError
from emat.files import read_text
from emat.formats.class_names import VOID_NAME

PASCAL_CLASS_COUNT, COCO_CLASS_COUNT, FOLDS = 20, 80, 4
PUBLISHED_DATASETS = ("pascal", "coco")  # data sets with published folds


@dataclass(frozen=True)
class FoldList:
    """The photos of one fold, each with the class that it stands for.

    The published training lists differ: the list `fold0` of PASCAL has the classes of fold 0, that of COCO has the
    classes of the three other folds. `class_ids` says which classes a list has.

    Attributes:
        dataset: The name of the data set.
        fold: The fold, from 0.
        split: "train", "val" or a range of object sizes such as "0-5".
        entries: Pairs of photo name and class id, in the order of the file.
        class_ids: The classes of the list; one without photos may be among them.

    Raises:
        EmatError: An entry has another class, occurs twice, or has a name that is not a relative path.

    >>> animals = FoldList("pets", 0, "val", (("a", 1), ("b", 2), ("c", 1)), (1, 2))
    >>> animals.photos_of_class[1]
    ('a', 'c')
    >>> animals.counts
    {1: 2, 2: 1}
    """

    dataset: str
    fold: int
    split: str
    entries: tuple[tuple[str, int], ...]
    class_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        where = f"the {self.split} list of {self.dataset} fold {self.fold}"
        strangers = {class_id for _, class_id in self.entries} - set(self.class_ids)
        if strangers:
            raise EmatError(
                f"{where} has class {min(strangers)}, which is not one of its classes {spaced(self.class_ids)}; "
                "check the data set and the fold"
            )
        if len(set(self.entries)) != len(self.entries):
            (name, class_id), times = Counter(self.entries).most_common(1)[0]
            raise EmatError(f"{where} has {name} with class {class_id} {times} times; keep one of these entries")
        for name in {name for name, _ in self.entries}:
            if not _is_safe_name(name):
                raise EmatError(f"{where} has the name {name!r}; a name is a relative path without '..' or tabs")

    @cached_property
    def photos_of_class(self) -> Mapping[int, tuple[str, ...]]:
        """The photo names of every class id, in the order of the file; empty for a class without photos."""
        names_of: dict[int, list[str]] = {class_id: [] for class_id in self.class_ids}
        for name, class_id in self.entries:
            names_of[class_id].append(name)
        return {class_id: tuple(names) for class_id, names in names_of.items()}

    @property
    def counts(self) -> dict[int, int]:
        """The number of entries of every class id."""
        return {class_id: len(names) for class_id, names in self.photos_of_class.items()}

    @property
    def photos(self) -> int:
        """The number of different photos."""
        return len({name for name, _ in self.entries})

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the entries in their order, the same for every file format."""
        return hashlib.sha256(entry_lines(self.entries).encode()).hexdigest()


def fold_classes(dataset: str, fold: int) -> tuple[int, ...]:
    """Return the test classes of a published fold: five consecutive ones of "pascal", every fourth of "coco".

    Args:
        dataset: "pascal" or "coco".
        fold: The fold, 0 to 3.

    Raises:
        EmatError: There is no such fold, or the data set has no published folds.

    >>> fold_classes("pascal", 1)
    (6, 7, 8, 9, 10)
    >>> fold_classes("coco", 1)[:4]
    (2, 6, 10, 14)
    """
    if not 0 <= fold < FOLDS:
        raise EmatError(f"{dataset} has folds 0 to {FOLDS - 1}, not {fold}")
    if dataset == "pascal":
        return even_folds(PASCAL_CLASS_COUNT, FOLDS)[fold]
    if dataset == "coco":
        return tuple(range(fold + 1, COCO_CLASS_COUNT + 1, FOLDS))
    raise EmatError(f"published folds are known for pascal and coco, not for {dataset}; make lists from its masks")


def even_folds(classes: int, folds: int = FOLDS) -> tuple[tuple[int, ...], ...]:
    """Divide the class ids 1 to `classes` into `folds` consecutive ranges whose lengths differ by at most one.

    >>> even_folds(5, 2)
    ((1, 2, 3), (4, 5))
    """
    if not 1 <= folds <= classes:
        raise EmatError(f"{classes} classes cannot be divided into {folds} folds; choose 1 to {classes} folds")
    short, longer = divmod(classes, folds)
    starts = [fold * short + min(fold, longer) + 1 for fold in range(folds + 1)]
    return tuple(tuple(range(start, end)) for start, end in pairwise(starts))


def fold_list_from_areas(
    dataset: str,
    fold: int,
    split: str,
    class_ids: Sequence[int],
    areas: Iterable[tuple[str, Mapping[int, float]]],
    minimum_area: float = 0.0,
) -> FoldList:
    """Make a fold list from the areas of classes in masks.

    Args:
        dataset: The name of the data set.
        fold: The fold.
        split: The name of the split.
        class_ids: The classes of the fold.
        areas: The names of photos, each with the fraction of the photo that every class covers.
        minimum_area: A photo stands for each class that covers more than this fraction of it.

    Returns:
        The fold list.

    >>> areas = [("a", {1: 0.2, 2: 0.001}), ("b", {2: 0.4, 3: 0.1})]
    >>> fold_list_from_areas("pets", 0, "val", [1, 2], areas, minimum_area=0.01).entries
    (('a', 1), ('b', 2))
    """
    wanted = sorted(class_ids)
    entries = [
        (name, class_id)
        for name, fractions in areas
        for class_id in wanted
        if fractions.get(class_id, 0.0) > minimum_area
    ]
    return FoldList(dataset, fold, split, tuple(entries), tuple(wanted))


def entry_lines(entries: Iterable[tuple[str, int]]) -> str:
    """Return the entries as lines of text. The SHA-256 of a list is computed from them."""
    return "".join(f"{name}\t{class_id}\n" for name, class_id in entries)


def spaced(numbers: Iterable[int]) -> str:
    """Return the numbers as text, separated by spaces."""
    return " ".join(map(str, numbers))


def _is_safe_name(name: str) -> bool:
    parts = name.split("/")
    return bool(name) and ".." not in parts and parts[0] != "" and not any(c in name for c in "\\\t\r\n\0")


def folds_by_name(classes: Sequence[str], names: Sequence[Sequence[str]]) -> tuple[tuple[int, ...], ...]:
    """Return the class indices of each fold, given the names of its classes.

    Args:
        classes: The names of all classes, in the order of their indices.
        names: The names of the classes of each fold.

    Raises:
        EmatError: A fold is empty, a name is unknown, or a class is in two folds.

    >>> folds_by_name(["ant", "bee", "cat"], [["cat"], ["ant", "bee"]])
    ((3,), (1, 2))
    """
    index = {name: number for number, name in enumerate(classes, start=1) if name != VOID_NAME}
    seen: dict[str, int] = {}
    for fold, members in enumerate(names):
        if not members:
            raise EmatError(f"fold {fold} has no class; name at least one")
        for name in members:
            if name not in index:
                raise EmatError(
                    f"fold {fold} has the class {name!r}, which is not in the data set; it has {_some(classes)}"
                )
            if name in seen:
                raise EmatError(f"the class {name!r} is in folds {seen[name]} and {fold}; leave it in one of them")
            seen[name] = fold
    return tuple(tuple(sorted(index[name] for name in members)) for members in names)


def read_folds(path: Path, classes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Read the class indices of each fold from a text file: one fold on each line, class names separated by commas."""
    lines = [line.partition("#")[0].strip() for line in read_text(path).splitlines()]
    names = [[name.strip() for name in line.split(",") if name.strip()] for line in lines if line]
    if not names:
        raise EmatError(f"{path} has no fold; write one fold on each line, class names separated by commas")
    return folds_by_name(classes, names)


def split_evenly(classes: Sequence[str], folds: int) -> tuple[tuple[int, ...], ...]:
    """Divide the classes into `folds` consecutive parts whose lengths differ by at most one.

    >>> split_evenly(["ant", "bee", "cat"], 2)
    ((1, 2), (3,))
    """
    indices = [number for number, name in enumerate(classes, start=1) if name != VOID_NAME]
    return tuple(tuple(indices[number - 1] for number in fold) for fold in even_folds(len(indices), folds))


def _some(classes: Sequence[str]) -> str:
    return ", ".join(classes[:8]) + (" ..." if len(classes) > 8 else "")


def lists_from_masks(
    dataset: Dataset,
    folds: str | None = None,
    min_area: float = 0.0,
    follow: Callable[[Sequence[str]], Iterable[str]] = iter,
) -> list[FoldList]:
    """Make a list for each fold from the masks of a data set.

    Args:
        dataset: The data set.
        folds: The number of folds, or the path of a file that `read_folds` reads. If not given, PASCAL and COCO have
            their published folds, and other data sets four even ones.
        min_area: A photo stands for each class that covers more than this fraction of it.
        follow: Passes on the names of photos while their masks are read, for showing progress.

    Returns:
        A list for each fold, with the split "val".

    Raises:
        EmatError: The folds do not fit the classes of the data set, or a mask cannot be read.
    """
    areas = dataset.class_areas()
    counted = list(areas.of(follow(dataset.names)))
    areas.keep()
    return [
        fold_list_from_areas(dataset.name, fold, "val", class_ids, counted, min_area)
        for fold, class_ids in enumerate(_folds(dataset, folds))
    ]


def _folds(dataset: Dataset, folds: str | None) -> tuple[tuple[int, ...], ...]:
    if folds is None and dataset.name in PUBLISHED_DATASETS:
        return tuple(fold_classes(dataset.name, fold) for fold in range(FOLDS))
    if folds is None:
        return split_evenly(dataset.classes, min(FOLDS, len(dataset.classes)))
    return split_evenly(dataset.classes, int(folds)) if folds.isdecimal() else read_folds(Path(folds), dataset.classes)


@dataclass(frozen=True)
class PublishedList:
    """The numbers of entries and of different photos of a published list, and its `FoldList.sha256`."""

    entries: int
    photos: int
    sha256: str


def published_list(fold_list: FoldList) -> PublishedList | None:
    """Return the published list of the same data set, split and fold; None if the table does not have it."""
    return PUBLISHED_LISTS.get((fold_list.dataset, fold_list.split, fold_list.fold))


def equals_published(fold_list: FoldList) -> bool | None:
    """Whether the list has the same entries as the published one; None if the table does not have that."""
    published = published_list(fold_list)
    return None if published is None else published.sha256 == fold_list.sha256


def _read_table(table: str) -> dict[tuple[str, str, int], PublishedList]:
    rows = [line.split() for line in table.strip().splitlines()]
    return {(row[0], row[1], int(row[2])): PublishedList(int(row[3]), int(row[4]), row[5]) for row in rows}


# The published fold lists of PASCAL-5i and COCO-20i, by (data set, split, fold): the numbers of entries and photos, and
# the SHA-256. With this table, emat can tell whether a list is the published one without containing the lists.
# COCO's training lists of folds 1 to 3 are not in it.
PUBLISHED_LISTS = _read_table("""
pascal train 0 2286 2279 e4371d08ed45d7b9337f6c3c22958e00aeb21df7c5e2e79a3e8fd11721f9ef0f
pascal train 1 3425 3309 1b082b084aa12cd953bd664ee10d7872120ccbd30edaed73cda86091d6d361d3
pascal train 2 5883 5030 971eda1d25492db844119685bb502e9e4c9bc430ef325cda7cc91a031e9507fa
pascal train 3 2086 1986 f73cb2ea762688707a7a96670760be97787ed59a28ebd2ae4b361ef85814368e
pascal val 0 346 345 809b5d1ca1971d1bcbdf38f25ea49bf3d9f47f927e3984de0b2410e3bb648f68
pascal val 1 451 433 adae6f36efd5c77926782220c9748a23278cbeff33bd2ba309c4e63241d29347
pascal val 2 725 587 2d4eaf79957389ed9785e75f2b848995780aafe4730a6a8bf75aef74e562217b
pascal val 3 346 326 aca370ad075b2d746934bb61878cf2f41f3212a6cedbafee4fc4d553a770bee4
pascal 0-5 0 94 94 290564cb994e123f2de625b9fcd9e0c10cf085d720865b3a35624ada58cb85a1
pascal 0-5 1 86 86 a292532cabf00c63517b2194e6a2f265077d38c55bd3f91a3e9838c7bfbf87a2
pascal 0-5 2 129 121 5a8a0247408b60cb53059f0feff2d8f38c77e20159b581470420fddf99f08879
pascal 0-5 3 67 64 110a38e37c9fafd15af138df25cde0393ca7d7cd4e29670bca06e0bef78f4ccc
pascal 5-10 0 95 95 b83a8367892a780d86dc6c6afe3c5a01f4ead6ecf08691f4de879d65d4200404
pascal 5-10 1 65 65 34f3a1a9e40bb588fcf590504c88183d68e3d77176486e2a41c09c3790b94701
pascal 5-10 2 119 116 5ac80db0b68e59922adbdfd71cda40b1c19ee18c7a693399140de309c504e604
pascal 5-10 3 61 60 d0a41fa778fcbb924323155a5c6c660bc79f7e290ded3fa0d9d226c74ebe5bce
pascal 10-15 0 57 57 0fe1b9c8c7c63babce3644cf2cf166b4b292e3323665e7ae6d82f1348fb8a0f5
pascal 10-15 1 40 40 63e48535e7f68de20c6146206f7e4eee74d44269fac120e8718afe265cb8bbd2
pascal 10-15 2 112 109 b20a52a515d73e16700ccfd9b6e3471973fefa7a794da472ba23d1046f326f26
pascal 10-15 3 36 36 cc83f6470ec5e5bcdc406d5283e51acf6cf3a71e85d234a9e2c90c3f847635a5
pascal 0-15 0 246 245 5d0d785898c877d96a012cded9822e98a472455a40c8da4f43c45e4a6377c514
pascal 0-15 1 191 183 8119a2eb8df482785736846253fde6b904e7d91e2fbf31559c6b5922bfe44b6d
pascal 0-15 2 360 312 d3d85c52d1b66d3f0969ac74593701823e9577f2b1af0d8129f61dd066b9ee58
pascal 0-15 3 164 152 26a3ce0c51d815e8d293045eafdfce81912e362a09851a52501edb4accf41db2
coco train 0 95476 62040 77b716362789b2b6f49d82732f078d107bf360c8bf1f0faf3c3605a29496e4c5
coco val 0 35783 26052 8de588e3c3aee4af79960c0df42827da5321d6832bb101d99a58f6f2b3ad5272
coco val 1 17912 15305 84ca4128d87b9f57d1955d4ebcd808ed0ca5685c3bd08b6c2338293f842473f6
coco val 2 14563 13138 91a6815115bb186cb2e9dc85bf1338df88ec8c2bba8c9d5d7bafd5d233716ad5
coco val 3 14315 12640 0f1c0f3f7e1005bf4a2a318438a59e3b0a7dc7f14f147c8529869c880b5acbad
coco 0-5 0 11871 10517 6d055fec8bb0393feb0e4a34256ae1de23915a0154543dd6171e4fc46079f810
coco 0-5 1 7992 7169 088f58021f0f1632734879009392f786f01e9dd3e36cbf79283e26b6c85e8759
coco 0-5 2 7677 7160 34924a90789358ec6e9aedd767c96e80803872997072eb86df605771ba4c142d
coco 0-5 3 5974 5483 9d18755f5b56d82b7258c3169a5c292bfd0d85d42779ba478fc900d0f08d6680
coco 5-10 0 6298 5975 082020630eb9c6def51e74903643367c2a90855dfe8ef9a9c423166f6f97c5d2
coco 5-10 1 3239 3153 59a9685552c48efe199258484e768dace138a0e676fc414f59106ae92ab1cf4a
coco 5-10 2 2336 2289 c6ca9af465dc7a7274c2614d73ba6ba9c573620a87d599c05919000aa23773cd
coco 5-10 3 2336 2299 f3737277485f1f8fa3b5673944254d20162edda3a134e0ad3148a5770873595c
coco 10-15 0 4132 4012 ae184f9e521ef4d5875c0667006e970b5c2839ea75e8d48d7bfbc848d274535b
coco 10-15 1 1781 1758 a2a82ce6da2b8a0d9df3243ee845d22e36194daa4a1d5c5e5731b01be7168193
coco 10-15 2 1295 1286 6ddf705c1fdadfea8999cae7c07086dc306c9170e0edd1ed384a9645b40254f4
coco 10-15 3 1476 1456 a9943e0cad249a8ed39a4f6c4168db054fded2ae03087a94ddd41d8af873a12b
coco 0-15 0 22301 17876 adc689eb9c90b3ea6f8cf12d1847f0b29cd15ddf3f396854345efc776d9ec9cf
coco 0-15 1 13012 11243 8db4ae99c4f46179a9ba2d1b7c52094fcf3e4569afc238c64c595c85f57f121e
coco 0-15 2 11308 10242 1b667f4d9c41901d673245fce531965435a487c44f1600c99343022dceeb07e8
coco 0-15 3 9786 8836 5bab1bf04bdce536f93415e35b2e928a579736a5a091281f69e4be365b923e8c
""")
