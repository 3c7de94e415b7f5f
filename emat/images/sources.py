"""Opening image files safely: only a few formats, only within limits, and every error says what to do.

This wraps Pillow by hand because photos come from users. The format of a file is recognised by its content, not by its
name. `photo.tif[3]` means the third page of a TIFF stack.
"""

import io
import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from emat.errors import EmatError, install_command
from emat.progress import tell_first

Pixels: TypeAlias = NDArray[np.uint8]
Source: TypeAlias = "Path | str | bytes | Image.Image | NDArray[np.generic]"

MAX_PIXELS = 89_000_000  # just below the number at which Pillow warns of a decompression bomb
PHOTO_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "HEIF")
MASK_FORMATS = ("PNG", "BMP", "TIFF", "GIF")  # only lossless formats, because the others change class indices
LOSSY_FORMATS = ("JPEG", "WEBP", "HEIF")
HEIC_BRANDS = (b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypmif1", b"ftypmsf1", b"ftypheif")  # from the fifth byte on
ANIMATED_FORMATS = ("GIF", "PNG", "WEBP")
PHOTO_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".heic", ".heif")
MASK_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", ".gif")
TIFF_SUFFIXES = (".tif", ".tiff")
ORIENTATION_TAG = 0x0112
SUBFILE_TAG = 254  # of TIFF: what a page is
REDUCED, TRANSPARENCY = 1, 4  # bits of it: a smaller copy of another page, or its opacity
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
MOST_PAGES = 20_000  # that are counted
PAGE = re.compile(r"(.+\.tiff?)\[(\d{1,9})\]", re.IGNORECASE | re.DOTALL)

_opening = threading.Lock()


def describe(source: Source) -> str:
    """Return the name of `source` for messages."""
    if isinstance(source, (str, Path)):
        return str(source)
    if isinstance(source, bytes):
        return f"the image of {len(source)} bytes"
    return "the image" if isinstance(source, Image.Image) else "the array"


def split_page(path: Path | str) -> tuple[Path, int | None]:
    """Take the number of a page off a path; None if it names no page, or if there is a file of exactly that name.

    >>> split_page("stack.tif[3]")[1], split_page("stack.tif")[1]
    (3, None)
    """
    match = PAGE.fullmatch(str(path))
    if match is None or os.path.lexists(path):
        return Path(path), None
    return Path(match[1]), int(match[2])


def open_image(source: Path | str | bytes, formats: tuple[str, ...], max_pixels: int, name: str) -> Image.Image:
    """Open an image without decoding it.

    Args:
        source: A path, which may end in a page as in `photo.tif[3]`, or the bytes of a file.
        formats: The formats that are allowed, as Pillow calls them.
        max_pixels: The largest size that is accepted.
        name: What to call the image in errors.

    Raises:
        EmatError: It is missing, not a file, too large, a stack of which no page is named, or of another format.
    """
    image, page = identify(source, formats, name)
    if image.format == "TIFF":
        _turn_to_page(image, page, name)
    elif image.format in ANIMATED_FORMATS and getattr(image, "n_frames", 1) > 1:
        tell_first("animated", f"{name} is animated; its first frame is taken, as of all animated images")
    if image.width * image.height > max_pixels:
        raise EmatError("photo-too-large", too_large(name, max_pixels, image.size))
    return image


def identify(source: Path | str | bytes, formats: tuple[str, ...], name: str) -> tuple[Image.Image, int | None]:
    """Open an image at its first page, and return it with the number of the page that is asked for."""
    page = None
    if not isinstance(source, bytes):
        path, page = split_page(source)
        refuse_missing(path)
        source = path
    is_heif = "HEIF" in formats and _start(source)[4:12] in HEIC_BRANDS
    if is_heif:
        _register_heif(name)
    allowed = formats
    # Pillow does not know HEIF until it is registered.
    formats = ("HEIF",) if is_heif else tuple(format for format in formats if format != "HEIF")
    _silence_pillow()
    try:
        with _any_size():
            image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=formats)
    except UnidentifiedImageError:
        if _start(source).startswith(TIFF_STARTS):
            raise EmatError(
                "damaged-file",
                f"{name} is a damaged TIFF, or one of a kind that is not read, such as 64-bit fractions; save it with "
                "8 or 16 bits",
            ) from None
        listed = ", ".join(allowed[:-1]) + f" or {allowed[-1]}"
        why = "" if "JPEG" in allowed else ", since JPEG and WebP change class indices"
        raise EmatError("not-an-image", f"{name} is not {listed}, or is damaged; save it as PNG{why}") from None
    except Exception as error:  # Pillow's readers raise many kinds of errors for damaged files
        raise EmatError(
            "damaged-file", f"{name} cannot be read ({_reason(error)}); save it again or leave it out"
        ) from None
    return image, page


def load_image(
    source: Path | str | bytes | Image.Image | object, formats: tuple[str, ...], max_pixels: int, name: str
) -> Image.Image:
    """Open and decode an image, with its values as they are stored; a PIL image is only checked.

    Raises:
        EmatError: As `open_image`, or if it is damaged.
    """
    if isinstance(source, Image.Image):
        if source.width * source.height > max_pixels:
            raise EmatError("photo-too-large", too_large(name, max_pixels, source.size))
        return source
    if not isinstance(source, (str, Path, bytes)):
        raise EmatError(
            "photo-array", f"an image must be a path, bytes, a PIL image or an array, not a {type(source).__name__}"
        )
    image = open_image(source, formats, max_pixels, name)
    try:
        stated = image.size
        image.load()
        if image.format == "HEIF" and image.size != stated:  # other readers would take the stated size for true
            raise ValueError(f"it states {stated[0]} x {stated[1]} pixels and has {image.width} x {image.height}")
    except Exception as error:  # as above, for truncated and malicious files
        raise EmatError(
            "damaged-file", f"{name} is damaged ({_reason(error)}); fetch or save it again, or leave it out"
        ) from None
    return image


