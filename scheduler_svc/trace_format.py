"""How calls of the core are written down, and what they leave out: the lines of a trace file.

The first line names the version and holds the core's limits; each further line is one call, ``[name, now, arguments,
outcome]`` in JSON. Columns are base64 of little-endian int32.

No token is written. Plans depend on tokens in two ways only: whether one ends its request, and which pages hold the
same chain. So a token is written as a fingerprint of its page's name if it is the last of a page, else as ``STOP`` if
it is among its request's stop tokens, else as ``BLANK``; a stop token that ends a page is listed besides. Equal chains
have equal fingerprints and so get equal names in the replay, others do not (31 bits a page). A fingerprint is part of a
keyed hash: without the deployment's key it tells nothing of the page, nor that a prompt was sent under another salt (a
replay counts no salted pages). Ids of requests, seeds and sampling options are
not written; names of tenants, lengths and times are.

The outcome is a digest of all that the core answered but for tokens and names of pages: plan, events, keys.
"""

import base64
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any, Final

from scheduler_svc.core.page_hash import NO_PARENT, hash_pages
from scheduler_svc.core.types import (
    CoreConfig,
    LiveLimits,
    NewPin,
    NewRequest,
    PageHash,
    PageId,
    Published,
    SamplingParams,
    SchedulingPolicy,
    StepResult,
    WorkerCard,
)

TRACE_VERSION = 1
BLANK, STOP = 0, 1
ENDS = "ends"
"""In a result: stop tokens that end a page, as fingerprints; the replay knows them from the beginning."""
_ROOT = bytes([1]) * 16
"""Root of all chains in a replay: fingerprints tell salts and models apart."""
_PLAIN = (int, float, str, Mapping, type(None))
_GONE = -2
_LEFT_OUT: Final = {"hash", "parent", "parent_pages", "stop_token_id", "sampling", "attachments"}
_STANDS_FOR_ITS_LENGTH: Final = {"token_ids"}
_REQUEST_COLUMNS: Final = {"prompt", "page_hashes", "root_hash", "stop_token_ids", "sampling"}
_RESULT_COLUMNS: Final = {"rows", "token_ids", "statuses"}


class TraceError(ValueError):
    """The file is no trace, or not one of this version; the message is one line."""


def fingerprint(name: bytes) -> int:
    """What the last token of a page of this name is written as."""
    return max(int.from_bytes(name[:4], "little") & 0x7FFFFFFF, STOP + 1)


def digest_of(answer: object) -> str:
    """A short name of what the core answered."""
    return blake2b(repr(_outline(answer)).encode(), digest_size=6).hexdigest()


def _outline(value: Any) -> Any:
    """An answer without tokens and names, the same in every process."""
    if is_dataclass(value) and not isinstance(value, type):
        return [
            type(value).__name__,
            *(_field(f.name, getattr(value, f.name)) for f in fields(value) if _counts(f.name)),
        ]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return [_outline(item) for item in value]
    return value


def _field(name: str, value: Any) -> Any:
    return len(value) if name in _STANDS_FOR_ITS_LENGTH else _outline(value)


def _counts(name: str) -> bool:
    return name not in _LEFT_OUT


# Values as JSON and back.


def pack(column: "Sequence[int]") -> str:
    """A column as text."""
    values = array("i", column)
    if sys.byteorder != "little":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode()


def unpack(text: str) -> "array[int]":
    """The column of a text."""
    values = array("i", base64.b64decode(text, validate=True))
    if sys.byteorder != "little":
        values.byteswap()
    return values


def header(config: CoreConfig) -> dict[str, Any]:
    """The first line."""
    return {"pagewire_trace": TRACE_VERSION, "config": _plain_fields(config, ())}


def read_header(line: Any) -> CoreConfig:
    """The limits of a first line.

    Raises: TraceError.
    """
    if line is None:
        raise TraceError("no line is there: a running server writes in pieces of 64 KiB, and the rest when it stops")
    if not isinstance(line, dict) or line.get("pagewire_trace") != TRACE_VERSION:
        raise TraceError(f"no trace of version {TRACE_VERSION}")
    try:
        given = dict(line["config"])
        return CoreConfig(**{**given, "scheduling_policy": SchedulingPolicy(given["scheduling_policy"])})
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"the config in the first line is not one of this version: {error}") from error


def write_request(request: NewRequest, page_size: int) -> dict[str, Any]:
    """A request without its prompt; ``page_size`` 0 if no worker has joined yet."""
    names: Sequence[PageHash] = request.page_hashes
    if request.root_hash and page_size and not names:
        names = hash_pages(request.root_hash, request.prompt, page_size)
    return {
        **_plain_fields(request, _REQUEST_COLUMNS),
        "num_prompt": len(request.prompt),
        "num_names": len(request.page_hashes),
        "pages": pack([fingerprint(name) for name in names]),
        "cached": bool(request.root_hash),
        "stops": bool(request.stop_token_ids),
        "index": request.sampling.output_index,
    }


