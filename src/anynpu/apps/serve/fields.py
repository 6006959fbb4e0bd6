"""The fields of a JSON object that a client sent: each is of its type or refused by name, none is ignored."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any

from anynpu.apps.web.message import Refusal
from anynpu.schema import near

DATA_URL = re.compile(r"data:[\w.+/-]*(?:;[\w.=+-]+)*;base64,")
TEXT = {str}
MOST_TOKEN_ID = 2**31 - 1


def wrong(name: str, wanted: str, value: Any) -> Refusal:
    """Returns the refusal of a value of the wrong kind."""
    return Refusal(422, f"{name}: {wanted} was expected, not {described(value)}", parameter=name)


def described(value: Any) -> str:
    """Returns what a JSON value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return repr(value)[:60]


class Fields:
    """A JSON object of which only known fields are taken."""

    def __init__(self, data: Any, known: Sequence[str], where: str = "the body") -> None:
        if not isinstance(data, dict):
            raise Refusal(422, f"{where}: an object was expected, not {described(data)}")
        for name in data:
            if name not in known:
                hint = "known: " + ", ".join(known)
                raise Refusal(
                    422, f"{str(name)[:60]}: no such field{near(str(name), known)}", hint, parameter=str(name)[:60]
                )
        self.data: Mapping[str, Any] = data

    def value(self, name: str) -> Any:
        """Returns a field that must be there."""
        if name not in self.data:
            raise Refusal(422, f"{name}: is missing", parameter=name)
        return self.data[name]

    def text(self, name: str, default: str = "") -> str:
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise wrong(name, "text", value)
        return value

    def model(self) -> str:
        """Returns the name of the model that is asked for; an empty string where it is left to the server."""
        if "model" not in self.data:
            return ""
        name = self.text("model")
        if not name and self.data["model"] is not None:
            raise Refusal(404, "the model '' is not served here", "leave model out", "model_not_found", "model")
        return name

    def flag(self, name: str) -> bool | None:
        value = self.data.get(name)
        if value is not None and not isinstance(value, bool):
            raise wrong(name, "true or false", value)
        return value

    def whole(self, name: str, low: int, high: int) -> int | None:
        value = whole(self.data.get(name))
        if value is None:
            return None
        if type(value) is not int or not low <= value <= high:
            raise wrong(name, f"a whole number from {low} to {high}", value)
        return value

    def share(self, name: str) -> float | None:
        value = self.data.get(name)
        if value is None:
            return None
        if not is_number(value) or not 0 <= value <= 1:
            raise wrong(name, "a number from 0 to 1", value)
        return float(value)

    def choice(self, name: str, choices: Sequence[str]) -> str | None:
        value = self.data.get(name)
        if value is not None and value not in choices:
            raise wrong(name, " or ".join(choices), value)
        return value if value is None else str(value)

    def texts(self, name: str, most: int) -> list[str]:
        value = self.value(name)
        if not isinstance(value, list):
            raise wrong(name, "a list of texts", value)
        return [_text(f"{name}[{i}]", text) for i, text in enumerate(bounded(name, value, most))]

    def inner(self, name: str, known: Sequence[str]) -> Fields:
        """Returns the fields of an object inside this one; one that is left out or null has none."""
        value = self.data.get(name)
        return Fields({} if value is None else value, known, name)

    def unsupported(self, name: str, *allowed: Any) -> None:
        """Refuses a field of another server's form that means nothing here, unless it asks for what is done anyway."""
        value = self.data.get(name)
        if value is not None and value not in allowed:
            raise Refusal(422, f"{name}: {described(value)} is not supported", "leave it out", parameter=name)


def bounded(name: str, items: list[Any], most: int) -> list[Any]:
    """Returns a list that is not empty and not too long."""
    if not items:
        raise Refusal(422, f"{name}: the list is empty", parameter=name)
    if len(items) > most:
        raise Refusal(
            413, f"{name}: {len(items):,} items, at most {most:,} are taken at once", "split them", parameter=name
        )
    return items


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(name, "text", value)
    if not value:
        raise Refusal(422, f"{name}: the text is empty", parameter=name)
    return value


def texts_or_tokens(name: str, value: Any, most: int) -> tuple[str | tuple[int, ...], ...]:
    """Returns the items of OpenAI's and TEI's inputs: a text, texts, token ids, or lists of token ids."""
    if isinstance(value, str):
        return (_text(name, value),)
    if isinstance(value, list) and len(value) <= most and {*map(type, value)} == TEXT and all(value):
        return tuple(value)  # the same as below, in a fraction of the time
    if not isinstance(value, list):
        raise wrong(name, "a text, texts, or token ids", value)
    if value and is_number(value[0]):
        return (_tokens(name, value),)
    items: list[str | tuple[int, ...]] = []
    for i, item in enumerate(bounded(name, value, most)):
        if type(item) is not type(value[0]):
            raise wrong(f"{name}[{i}]", "the same kind as in the first item", item)
        items.append(_tokens(f"{name}[{i}]", item) if isinstance(item, list) else _text(f"{name}[{i}]", item))
    return tuple(items)


def is_number(value: Any) -> bool:
    """Says whether a JSON value is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole(value: Any) -> Any:
    """Returns 5 for 5.0: JSON has one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _tokens(name: str, value: list[Any]) -> tuple[int, ...]:
    if not value:
        raise Refusal(422, f"{name}: the list is empty", parameter=name)
    tokens = tuple(map(whole, value))
    for token in tokens:
        if type(token) is not int or not 0 <= token <= MOST_TOKEN_ID:
            raise wrong(name, "a list of token ids", token)
    return tokens


def picture(name: str, value: Any) -> bytes:
    """Returns the bytes of a picture in base64, with or without the head of a data: URL."""
    if not isinstance(value, str):
        raise wrong(name, "a picture in base64", value)
    head = DATA_URL.match(value[:200])
    try:
        content = base64.b64decode(value[head.end() :] if head else value, validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(
            422, f"{name}: is not base64 of a picture", "addresses of pictures are not fetched", parameter=name
        ) from None
    if not content:
        raise Refusal(422, f"{name}: the picture is empty", parameter=name)
    return content


def pictures(name: str, value: Any, most: int) -> tuple[bytes, ...]:
    """Returns one picture or a list of them."""
    if isinstance(value, list):
        return tuple(picture(f"{name}[{i}]", item) for i, item in enumerate(bounded(name, value, most)))
    return (picture(name, value),)