def pages(source: Path | str | bytes, name: str) -> list[int]:
    """Return the numbers of the pages of a TIFF stack, without smaller copies of a page; [1] for every other image.

    Raises:
        EmatError: The image is missing or damaged.
    """
    image, _ = identify(source, PHOTO_FORMATS, name)
    with image:
        return _whole_pages(image) if image.format == "TIFF" else [1]


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of an image, 1 to 8."""
    _silence_pillow()
    try:
        value = int(image.getexif().get(ORIENTATION_TAG, 1))
        return value if 1 <= value <= 8 else 1  # a viewer ignores every other value
    except Exception:  # the pixels may be good even if the EXIF data are damaged
        return 1


def _silence_pillow() -> None:
    """Keep Pillow's warnings off the terminal: they name tags of EXIF or TIFF data that it leaves out.

    The pixels are as good without these tags, and damage to the pixels is an error. This is said again for every image,
    because programs and tests set warnings back.
    """
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


def too_large(name: str, max_pixels: int, size: tuple[int, int]) -> str:
    """Return the sentence for an image of more pixels than are allowed."""
    return (
        f"{name} has {size[0]} x {size[1]} pixels, more than {_millions(max_pixels)}; make it smaller, "
        "allow more with --max-pixels, or predict a TIFF in windows with --tiles auto"
    )


def _millions(pixels: int) -> str:
    return f"{pixels / 1e6:.0f} million pixels" if pixels >= 1_000_000 else f"{pixels} pixels"


def refuse_missing(path: Path) -> None:
    """Raise an EmatError unless `path` is a file that is not empty."""
    try:
        if not path.exists():
            raise EmatError("no-such-file", f"{path} does not exist; check the name and the folder")
        if path.is_dir():
            raise EmatError("not-a-file", f"{path} is a folder, not an image")
        if not path.is_file():  # to read a pipe or a device might never end
            raise EmatError(
                "not-a-file", f"{path} is not a file but a pipe or a device; save the image to a file first"
            )
        if path.stat().st_size == 0:
            raise EmatError("empty-file", f"{path} is empty (0 bytes); fetch or save it again, or leave it out")
    except (OSError, ValueError) as error:  # for example a name that is too long, or has a zero byte
        raise EmatError(
            "cannot-read", f"{str(path)[:80]!r} cannot be read ({_reason(error)}); check the name"
        ) from None


@contextmanager
def _any_size() -> Iterator[None]:
    """Lift Pillow's own limit while a header is read: `open_image` has its own, which a user may raise."""
    with _opening:
        usual, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = usual


def _turn_to_page(image: Image.Image, page: int | None, name: str) -> None:
    """Go to the page that is asked for; without one, refuse a stack rather than take its first page."""
    if page is None:
        if len(_whole_pages(image, stop_at=2)) > 1:
            raise EmatError(
                "several-pages",
                f"{name} is a stack of {len(_whole_pages(image))} pages; name one of them as in '{name}[1]', "
                "or predict all of them with --pages all",
            )
        return
    try:
        if page < 1:
            raise EOFError
        with _any_size():
            image.seek(page - 1)
    except EOFError:
        image.seek(0)
        raise EmatError(
            "no-such-page", f"{name}: there is no page {page}; the pages are 1 to {_whole_pages(image)[-1]}"
        ) from None
    except Exception as error:  # a damaged directory of pages
        raise EmatError(
            "damaged-file", f"{name} cannot be read ({_reason(error)}); save it again or leave it out"
        ) from None


def _whole_pages(image: Image.Image, stop_at: int = MOST_PAGES) -> list[int]:
    """Return the numbers of the pages of a TIFF, without previews, opacities and the levels of a pyramid."""
    first = image.size
    numbers = [1]
    with _any_size():
        try:
            for index in range(1, MOST_PAGES):
                image.seek(index)
                kind = int(getattr(image, "tag_v2", {}).get(SUBFILE_TAG, 0))
                if not kind & (REDUCED | TRANSPARENCY) and not _is_smaller_copy(image.size, first):
                    numbers.append(index + 1)
                if len(numbers) >= stop_at:
                    break
        except Exception:  # the end of the file, or damage behind the first page
            pass
        finally:
            image.seek(0)
    return numbers


def _is_smaller_copy(size: tuple[int, int], first: tuple[int, int]) -> bool:
    """Whether a page has the shape of the first one at a smaller scale; not every program marks such pages."""
    (width, height), (full_width, full_height) = size, first
    off_by = abs(width * full_height - height * full_width)  # 0 if the shapes are equal but for rounding
    return width < full_width and height < full_height and off_by <= full_width + full_height


def _start(source: Path | str | bytes) -> bytes:
    """The first bytes of a file; none if it cannot be read."""
    if isinstance(source, bytes):
        return source[:12]
    try:
        with open(source, "rb") as file:
            return file.read(12)
    except OSError:
        return b""


@cache
def _register_heif(name: str) -> None:
    """Teach Pillow the photos of phones."""
    try:
        import pillow_heif
    except ImportError:
        raise EmatError(
            "missing-package",
            f"{name} is a HEIC photo, which needs pillow-heif; install it with: {install_command('heic')}, or save the "
            "photo as JPEG",
        ) from None
    pillow_heif.register_heif_opener()


def _reason(error: Exception) -> str:
    words = getattr(error, "strerror", None) or str(error)  # an OSError also repeats the name, however long it is
    return str(words).strip().rstrip(".") or type(error).__name__
