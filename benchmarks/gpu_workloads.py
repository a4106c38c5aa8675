"""The workloads of the GPU comparison: token ids from fixed seeds, endings ignored, so that every engine does the same.

    b1, b64, ragged256, prefix64        offline: one request, batches, and 64 requests behind a shared prefix
    equal100                            offline: 100 times the same short prompt, 512 tokens each
    serve64, serve256                   streams of a server, 64 and 256 at a time
    longmix                             64 streams that decode while a long prompt arrives every half second
    open                                streams that arrive at a given rate, whatever becomes of them

A seed is used once in a run, so that no prefix cache knows a prompt from an earlier repetition.
"""

import random
from collections.abc import Callable, Sequence

from benchmarks.workloads import Request, Workload

SERVED_VOCABULARY = 49152
"""Of the tokenizer that servers have; ids of served workloads stay below 40,000."""
_VOCAB = 10000
_MIN_OPEN, _OPEN_SECONDS = 100, 8
_NUM_LONG = 12


def _prompt(draw: random.Random, length: int) -> list[int]:
    return [draw.randint(1, _VOCAB) for _ in range(length)]


def fixed(count: int, num_input: int, num_output: int, seed: int) -> list[Request]:
    draw = random.Random(seed)
    return [(_prompt(draw, num_input), num_output) for _ in range(count)]


def ragged(seed: int) -> list[Request]:
    """256 requests of 100 to 1024 tokens in and out: always the same, but for every first id."""
    draw = random.Random(0)
    requests = [(_prompt(draw, draw.randint(100, 1024)), draw.randint(100, 1024)) for _ in range(256)]
    for prompt, _ in requests:
        prompt[0] = 1 + (prompt[0] + 997 * seed) % _VOCAB
    return list(requests)


def shared_prefix(seed: int) -> list[Request]:
    """64 requests of 2048 shared tokens and 64 of their own, 64 out."""
    draw = random.Random(seed)
    prefix = _prompt(draw, 2048)
    return [(prefix + _prompt(draw, 64), 64) for _ in range(64)]


def served(count: int, num_input: int, num_output: int, seed: int) -> list[Request]:
    draw = random.Random(seed)
    return [([draw.randint(5, 40000) for _ in range(num_input)], num_output) for _ in range(count)]


def _one_stream(repetition: int) -> Workload:
    firsts = [request for number in range(3) for request in fixed(1, 512, 1, 1000 + 3 * repetition + number)]
    return Workload(
        name="b1",
        what="offline, one request of 512 in, 257 out; and 512 in, 1 out",
        requests=fixed(1, 512, 257, 3 + repetition),
        first_token_requests=firsts,
    )


def _batch(repetition: int) -> Workload:
    return Workload(name="b64", what="offline, 64 x (1024 in, 256 out)", requests=fixed(64, 1024, 256, 6 + repetition))


def _ragged(repetition: int) -> Workload:
    what = "offline, 256 x (100 to 1024 in and out), temperature 0.6"
    return Workload(name="ragged256", what=what, requests=ragged(repetition), temperature=0.6)


def _prefix(repetition: int) -> Workload:
    what = "offline, 64 x (2048 shared + 64 in, 64 out)"
    return Workload(name="prefix64", what=what, requests=shared_prefix(8 + repetition), num_shared=2048)


def _equal(repetition: int) -> Workload:
    prompt = _prompt(random.Random(500 + repetition), 32)
    what = "offline, 100 x (the same 32 in, 512 out)"
    return Workload(name="equal100", what=what, requests=[(prompt, 512)] * 100, num_shared=32)


def _serve(name: str, num_clients: int, count: int, repetition: int) -> Workload:
    what = f"{num_clients} closed-loop streams, {count} x (512 in, 128 out)"
    return Workload(name=name, what=what, requests=served(count, 512, 128, 11 + repetition), num_clients=num_clients)


def _long_mix(repetition: int) -> Workload:
    short = served(64, 128, 1024, 100 + repetition)
    long = served(_NUM_LONG, 8192, 256, 200 + repetition)
    return Workload(
        name="longmix",
        what=f"64 streams of 128 in, 1024 out, and {_NUM_LONG} of 8192 in, 256 out, one every 0.5 s",
        requests=[*short, *long],
        arrivals=[*(0.0 for _ in short), *(0.5 * number for number in range(1, _NUM_LONG + 1))],
        num_watched=len(short),
    )


def open_loop(per_second: float, repetition: int) -> Workload:
    """Requests of 512 in, 128 out that arrive as a Poisson process, for some eight seconds."""
    count = max(_MIN_OPEN, round(per_second * _OPEN_SECONDS))
    draw, moment, arrivals = random.Random(300 + repetition), 0.0, []
    for _ in range(count):
        moment += draw.expovariate(per_second)
        arrivals.append(moment)
    return Workload(
        name="open",
        what=f"{count} x (512 in, 128 out), {per_second:.1f} a second",
        requests=served(count, 512, 128, 400 + repetition),
        arrivals=arrivals,
    )


OFFLINE = ("b1", "b64", "ragged256", "prefix64", "equal100")
SERVED = ("serve64", "serve256", "longmix", "open")
NAMES = (*OFFLINE, *SERVED)
_MAKERS: dict[str, Callable[[int], Workload]] = {
    "b1": _one_stream,
    "b64": _batch,
    "ragged256": _ragged,
    "prefix64": _prefix,
    "equal100": _equal,
    "serve64": lambda repetition: _serve("serve64", 64, 256, repetition),
    "serve256": lambda repetition: _serve("serve256", 256, 768, repetition),
    "longmix": _long_mix,
}


def gpu_workload(name: str, repetition: int, open_rate: float = 0.0) -> Workload:
    """Workload ``name`` as repetition ``repetition`` runs it; ``open`` needs its rate.

    Raises:
        KeyError: there is no such workload.
    """
    return open_loop(open_rate, repetition) if name == "open" else _MAKERS[name](repetition)


def warm_up_work(*, is_served: bool) -> Workload:
    """Starts what the workloads need, and has every kind of kernel run once."""
    requests: Sequence[Request] = served(16, 512, 64, 1) if is_served else fixed(8, 128, 16, 2)
    return Workload(name="warm-up", what="", requests=requests, num_clients=16 if is_served else 0)
