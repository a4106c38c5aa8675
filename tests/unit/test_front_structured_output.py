"""Forms that callers ask for: those that can be followed become grammars, all others are refused, in little time."""

import copy
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pagewire.v1 import generation_pb2 as pb
from support.fake_scheduler import toy_card

from scheduler_svc.front.closed_schema import closed_schema
from scheduler_svc.front.grammar_pool import GrammarPool, GrammarRefusedError
from scheduler_svc.front.structured_output import MAX_BYTES, form_of, structured_faults

SECONDS = 2.0
"""In which a form is refused, a process's start included."""


@pytest.fixture(scope="module")
def pool() -> Iterator[GrammarPool]:
    made = GrammarPool(toy_card())
    yield made
    made.close()


def message(kind: str, content: Any) -> pb.StructuredOutput:
    if kind == "choice":
        return pb.StructuredOutput(choice=pb.StructuredOutput.Choice(choices=content))
    return pb.StructuredOutput(**{kind: content})


def refusal(pool: GrammarPool, kind: str, content: Any) -> str:
    """Why there is no such grammar; empty if there is one."""
    faults = list(structured_faults(message(kind, content)))
    if faults:
        assert all(field.startswith(f"structured.{kind}") for field, _ in faults)
        return faults[0][1]
    form = form_of(message(kind, content))
    assert form is not None
    try:
        pool.make(*form)
    except GrammarRefusedError as error:
        return str(error)
    return ""


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
HOSTILE = [
    ("json_schema", "", "1 to 65536 bytes"),
    ("json_schema", "{", "is no JSON"),
    ("json_schema", "[]", "must be an object"),
    ("json_schema", "true", "must be an object"),
    ("json_schema", '{"type": "objct"}', "Invalid type"),
    ("json_schema", '{"a": "' + "x" * 5_000_000 + '"}', "1 to 65536 bytes"),
    ("json_schema", nested(10_000), "65536 bytes|inside each other"),
    ("json_schema", nested(5_000), "inside each other"),
    ("json_schema", nested(101), "inside each other"),
    ("json_schema", '{"$ref": "#"}', "leads back to itself"),
    ("json_schema", json.dumps({"$defs": {"node": NODE}, "$ref": "#/$defs/node"}), "leads back to itself"),
    ("json_schema", json.dumps({"$defs": {"a": {"$ref": "#/$defs/a"}}}), "leads back to itself"),
    ("json_schema", '{"$ref": "http://127.0.0.1:1/schema.json"}', "must begin with #"),
    ("json_schema", '{"$ref": "file:///etc/passwd"}', "must begin with #"),
    ("json_schema", '{"$ref": "#/$defs/none"}', "leads nowhere"),
    ("json_schema", '{"type": "array", "items": {"pattern": "a"}, "uniqueItems": true}', "Unimplemented keys"),
    ("json_schema", '{"type": "string", "pattern": "("}', "unclosed group"),
    ("json_schema", '{"type": "integer", "minimum": 3, "maximum": 2}', "Unsatisfiable"),
    ("json_schema", '{"enum": []}', "."),
    ("json_schema", '{"type": "integer", "minimum": 100000000000000000000}', "number 1000.*beyond 9007199254740991"),
    ("json_schema", '{"type": "integer", "minimum": 1e19}', "has the number 1e19"),
    ("json_schema", '{"enum": [-9007199254740993]}', "has the number -9007199254740993"),
    ("json_schema", '{"maximum": NaN}', "has the number NaN"),
    ("json_schema", '{"maximum": 9' + "9" * 5000 + "}", "has the number 9{40}: beyond"),
    ("regex", "a\\", "ends with a backslash"),
    ("regex", "\\\\\\", "ends with a backslash"),
    ("regex", "", "1 to 8192 bytes"),
    ("regex", "(", r"^cannot be followed; llguidance: invalid regex .*error: unclosed group$"),
    ("regex", "(a+)+$" * 1000, "invalid regex"),
    ("regex", "(a+)+" * 1000, "too many"),
    ("regex", "(a{1,1000}){1,1000}", "too many"),
    ("regex", "x" * 8193, "1 to 8192 bytes"),
    ("regex", "(?=a)b", "look-around"),
    ("regex", r"[^\s\S]", "^there is no text of this form$"),
    ("choice", [], "1 to 1024 texts"),
    ("choice", ["a"] * 1025, "1 to 1024 texts"),
    ("choice", ["a", ""], "must not be empty"),
    ("choice", ["x" * MAX_BYTES, "y"], "65536 bytes in all"),
    ("grammar", "no root", "^cannot be followed; llguidance: .*Expected token"),
    ("grammar", 'rule ::= "a"', "^cannot be followed; llguidance: No 'root' rule"),
    ("grammar", "root ::= other", "not found"),
    ("grammar", 'other: "a"', "."),
    ("grammar", "start: start", "no text of this form"),
    ("grammar", "start: <|sp|>", "special tokens"),
    ("grammar", 'start: %json {"$ref": "http://127.0.0.1:1/x"}', "does not fetch"),
    ("grammar", "root ::= " + "(" * 20_000, "."),
]


