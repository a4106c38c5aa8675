"""What can be said of a StructuredOutput by its text alone: its kind, its size, and whether a schema refers in circles.

Whether it can be followed is for the grammar's process to try. Everything here costs time in proportion to the text.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

MAX_BYTES = 65_536
"""Of a schema, of a grammar, of all choices."""
MAX_REGEX_BYTES = 8192
MAX_CHOICES = 1024
MAX_DEPTH = 100
"""Objects and lists inside each other, in a schema."""
MAX_NUMBER = 2**53 - 1
"""In a schema, of either sign."""
ANY_OBJECT = '{"type": "object"}'

_NO_SCHEMAS = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose values are values, not schemas."""


def form_of(structured: Any) -> tuple[str, Any] | None:
    """Kind and content of a checked StructuredOutput, as JSON has them; None if any output will do."""
    kind = structured.WhichOneof("constraint")
    if kind == "json_object":
        return ("json_schema", ANY_OBJECT) if structured.json_object else None
    if kind == "choice":
        return "choice", list(structured.choice.choices)
    return None if kind is None else (kind, getattr(structured, kind))


def structured_faults(structured: Any) -> Iterator[tuple[str, str]]:
    """What is wrong with it: fields of GenerateRequest with descriptions."""
    kind = structured.WhichOneof("constraint")
    if kind == "choice":
        yield from _choice_faults(structured.choice.choices)
    elif kind in ("json_schema", "regex", "grammar"):
        text = getattr(structured, kind)
        limit = MAX_REGEX_BYTES if kind == "regex" else MAX_BYTES
        if not 0 < len(text.encode()) <= limit:
            yield f"structured.{kind}", f"must have 1 to {limit} bytes"
        elif kind == "json_schema":
            fault = _schema_fault(text)
            if fault:
                yield "structured.json_schema", fault


def _choice_faults(choices: Any) -> Iterator[tuple[str, str]]:
    if not 0 < len(choices) <= MAX_CHOICES or sum(len(choice.encode()) for choice in choices) > MAX_BYTES:
        yield "structured.choice", f"must hold 1 to {MAX_CHOICES} texts of {MAX_BYTES} bytes in all"
    elif not all(choices):
        yield f"structured.choice.choices[{list(choices).index('')}]", "must not be empty"


def _schema_fault(text: str) -> str:
    """What is wrong with a schema; empty: nothing that shows here."""
    try:
        schema = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_number)
    except RecursionError:
        return f"more than {MAX_DEPTH} objects and lists inside each other"
    except OverflowError as error:
        return str(error)
    except ValueError as error:
        return f"is no JSON: {error}"
    if not isinstance(schema, dict):
        return "must be an object"
    return _reference_fault(schema)


def _number(digits: str) -> float:
    """A form's numbers are followed as floats of 64 bits: others would become their neighbours."""
    number = float(digits)
    if not abs(number) <= MAX_NUMBER:
        raise OverflowError(f"has the number {digits[:40]}: beyond {MAX_NUMBER} none can be followed")
    return number


def _reference_fault(schema: Mapping[str, Any]) -> str:
    """A walk into depth over the schema and what it refers to: nothing may contain itself."""
    open_now: set[int] = {id(schema)}
    done: set[int] = set()
    path: list[tuple[Any, Iterator[Any]]] = [(schema, _parts(schema, schema))]
    try:
        while path:
            node, parts = path[-1]
            part = next(parts, None)
            if part is None:
                path.pop()
                open_now.remove(id(node))
                done.add(id(node))
            elif id(part) in open_now:
                return "a $ref leads back to itself: such an output may have no end"
            elif id(part) not in done:
                if len(path) > MAX_DEPTH:
                    return f"more than {MAX_DEPTH} objects and lists inside each other"
                open_now.add(id(part))
                path.append((part, _parts(part, schema)))
    except LookupError as error:
        return str(error.args[0])
    return ""


def _parts(node: Any, schema: Any) -> Iterator[Any]:
    """Objects and lists in a node, and what it refers to. Raises: LookupError for a reference that leads nowhere."""
    if isinstance(node, dict):
        reference = node.get("$ref")
        if isinstance(reference, str):
            yield _resolve(reference, schema)
        values: Any = (value for name, value in node.items() if name not in _NO_SCHEMAS)
    else:
        values = node
    yield from (value for value in values if isinstance(value, dict | list))


def _resolve(reference: str, schema: Any) -> Any:
    """What a reference names. Raises: LookupError."""
    if reference != "#" and not reference.startswith("#/"):
        raise LookupError("a $ref must begin with # and lie in the schema")
    found = schema
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            raise LookupError("a $ref leads nowhere")
    if not isinstance(found, dict):
        # true and false are schemas, too; they refer to nothing.
        return {}
    return found
