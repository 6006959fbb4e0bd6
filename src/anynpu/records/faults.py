"""What in JSON data its JSON Schema does not allow.

Our schemas use few words of the language (type, const, enum, minimum, required, properties, additionalProperties,
items), so that checking them needs no package; tests hold this check to the jsonschema package.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any


def faults(data: Any, schema: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    """Yields what in `data` the schema does not allow: the place, and what was expected."""
    wanted = schema.get("type")
    names = [wanted] if isinstance(wanted, str) else wanted
    if names and not any(_is(data, name) for name in names):
        yield where, f"{' or '.join(names)} was expected"
        return
    if "const" in schema and data != schema["const"]:
        yield where, f"{schema['const']!r} was expected"
    if "enum" in schema and data not in schema["enum"]:
        yield where, f"one of {', '.join(map(str, schema['enum']))} was expected"
    if "minimum" in schema and isinstance(data, int | float) and data < schema["minimum"]:
        yield where, f"at least {schema['minimum']} was expected"
    if isinstance(data, dict):
        prefix = f"{where}." if where else ""
        known = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in data:
                yield f"{prefix}{name}", "is missing"
        for name, value in data.items():
            inner = known.get(name, schema.get("additionalProperties"))
            if inner is not None:
                yield from faults(value, inner, f"{prefix}{name}")
    elif isinstance(data, list) and "items" in schema:
        for i, item in enumerate(data):
            yield from faults(item, schema["items"], f"{where}[{i}]")


def _is(value: Any, name: str) -> bool:
    """Says whether a value is of a type of JSON Schema; Python reads NaN and Infinity, which are no JSON."""
    if name == "number":
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if name == "integer":
        whole = isinstance(value, float) and value.is_integer()
        return (isinstance(value, int) and not isinstance(value, bool)) or whole
    kinds: dict[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, kinds[name])
