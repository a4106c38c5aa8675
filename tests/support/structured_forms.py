"""Forms an output may have, drawn at random, and whether a text has them."""

import math
import re
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

characters = st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs", "Cc"])
"""Others have bytes that some tokenizers have no tokens for."""
names = st.sampled_from(["a", "b c", 'q"', "zwölf", "n\n", "键"])
scalars = st.one_of(
    st.fixed_dictionaries({"type": st.just("string"), "maxLength": st.integers(0, 6)}),
    st.integers(-20, 20).flatmap(
        lambda low: st.fixed_dictionaries(
            {"type": st.just("integer"), "minimum": st.just(low), "maximum": st.integers(low, low + 300)}
        )
    ),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"const": {"x": [1, None]}}]),
    st.lists(st.one_of(st.text(characters, max_size=4), st.integers(-9, 9), st.none()), min_size=1, max_size=4).map(
        lambda values: {"enum": values}
    ),
)


def _lists(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"type": st.just("array"), "items": items, "minItems": st.integers(0, 2), "maxItems": st.integers(2, 3)}
    )


@st.composite
def _objects(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(names, values, min_size=1, max_size=3))
    required = [name for name in properties if draw(st.booleans())]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _any_of(parts: list[Any]) -> dict[str, Any]:
    return {"anyOf": parts}


schemas = st.recursive(
    scalars,
    lambda inner: st.one_of(_lists(inner), _objects(inner), st.lists(inner, min_size=1, max_size=3).map(_any_of)),
    max_leaves=6,
)


def has_form(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value is valid by a schema of ``schemas``."""
    if "anyOf" in schema:
        return any(has_form(value, each) for each in schema["anyOf"])
    if "enum" in schema:
        return any(type(value) is type(each) and value == each for each in schema["enum"])
    if "const" in schema:
        return bool(value == schema["const"])
    kind = schema["type"]
    if kind == "object":
        properties = schema["properties"]
        return (
            isinstance(value, dict)
            and set(schema["required"]) <= set(value) <= set(properties)
            and all(has_form(each, properties[name]) for name, each in value.items())
        )
    if kind == "array":
        fits = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
        return fits and all(has_form(each, schema["items"]) for each in value)
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema.get("maxLength", math.inf)
    if kind == "integer":
        return (
            isinstance(value, int) and not isinstance(value, bool) and schema["minimum"] <= value <= schema["maximum"]
        )
    return isinstance(value, bool) if kind == "boolean" else value is None


def _repeated(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(inner, st.sampled_from(["?", "{0,2}", "{2}", "{1,3}"])).map(
        lambda found: f"(?:{found[0]}){found[1]}"
    )


expressions = st.recursive(
    st.sampled_from(["a", "bc", "[0-9]", "[^a-y ]", r"\.", "é", "日本", " ", r"\n", "[a-c]", r"\x41", "-"]),
    lambda inner: st.one_of(
        _repeated(inner),
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
    ),
    max_leaves=8,
)
"""Regular expressions whose matches are short; they mean the same in Python."""


def has_no_blanks(text: str) -> bool:
    """Whether a JSON text has one blank behind commas and colons and no other between its elements."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    return not re.search(r"\s", re.sub("[,:] ", "", bare))
