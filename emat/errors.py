"""The exception for mistakes that the user can fix. Any other exception that reaches the user is a bug."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

DISTRIBUTION = "emat-segmentation"  # the name on package indexes, where `emat` is another project; as in pyproject.toml


# Every code that emat uses, with its meaning. A code says what went wrong, not where, so the same fault has the same
# code everywhere. Packages that extend emat may have codes of their own.
CODES: Mapping[str, str] = {
    "already-trained": "A training run has done as much as is asked for.",
    "ambiguous-mask": "It is not clear which values, colours or names of a mask mean the object.",
    "bad-address": "An address on the network is not one that can be used.",
    "bad-annotation": "An annotation file lacks something, or says something impossible.",
    "bad-class-name": "A class name is empty, too long or cannot be written.",
    "bad-click": "Points, labels or a box are not within the photo, or not of the expected form.",
    "bad-example": "An example is not of the expected form, or contradicts itself.",
    "bad-file-name": "A file's name cannot be used, or does not say what it should.",
    "bad-head-name": "The name of a head cannot be used.",
    "bad-interface": "The labelling interface of an annotation tool cannot be used.",
    "bad-number": "A number is none, or not in its range.",
    "bad-outline": "A polygon, a box, a stroke or run lengths cannot be drawn.",
    "bad-request": "A request to a server is not of the expected form.",
    "bad-syntax": "A text is not the JSON, YAML or XML that it should be.",
    "broken-plugin": "An installed package adds something that cannot be used.",
    "cannot-export": "A segmenter has something that an exported graph cannot hold.",
    "cannot-listen": "A server cannot listen at a port.",
    "cannot-read": "The operating system refuses to read a file.",
    "cannot-write": "The operating system refuses to write a file.",
    "changed-file": "A file was changed after it was written.",
    "channels-differ": "A photo has other channels than the examples, or examples than each other.",
    "class-in-use": "A class cannot be removed while examples show it.",
    "class-lists-differ": "Things with different classes cannot be put together.",
    "class-numbers": "Class numbers are not numbers, or have gaps.",
    "conflicting-options": "Options cannot be used together, or not for this input.",
    "damaged-file": "A file's content is damaged or incomplete.",
    "device-precision": "A device cannot compute in a number format.",
    "diverged-training": "The loss or its gradient is not finite.",
    "download-failed": "A file could not be downloaded.",
    "empty-file": "A file has no content.",
    "empty-list": "A list in a file has no entry.",
    "empty-mask": "A mask or a painting shows nothing.",
    "export-differs": "An exported graph gives other results than its segmenter.",
    "file-too-large": "A file or a request is larger than it may be.",
    "foreign-request": "A request comes from another page or machine than the server answers.",
    "given-twice": "Something that must be unique is there twice.",
    "internal-error": "Something went wrong inside emat; this is a bug.",
    "label-needed": "Results of several methods need labels to tell them apart.",
    "lost-process": "Another process of the same run has stopped.",
    "mask-colours": "A mask is in colours or transparent where it must be indexed or grey.",
    "mask-shape": "A mask or label map is not an array of the expected shape and type.",
    "mask-size": "A mask has another size than its photo.",
    "mask-values": "A mask holds values that it must not have.",
    "missing-option": "An option or argument is needed and was not given.",
    "missing-package": "A package is needed that is not installed.",
    "names-do-not-match": "It is not clear which photos a list or masks belong to.",
    "needs-learning": "Something works only for a segmenter that learns from its examples.",
    "needs-token": "A server that other machines reach needs a token.",
    "no-annotations": "A data set has no annotation files.",
    "no-classes": "No class is named or shown.",
    "no-examples": "Nothing to learn from or to score was given.",
    "no-forecast": "Nothing was learnt, so there is no forecast.",
    "no-masks": "A data set has no masks.",
    "no-photos": "There are no photos where photos are needed.",
    "no-scale-object": "The object of known size is not in the photo, or cannot be measured there.",
    "no-such-channel": "A stack does not have that channel.",
    "no-such-file": "A file, a folder or a run does not exist.",
    "no-such-list": "There is no fold list of that data set, fold or split.",
    "no-such-mask": "There is no mask of that name.",
    "no-such-page": "A stack does not have that page.",
    "no-such-photo": "There is no photo of that name.",
    "no-such-value": "A mask does not have the value or colour that was chosen.",
    "not-a-file": "A folder, a pipe or a device is where a file should be.",
    "not-a-folder": "Something else is where a folder should be.",
    "not-an-image": "A file is not an image of a kind that is read.",
    "not-finite": "Numbers are NaN or infinite.",
    "not-fitted": "A segmenter or a head has no examples yet.",
    "not-for-slides": "This is not there for slides, which are read window by window.",
    "not-measured": "A figure or table needs results that are not there.",
    "not-text": "A file is not UTF-8 text.",
    "not-trained": "A method must be trained before it can be used.",
    "nothing-evaluated": "There is no task to score.",
    "nothing-to-save": "There are no results, or no example, to save yet.",
    "nothing-to-train": "A method has no weights to train.",
    "object-too-large": "An object is too large to be measured as a whole.",
    "offline-mode": "Something must be downloaded, but the network is turned off.",
    "other-run": "A file or folder belongs to a run with other options or data.",
    "output-in-use": "Another process writes to the same place.",
    "output-is-input": "Results would be written to what is read.",
    "page-outdated": "The studio's page sent something that its server does not know.",
    "path-leads-out": "A path leads out of its folder or archive.",
    "photo-array": "An array is not of a shape or type that a photo can have.",
    "photo-not-kept": "A photo was not kept, and is needed.",
    "photo-not-read": "A photo could not be read for an unknown reason.",
    "photo-size": "A photo's size does not suit the network.",
    "photo-too-large": "A photo has more pixels than are allowed.",
    "pixels-not-square": "The pixels of a photo are not square.",
    "ray-failed": "Ray did not start, or stopped.",
    "refuses-overwrite": "Something is there already and is not replaced.",
    "request-too-slow": "A request to a server took too long to arrive.",
    "reserved-class-name": "A class name has another meaning in annotation files.",
    "same-output-name": "Two results would be written to the same file.",
    "server-busy": "A server has more requests than it can answer just now.",
    "session-gone": "A session of the studio has ended.",
    "several-pages": "A stack has several pages, and one must be named.",
    "stack-axes": "The axes of a stack cannot be understood.",
    "stack-of-backbones": "Something works only for a single backbone.",
    "tasks-differ": "Methods were evaluated on different tasks.",
    "tasks-missing": "Some tasks of an evaluation have no outcome.",
    "tensor-shape": "A tensor has another shape than is expected.",
    "tensor-type": "A tensor has another type than is expected.",
    "too-few-examples": "There are too few examples for what is asked.",
    "too-few-folds": "There is no fold left for what is asked.",
    "too-few-photos": "There are too few photos or classes to draw tasks from.",
    "too-many-classes": "There are more classes than a mask, a file or the page can hold.",
    "too-many-photos": "The studio's page holds no more photos.",
    "too-many-tabs": "The studio is open in too many tabs.",
    "unclear-option": "The text of an option cannot be understood.",
    "unknown-address": "A server has nothing at that address.",
    "unknown-backbone": "There is no backbone of that name.",
    "unknown-choice": "A value is not one of those that an option can have.",
    "unknown-class": "There is no class of that name or number.",
    "unknown-column": "There is no such column, or it is not measured.",
    "unknown-device": "There is no such device on this machine.",
    "unknown-example": "There is no such example.",
    "unknown-fold": "There is no fold of that number.",
    "unknown-head": "There is no head of that name.",
    "unknown-layout": "A folder has no layout of a data set that is known.",
    "unknown-method": "There is no method of that name.",
    "unknown-option": "There is no option of that name.",
    "unknown-pixel-size": "The size of a pixel in real units is needed and not known.",
    "unknown-plugin": "No installed package adds something of that name.",
    "unknown-range": "It is not known which values of a photo are black and white.",
    "unknown-unit": "There is no such unit.",
    "unsafe-archive": "An archive is not what it claims to be.",
    "unsafe-pickle": "A pickle holds more than plain values.",
    "unsupported-method": "A method lacks what is asked for.",
    "upload-failed": "A file could not be uploaded.",
    "weights-are-set": "A network has its weights already.",
    "weights-do-not-fit": "Weights are not those of this network.",
    "weights-missing": "Weights are not on this machine.",
    "wrong-backbone": "A head and a backbone do not belong together.",
    "wrong-checksum": "A file does not have the checksum that it should have.",
    "wrong-file-kind": "A file is not of the expected kind.",
    "wrong-file-version": "A file was written by another version of emat.",
    "wrong-head": "A head is for another method or backbone.",
    "wrong-suffix": "A file's name must end in another way.",
}


def install_command(extra: str) -> str:
    """Return the command that installs an extra of emat, for messages.

    >>> install_command("studio")
    'pip install "emat-segmentation[studio]"'
    """
    return f'pip install "{DISTRIBUTION}[{extra}]"'


class EmatError(Exception):
    """Something that the user can fix: the message says what was wrong, gives the value, and says what to do.

    The command line prints the message alone and exits with code 2. Programs and tests tell errors apart by their
    code, a few words with hyphens that stay when the sentence is written better.

    Args:
        code: What went wrong, one of `CODES` such as "mask-size".
        sentence: What was wrong, with the value, and what to do.

    >>> raise EmatError("mask-size", "mask.png is 40 x 30 but its photo is 80 x 60; save the mask at the photo's size")
    Traceback (most recent call last):
    emat.errors.EmatError: mask.png is 40 x 30 but its photo is 80 x 60; save the mask at the photo's size

    A message is one line of text that any terminal shows, whatever the names of files in it contain.

    >>> print(EmatError("no-such-file", "a\\nb.png does not exist"))
    a\\nb.png does not exist
    """

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code

    def __reduce__(self) -> tuple[type["EmatError"], tuple[str, str]]:
        return type(self), (self.code, str(self.args[0]))  # so that a code survives the way between processes

    def __str__(self) -> str:
        text = super().__str__()
        return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Turn an ImportError inside the block into an error that names the missing package and says how to install it.

    Args:
        what: What needs the packages that are imported in the block, such as "the studio".
        extra: The extra of emat that installs them.

    >>> with needs_extra("flying", "studio"):
    ...     import wings.feathers
    Traceback (most recent call last):
    emat.errors.EmatError: flying needs the package wings; install it with: pip install "emat-segmentation[studio]"
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "that is missing").partition(".")[0]
        command = install_command(extra)
        raise EmatError("missing-package", f"{what} needs the package {package}; install it with: {command}") from None
