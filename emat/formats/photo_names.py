"""Names of photos relative to a folder, which never lead out of it: they become paths of files that are written."""

from pathlib import PurePosixPath

from emat.errors import EmatError


def inner_name(name: str) -> str:
    """`name` with forward slashes, unless it leads out of its folder.

    >>> inner_name("cats\\\\a.jpg")
    'cats/a.jpg'
    """
    parts = [part for part in name.replace("\\", "/").split("/") if part != "."]
    if "" in parts or ".." in parts or not parts or ":" in parts[0] or "\0" in name:
        raise EmatError(f"the file name {name!r} leads out of the photo folder; make it relative to that folder")
    return "/".join(parts)


def without_suffix(name: str) -> str:
    """`name` without the suffix of its last part.

    >>> without_suffix("v1.2/a.b.jpg")
    'v1.2/a.b'
    """
    return PurePosixPath(name).with_suffix("").as_posix()
