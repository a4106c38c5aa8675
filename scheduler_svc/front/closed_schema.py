"""Objects that list their properties have no others, unless their schema says so.

JSON schema allows any others by default, and a model that likes blanks never comes out of the name of one. What is
valid by the closed schema is valid by the open one. A schema that must have a property it does not list stays as it is,
and so does one that combines objects (`allOf`, or `properties` beside `anyOf`, `$ref` and the like): each part would
rule the others' properties out.
"""

from collections.abc import Iterator
from typing import Any

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames")
_COMBINING = ("anyOf", "oneOf", "$ref", "not", "if", "dependentSchemas")
_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties")


def closed_schema(schema: Any) -> Any:
    """The schema, closed; it is changed. Of something that is no object nothing is changed."""
    found = list(_schemas(schema))
    if not any(_combines(each) for each in found):
        for each in found:
            if _lists_all(each) and not any(name in each for name in _OPEN):
                each["additionalProperties"] = False
    return schema


def _lists_all(schema: dict[str, Any]) -> bool:
    """Whether an object lists its properties, and all that it must have are among them."""
    properties, required = schema.get("properties"), schema.get("required", [])
    return isinstance(properties, dict) and isinstance(required, list) and properties.keys() >= set(map(str, required))


def _combines(schema: dict[str, Any]) -> bool:
    return "allOf" in schema or ("properties" in schema and any(name in schema for name in _COMBINING))


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all inside it. Raises: RecursionError if they lie too deep, which is checked before."""
    if not isinstance(schema, dict):
        return
    yield schema
    parts = [schema[name] for name in _SINGLE if name in schema]
    for name in (*_MAPS, *_LISTS, "items"):
        inner = schema.get(name)
        if name in _MAPS and isinstance(inner, dict):
            parts += inner.values()
        elif isinstance(inner, list):
            parts += inner
    for part in parts:
        yield from _schemas(part)
