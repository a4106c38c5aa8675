"""How the core and the links name an output: one 64-bit number, so that columns of names travel as they are.

    | front's number: 8 bits | the front's key of the request: 46 bits | output index: 10 bits |

The scheduler numbers its fronts, a front numbers its requests; so no two live outputs have one name, and a step's
tokens reach their fronts without a look at each of them. A front ignores its own number. Requests that may change their
front have the number RESUMABLE and are numbered by the scheduler.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import compress

from scheduler_svc.columns import longs
from scheduler_svc.core.types import RequestKey

_NUMBERS = 1 << 8
MAX_FRONTS = _NUMBERS - 1
RESUMABLE = _NUMBERS - 1
MAX_FRONT_KEY = (1 << 46) - 1
_INDEX_BITS, _FRONT_SHIFT = 10, 56
MAX_OUTPUTS = 1 << _INDEX_BITS

_MASKS = [bytes(number == wanted for number in range(_NUMBERS)) for wanted in range(_NUMBERS)]


def output_key(front_number: int, front_key: int, index: int) -> RequestKey:
    """The name of an output."""
    return RequestKey(front_number << _FRONT_SHIFT | front_key << _INDEX_BITS | index)


def front_key_and_index(key: int) -> tuple[int, int]:
    """The front's key of the request, and which of its outputs."""
    return key >> _INDEX_BITS & MAX_FRONT_KEY, key & MAX_OUTPUTS - 1


def by_front(
    keys: Sequence[RequestKey], token_ids: "array[int]"
) -> "Iterator[tuple[int, Sequence[RequestKey], array[int]]]":
    """The tokens of each front: its number, and both columns as far as they are its own."""
    numbers = longs(keys)[7::8]
    if numbers.count(numbers[:1]) == len(numbers):
        yield numbers[0], keys, token_ids
        return
    for number in sorted(set(numbers)):
        mask = numbers.translate(_MASKS[number])
        yield number, array("Q", compress(keys, mask)), array("i", compress(token_ids, mask))  # type: ignore[misc]
