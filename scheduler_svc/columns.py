"""Packed little-endian columns as they travel on the links, whatever the machine's own byte order.

Knows nothing of messages. Reading checks lengths: a column that is not whole raises ``ColumnError``.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import unpack

HASH_BYTES = 16
INT, LONG, FLOAT, ROW = "i", "Q", "f", "H"
WIDTHS = {INT: 4, LONG: 8, FLOAT: 4}
SIGN, LANES = 2**31, 512
FOREIGN_ORDER = sys.byteorder == "big"


class ColumnError(ValueError):
    """A column's length is not what it must be."""


def pack(typecode: str, values: Iterable[float]) -> bytes:
    """The bytes of ``values``: int32 (``i``), uint64 (``Q``), float32 (``f``) or uint16 (``H``)."""
    column = values if isinstance(values, array) and values.typecode == typecode else array(typecode, values)
    if not FOREIGN_ORDER:
        return column.tobytes()
    swapped = array(typecode, column)
    swapped.byteswap()
    return swapped.tobytes()


def ints(values: Iterable[int]) -> bytes:
    """The bytes of an int32 column."""
    return pack(INT, values)


def rows(values: Iterable[int]) -> bytes:
    """The bytes of a uint16 column: the rows of a plan."""
    return pack(ROW, values)


def joined_ints(parts: "Sequence[array[int]]") -> bytes:
    """The bytes of int32 columns, one behind the other; nothing is copied twice."""
    return b"".join([ints(part) for part in parts] if FOREIGN_ORDER else parts)


def longs(values: Iterable[int]) -> bytes:
    """The bytes of a uint64 column."""
    return pack(LONG, values)


def floats(values: Iterable[float]) -> bytes:
    """The bytes of a float32 column."""
    return pack(FLOAT, values)


def read_ints(content: bytes, name: str) -> "array[int]":
    """The int32 values of a column.

    Raises: ColumnError: ``name`` holds no whole number of values.
    """
    return _read(INT, content, name)


def read_longs(content: bytes, name: str) -> "array[int]":
    """The uint64 values of a column.

    Raises: ColumnError: ``name`` holds no whole number of values.
    """
    return _read(LONG, content, name)


def _read(typecode: str, content: bytes, name: str) -> "array[int]":
    if len(content) % WIDTHS[typecode]:
        raise ColumnError(f"{name}: {len(content)} bytes are no whole number of values of {WIDTHS[typecode]} bytes")
    column = array(typecode)
    column.frombytes(content)
    if FOREIGN_ORDER:
        column.byteswap()
    return column


def ids_are_below(token_ids: "array[int]", limit: int) -> bool:
    """Whether all ids are in 0..limit-1.

    Hundreds are judged at once, as the 32-bit lanes of one number: a lane's highest bit is set if its id is negative,
    or if it is once 2^31 - limit is added to all of them, which no lane carries into the next.
    """
    content = token_ids.tobytes()
    signs, gaps = _lanes(SIGN), _lanes(max(0, SIGN - limit))
    for start in range(0, len(content), LANES * 4):
        ids = int.from_bytes(content[start : start + LANES * 4], sys.byteorder)
        if ids & signs or (ids + gaps) & signs:
            return False
    return True


@lru_cache(maxsize=8)
def _lanes(value: int) -> int:
    """A number with the value in each of its lanes."""
    return int.from_bytes(array("I", [value]).tobytes() * LANES, sys.byteorder)


def read_hashes(content: bytes, name: str) -> list[bytes]:
    """The hashes of a column.

    Raises: ColumnError: ``name`` holds no whole number of hashes.
    """
    if len(content) % HASH_BYTES:
        raise ColumnError(f"{name}: {len(content)} bytes are no whole number of hashes")
    return list(unpack(f"{HASH_BYTES}s" * (len(content) // HASH_BYTES), content))


def equal_lengths(**columns: Sequence[object] | bytes) -> None:
    """Columns that describe the same things have the same number of entries.

    Raises: ColumnError: they have not.
    """
    if len({len(column) for column in columns.values()}) > 1:
        raise ColumnError(", ".join(f"{name} has {len(column)} entries" for name, column in columns.items()))
