"""Brings a file here from an address, https or local: resumed where it was cut, bounded, and led nowhere else."""

from __future__ import annotations

import http.client
import ipaddress
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from anynpu.errors import ConfigError, IntegrityError, ToolFailed

CHUNK = 1 << 18
TRIES = 4
AGENT = "anynpu"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Limits:
    """The most bytes that a file may have, and the seconds that a server may be silent."""

    most_bytes: int
    silence_s: float = 30.0


def join(base: str, path: str) -> str:
    """Returns the address of a file of a hub; a base that is a folder becomes a file:// address."""
    scheme = urllib.parse.urlsplit(base).scheme
    if scheme in ("http", "https", "file"):
        return f"{base}/{urllib.parse.quote(path)}"
    if "://" in base:
        raise ConfigError(f"{base}: no such kind of address", "https://, file:// or a folder")
    return (Path(base).expanduser().absolute() / path).as_uri()


def fetch(address: str, part: Path, limits: Limits, progress: Progress = lambda done, total: None) -> None:
    """Writes the file at `address` to `part`; what an earlier call left there is completed."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(f"{address}: a file:// address names no host", "file:///folder/...")
        # Copies a local file; it counts as much as a download does, and is bounded like one
        source = Path(urllib.request.url2pathname(parts.path))
        try:
            if not source.is_file():
                raise ConfigError(f"{source}: no such file", "the base address is the folder that holds `models`")
            total = source.stat().st_size
            _bounded(str(source), total, limits)
            with source.open("rb") as stream, part.open("wb") as sink:
                _pour(stream, sink, 0, total, str(source), limits, progress)
        except PermissionError as error:
            raise ConfigError(f"{source}: cannot be read ({error.strerror})") from error
        return
    if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        raise ConfigError(f"{address}: http:// cannot be trusted across a network", "give an https:// address")
    opener = urllib.request.build_opener(Redirects())
    idle = 0
    while idle < TRIES:
        before = _size(part)
        if _attempt(opener, address, part, limits, progress):
            return
        idle = 0 if _size(part) > before else idle + 1
    raise ToolFailed(
        f"{address}: the connection breaks off or stays silent",
        hint=f"call again: {_size(part)} bytes are kept, and the rest is fetched where the server can go on from there",
    )


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def forget(part: Path) -> None:
    """Removes what was fetched."""
    part.unlink(missing_ok=True)
    _state(part).unlink(missing_ok=True)


def _state(part: Path) -> Path:
    return part.with_suffix(".json")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a hub to where it keeps its files, but neither to files of this machine nor from https to http."""

    max_redirections = 5

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        _check_redirect(req.full_url, newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: http.client.HTTPMessage) -> Any:
        # The base class refuses file:// itself, with an HTTP error that hides why.
        for key in ("location", "uri"):
            if target := headers.get(key):
                _check_redirect(req.full_url, urllib.parse.urljoin(req.full_url, target))
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _check_redirect(source: str, target: str) -> None:
    old, new = urllib.parse.urlsplit(source), urllib.parse.urlsplit(target)
    loopback = old.scheme == "http" and _is_loopback(new.hostname or "")
    if new.scheme != "https" and not (new.scheme == "http" and loopback):
        raise IntegrityError(f"{source}: the server leads to {target}, which is not followed", "name another hub")


def _attempt(
    opener: urllib.request.OpenerDirector, address: str, part: Path, limits: Limits, progress: Progress
) -> bool:
    """Fetches what is missing and returns whether the file is complete; a connection may break off."""
    start, tag = _resume(part, address)
    headers = {"User-Agent": AGENT, "Accept-Encoding": "identity"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": tag}
    request = urllib.request.Request(address, headers=headers)
    try:
        with opener.open(request, timeout=limits.silence_s) as reply:
            return _receive(reply, address, part, start, limits, progress)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:
            forget(part)
            return False
        refusal = f"{address}: the server says {error.code} {error.reason}"
        if error.code in (401, 403, 404, 410):
            raise ConfigError(refusal, "check --base and the hub's version") from error
        raise ToolFailed(refusal, hint="try again later") from error
    except urllib.error.URLError as error:
        if start or part.is_file():
            return False
        raise ToolFailed(
            f"{address}: cannot be reached ({error.reason})", hint="check the network, or --base"
        ) from error
    except (OSError, http.client.HTTPException):
        return False


def _resume(part: Path, address: str) -> tuple[int, str]:
    """Returns how much is here already and by what the server knows it; what cannot be proven the same is dropped."""
    try:
        state = json.loads(_state(part).read_text("utf-8"))
        if state["address"] == address and state["tag"] and part.is_file():
            return part.stat().st_size, str(state["tag"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        pass
    forget(part)
    return 0, ""


def _receive(reply: Any, address: str, part: Path, start: int, limits: Limits, progress: Progress) -> bool:
    """Appends to what is here where the server goes on from there, and begins anew where it does not."""
    length = _number(reply.headers.get("Content-Length"))
    if reply.status == 206:
        # "bytes 5-9/10": where the reply begins, and how long the whole file is
        span, _, whole = reply.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        total = _number(whole)
        if _number(span.partition("-")[0]) != start:
            forget(part)
            return False
    else:
        start, total = 0, length
    if total is None and length is not None:
        total = start + length
    _bounded(address, total or 0, limits)
    tag = reply.headers.get("ETag") or reply.headers.get("Last-Modified") or ""
    # A weak tag does not promise the same bytes, so nothing is continued on its word.
    state = {"address": address, "tag": "" if tag.startswith("W/") else tag}
    _state(part).write_text(json.dumps(state), "utf-8")
    with part.open("ab" if start else "wb") as sink:
        done = _pour(reply, sink, start, total or 0, address, limits, progress)
    return total is None or done == total


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _bounded(place: str, size: int, limits: Limits) -> None:
    if size > limits.most_bytes:
        raise IntegrityError(
            f"{place}: {size} bytes are more than the {limits.most_bytes} that this model may have",
            "it is another file than the card means",
        )


def _pour(stream: Any, sink: IO[bytes], done: int, total: int, place: str, limits: Limits, progress: Progress) -> int:
    progress(done, total)
    while chunk := stream.read1(CHUNK):  # what has come, so that a connection that stalls loses none of it
        done += len(chunk)
        _bounded(place, done, limits)
        sink.write(chunk)
        progress(done, total)
    return done
