"""HTTP/2 as bytes, right and wrong: frames built by hand, for a server that must survive all of them."""

import os
import random
import struct
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED = 0x1, 0x4, 0x8


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"", length: int | None = None) -> bytes:
    """One frame; ``length`` lies about its payload's."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field without indexing (RFC 7541, 6.2.2)."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def call(method: bytes, *more: bytes) -> bytes:
    """The header block of a gRPC call."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", method),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    return b"".join(literal(name, value) for name, value in fields) + b"".join(more)


def message(content: bytes, *, compressed: int = 0, length: int | None = None) -> bytes:
    """A gRPC message; ``length`` lies."""
    return struct.pack(">BI", compressed, len(content) if length is None else length) + content


def attacks(generate: bytes, request: bytes, seed: int) -> Iterator[tuple[str, bytes]]:
    """Connections, each as a name and its bytes. ``generate`` is a method's path, ``request`` a message it takes."""
    draw = random.Random(seed)
    start = PREFACE + frame(SETTINGS)
    head = call(generate)
    whole = frame(HEADERS, END_HEADERS, 1, head) + frame(DATA, END_STREAM, 1, message(request))
    yield "another protocol", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield "half a preface", PREFACE[:10]
    yield "noise", draw.randbytes(5000)
    yield "noise after the preface", start + draw.randbytes(5000)
    yield "a header block of noise", start + frame(HEADERS, END_HEADERS, 1, draw.randbytes(200))
    yield (
        "headers without end",
        start
        + b"".join(
            [
                frame(HEADERS, 0, 1, head),
                *(frame(CONTINUATION, 0, 1, literal(b"x-%d" % n, b"y" * 200)) for n in range(2000)),
            ]
        ),
    )
    yield "a frame that is too large", start + frame(DATA, 0, 1, b"", length=0xFFFFFF)
    yield "a stream that was never opened", start + frame(DATA, END_STREAM, 77, message(request))
    yield "an even stream", start + frame(HEADERS, END_HEADERS, 2, head)
    yield "settings out of range", PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0xFFFFFFFF))
    yield "a window that overflows", start + frame(WINDOW, 0, 0, struct.pack(">I", 0x7FFFFFFF)) * 2
    yield "padding longer than the frame", start + frame(DATA, PADDED, 1, b"\xff\x00")
    yield "a promise", start + frame(PUSH, END_HEADERS, 1, bytes(4) + head)
    yield (
        "a message that lies about its length",
        start + frame(HEADERS, END_HEADERS, 1, head) + frame(DATA, END_STREAM, 1, message(request, length=0xFFFFFFF0)),
    )
    yield (
        "a message that says it is compressed",
        start + frame(HEADERS, END_HEADERS, 1, head) + frame(DATA, END_STREAM, 1, message(request, compressed=1)),
    )
    yield (
        "resets in a row",
        start
        + b"".join(
            frame(HEADERS, END_HEADERS, stream, head) + frame(RST_STREAM, 0, stream, bytes(4))
            for stream in range(1, 4000, 2)
        ),
    )
    yield "pings in a row", start + frame(PING, 0, 0, bytes(8)) * 5000
    yield "settings in a row", start + frame(SETTINGS) * 5000
    yield "empty data in a row", start + frame(HEADERS, END_HEADERS, 1, head) + frame(DATA, 0, 1) * 5000
    for place in range(60):
        content = bytearray(start + whole * 2)
        for _ in range(draw.randint(1, 8)):
            content[draw.randrange(len(PREFACE), len(content))] = draw.randrange(256)
        yield f"changed bytes {place}", bytes(content[: draw.randint(30, len(content))] + os.urandom(place % 7))


def _length(value: int) -> bytes:
    """An integer with a prefix of seven bits (RFC 7541, 5.1)."""
    if value < 127:
        return bytes([value])
    rest, value = [], value - 127
    while value >= 128:
        rest.append(value % 128 + 128)
        value //= 128
    return bytes([127, *rest, value])
