"""Which requests the studio accepts, and how large they may be. Every request is checked here before it is answered."""

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

from emat.files import is_number
from emat.scale.patience import Patience

MAX_UPLOAD = 200 * 1024 * 1024  # bytes of one uploaded file
LONGEST_ADDRESS = 1000  # characters
MAX_BODY = 1024 * 1024  # of any other request
COOKIE = "emat-studio"
COOKIE_SECONDS = 400 * 24 * 3600  # browsers keep a cookie no longer

# The browser itself refuses whatever is not served here.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' blob: data:; "
    "connect-src 'self'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Refuses requests that do not come from the studio's own page, or are too large.

    A page of another server must not reach the studio through the user's browser, not even one on this machine: what
    counts as the own page is the exact address with its port.

    Args:
        app: What answers the requests that are let through.
        port: The port that is served.
    """

    def __init__(self, app: App, port: int) -> None:
        self._app = app
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        cookie = _cookie(headers)
        scope["owner"] = cookie or secrets.token_urlsafe(24)
        reply = _with_headers(send, None if cookie else str(scope["owner"]))
        refused = self._refusal(headers) or _size_refusal(scope, headers)
        if refused is not None:
            status, code, sentence = refused
            await JSONResponse({"problem": sentence, "code": code}, status)(scope, receive, reply)
            return
        await self._app(scope, _limited(receive, limit_of(str(scope["path"]))), reply)

    def _refusal(self, headers: Headers) -> tuple[int, str, str] | None:
        host = headers.get("host", "")
        if host not in self._hosts:
            return 400, "foreign-request", "the studio answers only at 127.0.0.1; open the address that it printed"
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return 403, "foreign-request", "this request comes from another page and is refused"
        # Browsers send this with every request. "none" is an address that the user typed.
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and (
            headers.get("sec-fetch-mode") != "navigate"
        ):
            return 403, "foreign-request", "this request comes from another page and is refused"
        return None


class BodyTooLarge(Exception):
    """More was sent than the request may have."""


def limit_of(path: str) -> int:
    """How many bytes a request to a path may have."""
    return MAX_UPLOAD if path.endswith("/upload") else 32 * MAX_BODY if path.endswith("/paint") else MAX_BODY


def _size_refusal(scope: Scope, headers: Headers) -> tuple[int, str, str] | None:
    if len(str(scope["path"])) > LONGEST_ADDRESS:  # Python reads no number of thousands of digits in it
        return 414, "unknown-address", "there is nothing at so long an address"
    limit = limit_of(str(scope["path"]))
    stated = headers.get("content-length", "0")
    if not is_number(stated) or int(stated) > limit:
        return (
            413,
            "file-too-large",
            f"this is larger than the {limit // 1024 // 1024} MB that the studio takes; make it smaller",
        )
    return None


def _limited(receive: Receive, limit: int) -> Receive:
    """Count what arrives, and how long it takes: a request need not state its length, or may lie about it."""
    arrived, complete, patience = 0, False, Patience()

    async def receive_some() -> Message:
        nonlocal arrived, complete
        if complete:  # what is waited for now is that the client goes away
            return await receive()
        message = await patience.wait(receive())
        complete = not message.get("more_body", False)
        patience.count(message.get("body", b""))
        arrived += len(message.get("body", b""))
        if arrived > limit:
            raise BodyTooLarge
        return message

    return receive_some


def _with_headers(send: Send, cookie: str | None) -> Send:
    async def send_more(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            if cookie is not None:
                headers.append(
                    "Set-Cookie", f"{COOKIE}={cookie}; Path=/; Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Strict"
                )
        await send(message)

    return send_more


def _cookie(headers: Headers) -> str | None:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return cookie.value if cookie is not None and 16 <= len(cookie.value) <= 100 else None
