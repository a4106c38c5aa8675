"""A streamed completion of an OpenAI-style server, over a bare socket so that the client costs little."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence

_HEAD = "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nConnection: close\r\n"


class HttpError(Exception):
    """The server refused a request."""


async def completion(
    host: str, port: int, model: str, prompt: Sequence[int], num_output: int, temperature: float
) -> AsyncIterator[tuple[float, int]]:
    """Moment and number of tokens of each message.

    A message counts as one token but for the last, which counts as what is missing: the server is only asked at the end
    how many there were, since asking for it in each message would slow it down.

    Raises:
        HttpError: the server refused the request.
    """
    values = {"model": model, "prompt": list(prompt), "max_tokens": num_output, "temperature": temperature}
    values |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps(values).encode()
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    writer.write(f"{_HEAD}Host: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    try:
        status = (await reader.readline()).decode()
        if " 200 " not in status:
            raise HttpError(status + (await reader.read(2000)).decode(errors="replace"))
        last, seen, counted = 0.0, 0, 0
        async for line in reader:
            if not line.startswith(b"data: {"):
                continue
            if b'"choices":[]' in line:
                counted = json.loads(line[6:])["usage"]["completion_tokens"]
                continue
            if seen:
                yield last, 1
            last, seen = time.perf_counter(), seen + 1
        if seen:
            yield last, counted - seen + 1
    finally:
        writer.close()
