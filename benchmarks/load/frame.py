"""Writes one `Generate` request as HTTP/2 tools send it (a gRPC frame) to standard output.

python benchmarks/load/frame.py "a prompt" 32 > frame.bin
"""

import struct
import sys

from pagewire.v1 import generation_pb2


def main(text: str, max_tokens: str) -> None:
    """A frame is a zero byte (not compressed), the message's length as 4 bytes, big-endian, and the message."""
    request = generation_pb2.GenerateRequest(text=text)
    request.stop.max_tokens, request.stop.ignore_eos = int(max_tokens), True
    message = request.SerializeToString()
    sys.stdout.buffer.write(struct.pack(">BI", 0, len(message)) + message)


if __name__ == "__main__":
    main(*sys.argv[1:3])
