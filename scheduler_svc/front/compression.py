"""Messages that callers compress, unpacked within the limit on messages.

gRPC's own decompression makes the whole message before it looks at its size: 16 MiB of gzip may be 16 GiB. So it is
off, and messages come as they were sent. That one is compressed shows by its first bytes, with which no protobuf
message begins (wire type 7); gzip is the one kind that is accepted.
"""

import zlib
from typing import Any, Final

from scheduler_svc.front.errors import ExhaustedError, InvalidRequestError, Reason

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
_GZIP: Final = b"\x1f\x8b"
_IDENTITY_BIT, _GZIP_BIT = 1 << 0, 1 << 2
_WITH_GZIP_HEADER = 31

OPTIONS: "Final[list[tuple[str, Any]]]" = [
    ("grpc.per_message_decompression", 0),
    ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_BIT | _GZIP_BIT),
]
"""Channel arguments of a server whose messages pass ``unpacked``."""
PLAIN_OPTIONS: "Final[list[tuple[str, Any]]]" = [("grpc.compression_enabled_algorithms_bitset", _IDENTITY_BIT)]
"""Of one whose messages do not."""


def unpacked(content: bytes) -> bytes:
    """A message's bytes.

    Raises: ExhaustedError: they are too many; InvalidRequestError: they are not what was compressed.
    """
    if not content.startswith(_GZIP):
        return content
    reader = zlib.decompressobj(_WITH_GZIP_HEADER)
    try:
        found = reader.decompress(content, MAX_MESSAGE_BYTES + 1)
    except zlib.error:
        raise _unreadable() from None
    if len(found) > MAX_MESSAGE_BYTES:
        message = f"the message has more than {MAX_MESSAGE_BYTES} bytes"
        raise ExhaustedError(message, reason=Reason.MESSAGE_TOO_LARGE.value)
    if not reader.eof or reader.unused_data:
        raise _unreadable()
    return found


def _unreadable() -> InvalidRequestError:
    return InvalidRequestError.at("request", "the bytes cannot be decompressed")