def read_request(written: Mapping[str, Any], page_size: int, ends: Mapping[int, int]) -> NewRequest:
    """A request that the core treats as it did the one that was written; ``ends``: of all results of the trace."""
    given, taken = dict(written), ("num_prompt", "num_names", "pages", "cached", "stops", "index")
    num_prompt, num_names, pages, is_cached, has_stops, index = (given.pop(name) for name in taken)
    prompt = _prompt(num_prompt, pages, page_size)
    names = hash_pages(_ROOT, prompt, page_size)[:num_names] if page_size and num_names else []
    return NewRequest(
        **given,
        prompt=prompt,
        page_hashes=[*names, *[PageHash(_ROOT)] * (num_names - len(names))],
        root_hash=_ROOT if is_cached else b"",
        stop_token_ids=frozenset([STOP, ends.get(given["key"], STOP)] if has_stops else []),
        sampling=SamplingParams(output_index=index),
    )


def _prompt(num_tokens: int, pages: str, page_size: int) -> "array[int]":
    """Tokens that stand for those of a prompt whose pages have these fingerprints."""
    prompt = array("i", bytes(4 * num_tokens))
    for number, last in enumerate(unpack(pages)):
        if (number + 1) * page_size <= num_tokens:
            prompt[(number + 1) * page_size - 1] = last
    return prompt


def write_pin(pin: NewPin) -> dict[str, Any]:
    """A pin, its pages as fingerprints."""
    return {**_plain_fields(pin, ("page_hashes",)), "pages": pack([fingerprint(name) for name in pin.page_hashes])}


def read_pin(written: Mapping[str, Any], page_size: int) -> NewPin:
    """The pin as it was written, its pages named as the replay names them."""
    given = dict(written)
    pages = given.pop("pages")
    prompt = _prompt(len(unpack(pages)) * page_size, pages, page_size)
    return NewPin(**given, page_hashes=hash_pages(_ROOT, prompt, page_size) if page_size else [])


def write_result(result: StepResult, marks: Sequence[int], ends: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """A result with marks in place of its tokens, all blank if there are none; ``ends``: keys, and marks that stop."""
    written = _plain_fields(result, _RESULT_COLUMNS)
    written |= {"rows": pack(result.rows), "num_token_ids": len(result.token_ids)}
    if ends:
        written[ENDS] = ends
    if any(marks):
        written["token_ids"] = pack(marks)
    if result.statuses:
        written["statuses"] = base64.b64encode(result.statuses).decode()
    return written


def read_result(written: Mapping[str, Any]) -> StepResult:
    """The result as it was written."""
    given = dict(written)
    given.pop(ENDS, None)
    num_token_ids = given.pop("num_token_ids")
    token_ids = unpack(given.pop("token_ids", "")) or array("i", bytes(4 * num_token_ids))
    statuses = base64.b64decode(given.pop("statuses", ""))
    return StepResult(**{**given, "rows": unpack(given["rows"]), "token_ids": token_ids, "statuses": statuses})


def write_card(card: WorkerCard) -> dict[str, Any]:
    """A worker's card; of its inventory the pages, fingerprints and places of their parents in it, -1 for none and -2
    for one that is gone (a page behind it is not found again in a replay)."""
    places = {each.hash: place for place, each in enumerate(card.inventory)}
    return {
        **_plain_fields(card, ("inventory",)),
        "pages": pack([each.page for each in card.inventory]),
        "names": pack([fingerprint(each.hash) for each in card.inventory]),
        "parents": pack(
            [places.get(each.parent, -1 if each.parent == NO_PARENT else _GONE) for each in card.inventory]
        ),
    }


def read_card(written: Mapping[str, Any]) -> WorkerCard:
    """The card as it was written, its inventory named as the replay names pages."""
    given = dict(written)
    pages, names, parents = (unpack(given.pop(name)) for name in ("pages", "names", "parents"))
    found: dict[int, PageHash] = {-1: NO_PARENT, _GONE: PageHash(b"\xff" * len(NO_PARENT))}
    waiting = list(range(len(pages)))
    while ready := [place for place in waiting if parents[place] in found]:
        for place in ready:
            page, parent = array("i", bytes(4 * given["page_size"])), found[parents[place]]
            page[-1] = names[place]
            found[place] = hash_pages(_ROOT, page, len(page), None if parent == NO_PARENT else parent)[0]
        waiting = [place for place in waiting if place not in found]
    inventory = [
        Published(page=PageId(page), hash=found[place], parent=found[parents[place]])
        for place, page in enumerate(pages)
        if place in found
    ]
    return WorkerCard(**given, inventory=inventory)


def write_limits(limits: LiveLimits) -> dict[str, Any]:
    """All of them."""
    return _plain_fields(limits, ())


def read_limits(written: Mapping[str, Any]) -> LiveLimits:
    """Raises: TypeError."""
    return LiveLimits(**written)


def _plain_fields(value: Any, leave_out: Iterable[str]) -> dict[str, Any]:
    """Fields of a dataclass as JSON knows them. Columns are written by name, or not at all: they may hold tokens."""
    named = {f.name: getattr(value, f.name) for f in fields(value) if f.name not in leave_out}
    plain = {name: one.value if isinstance(one, Enum) else one for name, one in named.items()}
    return {name: one for name, one in plain.items() if isinstance(one, _PLAIN)}
