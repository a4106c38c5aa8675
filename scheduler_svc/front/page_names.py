"""Names of the pages of prompts. What a prompt has in common with one named lately is compared, not hashed again.

Prompts are remembered by their root and first page, the newest of each: what conversations and shared beginnings need.
A root is one tenant's own where tenants share no pages, so nobody learns from the time this takes what he could not
learn from the cache of pages.
"""

from array import array
from collections import OrderedDict
from typing import Any

from scheduler_svc.core.page_hash import HASH_BYTES, hash_pages

MAX_BYTES = 8 * 1024 * 1024
_BYTES_A_PROMPT = 512
_TOKEN_BYTES = 4


class PageNames:
    """Names the pages of one process's prompts."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._named: OrderedDict[tuple[bytes, bytes], tuple[bytes, bytes]] = OrderedDict()
        """Tokens and names by root and first page, the newest last."""

    def of(self, root: bytes, prompt: "array[int]", page_size: int) -> bytes:
        """The names of the prompt's full pages, one behind the other. Cost: a microsecond for each that is new."""
        tokens, page_bytes = prompt.tobytes(), page_size * _TOKEN_BYTES
        if len(tokens) < page_bytes:
            return b""
        beginning = (root, tokens[:page_bytes])
        old_tokens, old_names = self._take(beginning)
        num_common = _num_common_pages(old_tokens, tokens, page_bytes)
        names = old_names[: num_common * HASH_BYTES]
        parent: Any = names[-HASH_BYTES:] or None
        names += b"".join(hash_pages(root, prompt, page_size, parent, num_common))
        self._keep(beginning, tokens, names)
        return names

    def _take(self, beginning: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        found = self._named.pop(beginning, None)
        if found is None:
            return b"", b""
        self._num_bytes -= _size(*found)
        return found

    def _keep(self, beginning: tuple[bytes, bytes], tokens: bytes, names: bytes) -> None:
        self._named[beginning] = tokens, names
        self._num_bytes += _size(tokens, names)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= _size(*self._named.popitem(last=False)[1])


def _num_common_pages(some: bytes, others: bytes, page_bytes: int) -> int:
    """How many pages two prompts begin with both; halves what is not known yet."""
    low, high = 0, min(len(some), len(others)) // page_bytes
    while low < high:
        middle = (low + high + 1) // 2
        if some.startswith(others[low * page_bytes : middle * page_bytes], low * page_bytes):
            low = middle
        else:
            high = middle - 1
    return low


def _size(tokens: bytes, names: bytes) -> int:
    return len(tokens) + len(names) + _BYTES_A_PROMPT