@pytest.mark.parametrize(("kind", "content", "why"), HOSTILE, ids=lambda value: str(value)[:24])
def test_str_01_what_cannot_be_followed_is_refused_in_time(
    pool: GrammarPool, kind: str, content: Any, why: str
) -> None:
    began = time.process_time()
    assert re.search(why, refusal(pool, kind, content))
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("json_object", True),
        ("json_schema", "{}"),
        ("json_schema", json.dumps({"$defs": {"a": {"type": "null"}}, "anyOf": [{"$ref": "#/$defs/a"}] * 2})),
        ("json_schema", json.dumps({"const": {"$ref": "elsewhere"}})),
        ("json_schema", json.dumps({"properties": {"$ref": {"type": "integer"}}})),
        ("json_schema", json.dumps({"type": "object", "properties": {f"p{n}": {} for n in range(300)}})),
        ("json_schema", json.dumps({"type": "object", "properties": {"a": {}}, "required": ["b"]})),
        ("json_schema", json.dumps({"const": 2**53 - 1})),
        ("regex", r"^\d{3}-\d{4}$"),
        ("regex", "\\\\"),
        ("choice", ["</s>", "<|sp|>"]),
        ("choice", ["yes", "no", "no way", "日本", '"\n\\']),
        ("grammar", 'start: "a" | "b" start'),
        ("grammar", 'root ::= "a" | "b" root'),
    ],
)
def test_what_can_be_followed_becomes_a_grammar(pool: GrammarPool, kind: str, content: Any) -> None:
    assert refusal(pool, kind, content) == ""


def test_a_form_is_tried_once(pool: GrammarPool) -> None:
    assert pool.remembered("regex", "once") is None
    made = pool.make("regex", "once")
    pool.close()
    assert pool.remembered("regex", "once") == made


def test_nothing_asked_for_is_no_form() -> None:
    for structured in (pb.StructuredOutput(), pb.StructuredOutput(json_object=False)):
        assert form_of(structured) is None
        assert list(structured_faults(structured)) == []


def test_a_model_without_an_end_of_sequence_token_gives_no_form() -> None:
    card = toy_card()
    del card.eos_token_ids[:]
    pool = GrammarPool(card)
    with pytest.raises(GrammarRefusedError, match="served model's tokenizer"):
        pool.make("regex", "a")
    pool.close()


A, B = {"a": {"type": "integer"}}, {"b": {"properties": {"properties": {"type": "null"}}}}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({"properties": A}, {"properties": A, "additionalProperties": False}),
        (
            {"anyOf": [{"properties": A}, {"items": {"properties": A}}]},
            {
                "anyOf": [
                    {"properties": A, "additionalProperties": False},
                    {"items": {"properties": A, "additionalProperties": False}},
                ]
            },
        ),
        (
            {"properties": B},
            {
                "properties": {"b": {"properties": {"properties": {"type": "null"}}, "additionalProperties": False}},
                "additionalProperties": False,
            },
        ),
        *(
            (same, same)
            for same in (
                {},
                {"type": "object"},
                {"properties": A, "additionalProperties": {"type": "null"}},
                {"properties": A, "patternProperties": {"x": {}}},
                {"allOf": [{"properties": A}, {"properties": B}]},
                {"properties": A, "required": ["a", "b"]},
                {"properties": A, "anyOf": [{"required": ["a"]}]},
                {"items": {"$defs": {"x": {"properties": A, "$ref": "#"}}}, "properties": A},
            )
        ),
    ],
)
def test_listed_properties_are_all_there_are(schema: dict[str, Any], closed: dict[str, Any]) -> None:
    assert closed_schema(copy.deepcopy(schema)) == closed
