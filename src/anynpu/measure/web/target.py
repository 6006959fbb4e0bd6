"""The server that is measured: what it says of itself, the route, and the first request to it."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anynpu.errors import ConfigError, DeviceError, on_one_line
from anynpu.measure.web import forms
from anynpu.measure.web.address import Address
from anynpu.measure.web.checks import Checked, check
from anynpu.measure.web.exchange import NOT_HTTP, TIMED_OUT, request_bytes
from anynpu.measure.web.forms import Inputs, Payload
from anynpu.measure.web.generator import Plan, Traffic, generate
from anynpu.schema import digest

MOST_INFO = 1 << 20


@dataclass(frozen=True)
class About:
    """What a server says of itself; all of it may be empty."""

    software: str = ""
    models: tuple[str, ...] = ()
    info: Mapping[str, object] = field(default_factory=dict)
    """The JSON of /info, which anynpu and TEI have."""

    @property
    def info_digest(self) -> str:
        return digest(self.info) if self.info else ""


@dataclass(frozen=True)
class Target:
    """A route of a server and the requests to send to it, in turn."""

    address: Address
    form: str
    model: str
    source: str
    payloads: tuple[Payload, ...]
    requests: tuple[bytes, ...]
    about: About = About()

    @property
    def batch(self) -> int:
        return max(1, self.payloads[0].items)


def get_json(address: Address, path: str, token: str, timeout_s: float) -> tuple[Any, str]:
    """Returns the JSON behind a path, None where there is none, and the name that the server gives itself.

    A server that says it is not ready (503) raises DeviceError: what it lists now is not what it will serve.
    """
    connection: http.client.HTTPConnection
    if address.scheme == "https":
        connection = http.client.HTTPSConnection(address.host, address.port, timeout=timeout_s, context=address.tls)
    else:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        data = answer.read(MOST_INFO + 1)
        if answer.status == 503:
            raise DeviceError(f"{address.at(path)}: HTTP 503, it is not ready", "GET", 503, hint="wait until it is")
        parsed = json.loads(data) if answer.status == 200 and len(data) <= MOST_INFO else None
        return parsed, on_one_line(answer.headers.get("Server", ""))[:100]
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None, ""
    finally:
        connection.close()


def about(address: Address, token: str, timeout_s: float) -> About:
    """Returns what the server says of itself at /v1/models and /info."""
    listed, software = get_json(address, "/v1/models", token, timeout_s)
    entries = listed.get("data") if isinstance(listed, Mapping) else None
    names = [each.get("id") for each in entries if isinstance(each, Mapping)] if isinstance(entries, list) else []
    info, more = get_json(address, "/info", token, timeout_s)
    models = tuple(on_one_line(name) for name in names if isinstance(name, str))
    return About(software or more, models, info if isinstance(info, Mapping) else {})


def choose_model(inputs: Inputs, known: About, path: str) -> str:
    """Returns the first model that takes such inputs, as our /info tells; else the first that the server lists."""
    route = path.partition("?")[0].rstrip("/").rpartition("/")[2]
    wanted = {"texts": ("embed-text",), "pictures": ("detect", "classify"), "tensors": ("tensors",)}
    fitting = (route,) if route in wanted["pictures"] else wanted.get(inputs.kind, ())
    first = next((name for name, kind in kinds(known).items() if kind in fitting), "")
    return first or next(iter(known.models), "")


def kinds(known: About) -> dict[str, str]:
    """Returns the kind of every model, as our /info has it; nothing of other servers."""
    models = known.info.get("models")
    entries = models.items() if isinstance(models, Mapping) else ()
    return {name: str(each.get("kind", "")) for name, each in entries if isinstance(each, Mapping)}


def choose_route(address: Address, inputs: Inputs, known: About, model: str) -> Address:
    """Returns the address with its route: as given, or the one that the inputs and the model suggest."""
    base = address.path.rstrip("/")
    if base:
        return address
    if inputs.kind == "tensors":
        if not model:
            raise ConfigError(f"{address}: which model?", "name it with --model, or the whole route")
        return address.at(f"/v2/models/{urllib.parse.quote(model, safe='')}/infer")
    if inputs.kind == "pictures":
        return address.at("/classify" if kinds(known).get(model) == "classify" else "/detect")
    return address.at("/v1/embeddings")


def open_target(
    address: Address, inputs: Inputs, *, model: str = "", token: str = "", batch: int = 1, timeout_s: float = 10.0
) -> Target:
    """Returns the server with the requests for it; raises DeviceError where nobody listens."""
    if not token.isprintable() or not token.isascii():
        raise ConfigError("--token: printable ASCII characters were expected")
    address.resolved()
    known = about(address, token, timeout_s)
    named = model or choose_model(inputs, known, address.path)
    routed = choose_route(address, inputs, known, named)
    form = forms.form_of(routed.path)
    payloads = tuple(forms.payloads(form, routed.path, inputs, named or "default", batch))
    said = named if model or known.info.get("server") == "anynpu" else ""  # others may not know the header
    requests = tuple(request_bytes(routed, each.body, each.content_type, token, model=said) for each in payloads)
    named = named or "default"
    return Target(routed, form, named, inputs.source, payloads, requests, known)


def closed_plan(target: Target, count: int, timeout_s: float, connections: int = 1) -> Plan:
    """Returns the plan of exactly this many requests, one after the other on each connection."""
    return Plan(
        target.address, target.requests, connections, timeout_s, until=lambda n, s: "enough" if n >= count else ""
    )


def first_request(target: Target, timeout_s: float) -> tuple[Traffic, Checked]:
    """Returns the first answer; anything but a right one raises DeviceError with what to do about it."""
    plan = closed_plan(target, 1, timeout_s)
    traffic = generate(Plan(plan.address, plan.requests, 1, timeout_s, until=plan.until, give_up=1))
    checked = check(target.form, target.payloads, traffic)
    if checked.good:
        return traffic, checked
    outcome, answer = next(iter(checked.outcomes)), traffic.answers[0][1] if traffic.answers else None
    status = answer.status if answer else None
    excerpt = f": {on_one_line(checked.example[:100])}" if checked.example else ""
    if traffic.error is not None:
        raise traffic.error
    hints = {
        401: "give --token",
        403: "give --token",
        404: "name the whole route, such as http://HOST:PORT/v1/embeddings",
        405: "name the whole route, such as http://HOST:PORT/v1/embeddings",
    }
    if status is not None and 300 <= status < 400 and answer is not None:
        to = on_one_line(answer.header("location")) or "nowhere"
        raise DeviceError(f"{target.address}: redirects to {to} (HTTP {status})", "POST", status, hint=f"name {to}")
    causes = {
        TIMED_OUT: f"no answer in {timeout_s:g} s; --timeout waits longer",
        NOT_HTTP: "what listens there is not an HTTP server",
    }
    shown = f"HTTP {outcome}" if status is not None else outcome
    raise DeviceError(
        f"{target.address}: {shown}{excerpt}",
        call="POST",
        code=status,
        cause=causes.get(outcome, ""),
        hint=hints.get(status or 0, ""),
    )
