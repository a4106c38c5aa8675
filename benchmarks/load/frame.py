"""Writes one `Generate` request as HTTP/2 tools send it (a gRPC frame) to standard output.

python benchmarks/load/frame.py "a prompt" 32 > frame.bin
"""

import struct
import sys

from pagewire.v1 import generation_pb2


def frame(request: generation_pb2.GenerateRequest) -> bytes:
    """A zero byte (not compressed), the message's length as 4 bytes, big-endian, and the message."""
    message = request.SerializeToString()
    return struct.pack(">BI", 0, len(message)) + message


def main(text: str, max_tokens: str) -> None:
    """The arguments of the command line."""
    request = generation_pb2.GenerateRequest(text=text)
    request.stop.max_tokens, request.stop.ignore_eos = int(max_tokens), True
    sys.stdout.buffer.write(frame(request))


if __name__ == "__main__":
    main(*sys.argv[1:3])
