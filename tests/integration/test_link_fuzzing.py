"""Frames between the processes with bytes changed: in the right session, from peers that are known. Whatever they turn
into, the scheduler's books stay right, its loop goes on, and who speaks the protocol is served."""

import random
import secrets
from array import array
from collections.abc import Iterator

import pytest
import zmq
from pagewire.internal.v1 import front_pb2, worker_pb2
from pagewire.v1 import admin_pb2
from support.engine_thread import EngineThread
from support.raw_front import RawFront
from support.scripted_worker import ScriptedWorker

SEEDS = range(3)
PROMPT = list(range(1, 40))
UNLIMITED = admin_pb2.UpdateLimitsRequest(
    max_num_seqs=256, max_num_batched_tokens=1024, max_queued_requests=0, max_queued_tokens=0
)


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    with EngineThread(worker_lost_seconds=20.0) as running:
        yield running


def changed(content: bytes, draw: random.Random) -> bytes:
    """A few bytes of a frame replaced, inserted, dropped or repeated."""
    found = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5))):
        place = draw.randrange(len(found)) if found else 0
        kind = draw.randrange(5)
        if kind == 0:
            found[place : place + 1] = bytes([draw.randrange(256)])
        elif kind == 1:
            found[place:place] = draw.randbytes(draw.randint(1, 8))
        elif kind == 2:
            del found[place : place + draw.randint(1, 8)]
        elif kind == 3:
            found += found[place : place + 40]
        else:
            del found[max(1, place) :]
    return bytes(found)


def front_frames(front: RawFront, draw: random.Random) -> list[bytes]:
    """Frames of every kind, as a front of this session would send them."""
    submits = [
        front.make(PROMPT[: draw.randint(1, 39)], max_tokens=3, request_id="r", n=draw.randint(1, 3)) for _ in "abc"
    ]
    limits = admin_pb2.UpdateLimitsRequest(max_num_seqs=256, max_queued_requests=0)
    question = front_pb2.PrefixQuestion(prompt_token_ids=array("i", PROMPT).tobytes(), root_hash=bytes(16))
    pin = front_pb2.PinQuestion(pin_id="p", ttl_ms=1, page_hashes=bytes(range(32)))
    parts: list[dict[str, object]] = [
        {"submits": submits},
        {"cancels": [front_pb2.Cancel(key=submits[0].key, deadline=True)]},
        {"stops": [front_pb2.Stop(key=submits[1].key, index=0, num_output_tokens=1)]},
        {"scanned": [front_pb2.Scanned(key=submits[2].key)]},
        {"resumes": [front_pb2.Resume(key=9, tenant="t", request_id="r")]},
        {"queries": [front_pb2.Query(query_id=1, load=True), front_pb2.Query(query_id=2, get_request_id="r")]},
        {"queries": [front_pb2.Query(query_id=3, update_limits=limits), front_pb2.Query(query_id=4, workers=True)]},
        {"queries": [front_pb2.Query(query_id=5, explain_prefix=question)]},
        {"queries": [front_pb2.Query(query_id=6, quote=submits[0]), front_pb2.Query(query_id=7, list_pins=True)]},
        {"queries": [front_pb2.Query(query_id=8, pin_prefix=pin), front_pb2.Query(query_id=9, unpin_id="p")]},
        {"hello": front_pb2.FrontHello(protocol_version=1, pid=1)},
    ]
    frames = [front_pb2.FrontFrame(session=front.session, front_id=front.front_id, **part) for part in parts]  # type: ignore[arg-type]
    return [frame.SerializeToString() for frame in frames]


@pytest.mark.parametrize("seed", SEEDS)
def test_changed_frames_of_a_front(engine: EngineThread, seed: int) -> None:
    draw = random.Random(seed)
    with (
        RawFront(engine.front_endpoint) as front,
        RawFront(engine.front_endpoint) as other,
        ScriptedWorker(engine.worker_endpoint) as worker,
    ):
        front.wait_ready()
        other.wait_ready()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with context.socket(zmq.DEALER) as link:
            link.setsockopt(zmq.LINGER, 0)
            link.connect(engine.front_endpoint)
            other.front_id = secrets.randbits(64) | 1
            for _ in range(40):
                for content in front_frames(other, draw):
                    link.send(changed(content, draw))
                    while link.poll(0):
                        link.recv()
                front.query(update_limits=UNLIMITED)  # a changed frame may have set any
                check(front)
        context.term()
        check(front)
        assert worker.rows.violations == []
        assert worker.refusals == []
    engine.wait_clean()


@pytest.mark.parametrize("seed", SEEDS)
def test_changed_frames_of_a_worker(engine: EngineThread, seed: int) -> None:
    """A worker whose results are damaged now and then is started again each time; what it did well counts."""
    draw = random.Random(seed)

    def damage(step_id: int, content: bytes) -> list[bytes]:
        return [content] if draw.random() < 0.85 else [changed(content, draw)]

    with RawFront(engine.front_endpoint) as front:
        with ScriptedWorker(engine.worker_endpoint, on_result=damage) as broken:
            front.wait_ready()
            keys = [front.submit([number, *PROMPT], max_tokens=12) for number in range(30)]
            for content in (b"", secrets.token_bytes(100), worker_pb2.WorkerFrame().SerializeToString()):
                broken.send_bytes(content)
            front.wait(lambda: sum(front.requests[key].is_over for key in keys) >= 10, "some end", 30)
        with ScriptedWorker(engine.worker_endpoint) as sound:
            front.wait_over(*keys, seconds=30)
            check(front)
            assert sound.refusals == []
    engine.wait_clean()


def check(front: RawFront) -> None:
    """A request of somebody who speaks the protocol is answered as ever."""
    key = front.submit([250, 251], max_tokens=4)
    front.wait_over(key)
    told = front.requests[key]
    assert told.rejected is None
    assert len(told.output()) == 4
