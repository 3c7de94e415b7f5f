"""What the server is asked and what it answers: who may ask, what a request holds, and a prediction as JSON or PNG."""

import base64
import hmac
import io
import json
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from emat.errors import EmatError
from emat.files import is_number
from emat.formats.run_lengths import counts_of_mask, pack
from emat.images.masks import indexed_image
from emat.inference.example import Example
from emat.inference.prediction import Prediction
from emat.scale.patience import Patience

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_BYTES = 200 * 1024 * 1024  # of one request, as in the studio
OPEN_TO_ALL = ("/health",)


@dataclass(frozen=True)
class ServeOptions:
    """How a server behaves."""

    host: str = "127.0.0.1"
    token: str | None = None
    most_bytes: int = MOST_BYTES
    keep: Path | None = None  # the file that the segmenter is saved to after every new example
    accepts_examples: bool = True
    label_studio: bool = False

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and not self.token:
            raise EmatError(
                "needs-token",
                f"--host {self.host} lets other machines ask; give --token too, which they must then send as "
                "'Authorization: Bearer TOKEN'",
            )

    def as_json(self) -> dict[str, Any]:
        """Return what a worker process needs; workers keep nothing."""
        return asdict(self) | {"keep": None}


def refusal(request: Any, options: ServeOptions) -> Any | None:
    """The response to a request that may not be answered; None if it may."""
    if request.url.path in OPEN_TO_ALL:
        return None
    if options.token:
        given = request.headers.get("authorization", "")
        if not _is_token(given, options.token):
            return said(
                401, "needs-token", "send the token as 'Authorization: Bearer TOKEN'", {"WWW-Authenticate": "Bearer"}
            )
    else:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        # A page of another origin may not ask, not even one that another program of this machine serves.
        if not _is_local(f"http://{host}") or (origin and origin not in (f"http://{host}", f"https://{host}")):
            return said(
                403,
                "foreign-request",
                "this server answers this machine alone; start it with --host and --token for others",
            )
    length = request.headers.get("content-length", "0").lstrip("0") or "0"
    if length.isdecimal() and (not is_number(length) or int(length) > options.most_bytes):
        return said(413, "file-too-large", f"a request has at most {options.most_bytes // 2**20} MB")
    return None


def _is_token(given: str, token: str) -> bool:
    """Whether the header has the token, as a bearer or as the password of a user, which Label Studio sends."""
    kind, _, value = given.partition(" ")
    if kind.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode().partition(":")[2]
        except ValueError:  # not base64, or not UTF-8
            return False
    elif kind.lower() != "bearer":
        return False
    return hmac.compare_digest(value.encode(), token.encode())


def _is_local(address: str) -> bool:
    try:
        return urlsplit(address).hostname in LOOPBACK
    except ValueError:
        return False


async def photo_of(request: Any, most: int) -> bytes:
    """The photo of a request of at most `most` bytes: its body, or the file `photo` of its form."""
    return (await _files(request, most))["photo"] if _is_form(request) else await _body(request, most)


async def example_of(request: Any, most: int) -> Example:
    """The example in a form: the file `photo`, and a mask image under the name of each class."""
    if not _is_form(request):
        raise EmatError(
            "bad-request", "an example is a form (multipart/form-data): the file photo, and a mask image for each class"
        )
    files = await _files(request, most)
    return Example(files.pop("photo"), files, name="the example")


def _is_form(request: Any) -> bool:
    return bool(request.headers.get("content-type", "").startswith("multipart/form-data"))


async def _files(request: Any, most: int) -> dict[str, bytes]:
    """The files of a form by name, one of them called photo."""
    from starlette.formparsers import MultiPartException, MultiPartParser

    body = await _body(request, most)  # within the limit: a length may be false or not stated

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    try:
        form = await MultiPartParser(request.headers, stream(), max_files=300, max_fields=300).parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise EmatError("bad-request", f"the form cannot be read ({error})") from None
    try:
        files = {name: await value.read() for name, value in form.multi_items() if not isinstance(value, str)}
    finally:
        await form.close()
    if "photo" not in files:
        raise EmatError("no-photos", "the form has no file called photo; send the photo under that name")
    return files


async def _body(request: Any, most: int) -> bytes:
    from starlette.requests import ClientDisconnect

    parts, size, patience, stream = [], 0, Patience(), request.stream()
    try:
        while (part := await patience.wait(anext(stream, None))) is not None:
            patience.count(part)
            size += len(part)
            if size > most:
                raise EmatError("file-too-large", f"a request has at most {most // 2**20} MB")
            parts.append(part)
    except ClientDisconnect:  # nobody reads the answer, but it is not an error of the server
        raise EmatError("bad-request", "the connection was closed before the request was complete") from None
    if not size:
        raise EmatError(
            "no-photos", "there is no photo in the request; send one as the body or as the form's file photo"
        )
    return b"".join(parts)


async def json_of(request: Any, most: int) -> dict[str, Any]:
    """The JSON object that a request holds."""
    try:
        content = json.loads(await _body(request, most))
    except (ValueError, RecursionError) as error:
        raise EmatError("bad-syntax", f"the request is not JSON ({str(error)[:80]})") from None
    if not isinstance(content, dict):
        raise EmatError("bad-request", "the request is JSON, but not an object")
    return content


def json_response(value: Any, status: int = 200, afterwards: Any = None) -> Any:
    """Return a response of JSON; `afterwards` is a task of Starlette that runs when it was sent."""
    from fastapi import Response

    return Response(json.dumps(value), status, media_type="application/json", background=afterwards)


def said(status: int, code: str, sentence: str, headers: dict[str, str] | None = None) -> Any:
    """Return a response that says what is wrong, with a code of `emat.errors.CODES`."""
    from fastapi import Response

    return Response(json.dumps({"error": sentence, "code": code}), status, headers, "application/json")


def as_json(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as JSON holds it: the photo's size and, for each class, score, presence, area and mask."""
    height, width = prediction.photo.shape[:2]
    classes = []
    for name in prediction.classes:
        mask = prediction.mask(name)
        area = int(mask.sum())
        classes.append(
            {
                "name": name,
                "score": prediction.scores[name],
                "present": area > 0,
                "area": area,
                "share": area / (height * width),
                "segmentation": {"size": [height, width], "counts": pack(counts_of_mask(mask))},  # as COCO has it
            }
        )
    return {"width": width, "height": height, "classes": classes}


def as_png(prediction: Prediction) -> bytes:
    """Return the label map as an indexed PNG: 0 is background, i the i-th class."""
    out = io.BytesIO()
    indexed_image(prediction.label_map).save(out, "PNG")
    return out.getvalue()
