"""Names of pages: a keyed hash over a page's tokens and, through its parent's name, over all tokens before it.

Two pages have one name only if the tokens of both chains are equal position by position and both chains have one root.
The root stands for the deployment's secret key, the tenant's salt, the model and the adapter. Names are 128 bits of
keyed blake2b (RFC 7693): they cannot be made to collide by someone who does not hold the key, so a match needs no
comparison of tokens.

    root ──▶ H(root, root ‖ tokens[0:P]) ──▶ H(root, name₀ ‖ tokens[P:2P]) ──▶ …        H(k, m): blake2b keyed with k

Token ids are encoded as little-endian int32 whatever the host's byte order. Only full pages have names.
"""

import sys
from array import array
from hashlib import blake2b
from typing import cast

from scheduler_svc.core.types import PageHash

HASH_BYTES = 16
HASH_VERSION = 1
"""Changes whenever the same tokens would get another name."""
NO_PARENT = PageHash(bytes(HASH_BYTES))
"""What is told of a first page's parent; never hashed."""

_TOKEN_BYTES = 4
_FOREIGN_ORDER = sys.byteorder == "big"


def root_hash(key: bytes, salt: str, model: str, adapter: str, tenant: str = "") -> bytes:
    """The 16-byte root of a chain. ``key``: the deployment's secret, at most 64 bytes; ``tenant``: whose the pages are;
    empty: everybody's.

    Each field is preceded by its length, so no two different field lists give the same bytes.
    """
    digest = blake2b(key=key, digest_size=HASH_BYTES, person=b"pagewire" + HASH_VERSION.to_bytes(8, "little"))
    for text in (salt, model, adapter, tenant) if tenant else (salt, model, adapter):
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()


def cache_identity(key: bytes, fingerprint: bytes, page_size: int) -> bytes:
    """What cached pages of a worker are good for: its own fingerprint of their content, the scheme of the names and the
    deployment's key, which it does not reveal."""
    digest = blake2b(
        fingerprint, key=key, digest_size=HASH_BYTES, person=b"page cache" + HASH_VERSION.to_bytes(2, "big")
    )
    digest.update(page_size.to_bytes(4, "little"))
    return digest.digest()


def hash_pages(
    root: bytes, token_ids: "array[int]", page_size: int, parent: PageHash | None = None, start_page: int = 0
) -> list[PageHash]:
    """Names of the full pages of ``token_ids`` from its page ``start_page`` on; a last page that is not full has none.

    ``parent`` is the name of the page before that one in the chain, None if it is the chain's first. To continue a
    chain over new tokens give them alone, with ``start_page`` 0 and the last name as ``parent``. About one microsecond
    a page of 32.
    """
    page_bytes = page_size * _TOKEN_BYTES
    view = _swapped(token_ids) if _FOREIGN_ORDER else token_ids.tobytes()
    previous = root if parent is None else parent
    names: list[bytes] = []
    for start in range(start_page * page_bytes, len(view) - page_bytes + 1, page_bytes):
        previous = blake2b(previous + view[start : start + page_bytes], key=root, digest_size=HASH_BYTES).digest()
        names.append(previous)
    return cast("list[PageHash]", names)


def _swapped(token_ids: "array[int]") -> bytes:
    swapped = array("i", token_ids)
    swapped.byteswap()
    return swapped.tobytes()
