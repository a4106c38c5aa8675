"""The load of `benchmarks.front` from h2load: two processes, each with one request on all its streams, one with a stop.

h2load counts bytes and HTTP statuses; what was generated, the server's own counter tells.
"""

import re
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from pagewire.v1 import generation_pb2 as pb

from benchmarks.load.frame import frame

CONNECTIONS = 4
METHOD = "/pagewire.v1.GenerationService/Generate"


def run(target: str, *, streams: int, tokens: int, max_delay_ms: int) -> float:
    """All streams at once, to their ends; seconds it took. Raises SystemExit where one failed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pagewire-h2load-") as directory:
        loads = []
        for stops in ((), ("a stop string",)):
            body = Path(directory) / f"frame-{len(stops)}.bin"
            body.write_bytes(frame(request(tokens, max_delay_ms, stops)))
            at_once = streams // 2
            command = ["h2load", "-n", str(at_once), "-c", str(CONNECTIONS), "-m", str(at_once // CONNECTIONS)]
            command += ["-H", "content-type: application/grpc", "-H", "te: trailers", "-d", str(body)]
            loads.append(subprocess.Popen([*command, f"http://{target}{METHOD}"], stdout=subprocess.PIPE, text=True))
        for load in loads:
            told = load.communicate()[0]
            if f" {streams // 2} succeeded" not in told:
                raise SystemExit(f"h2load: {told}")
    return time.monotonic() - began


def request(tokens: int, max_delay_ms: int, stops: tuple[str, ...]) -> pb.GenerateRequest:
    """Text out; a stop string never comes."""
    made = pb.GenerateRequest(text="a stream of h2load")
    made.stop.max_tokens, made.stop.ignore_eos = tokens, True
    made.stop.stop.extend(stops)
    made.output.max_delay_ms = max_delay_ms
    made.sampling.temperature = 0
    return made


def tokens_generated(metrics_port: int) -> int:
    """The server's counter of output tokens."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as answer:
        text = answer.read().decode()
    return sum(int(float(value)) for value in re.findall(r"^pagewire_generation_tokens_total.* (\S+)$", text, re.M))
