"""`python -m benchmarks.lone_request`: what one request costs each process when nothing else happens.

One request of 512 token ids for one output token goes the whole way without sockets, threads or a model: written as
LLM.generate does, prepared as the front does, submitted, planned, taken up by the worker as far as the device's inputs,
its result committed and told. Each process's part is timed by itself. Before each part the caches are emptied by
walking over memory (`cold`), as they are when 20 ms lie between requests, or not (`hot`). Microseconds, medians.
"""

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pagewire.internal.v1 import front_pb2, worker_pb2
from pagewire.v1 import generation_pb2
from pagewire_client import SamplingParams
from pagewire_client.options import text_request

from benchmarks.gpu_shapes import write_model
from benchmarks.scheduler import Link
from gpu_worker import codec as gpu_codec
from gpu_worker.batch_plan import StepResult as WorkerResult
from gpu_worker.request_rows import RequestRows, RowLimits
from gpu_worker.step_columns import fill_columns, layout_of
from gpu_worker.step_shape import GraphShapes
from scheduler_svc import front_codec, worker_codec
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import CoreConfig, StepId, StepResult, WorkerCard, WorkerId
from scheduler_svc.expected_rows import ExpectedRows
from scheduler_svc.front.figures import Figures
from scheduler_svc.front.form_reader import FormReader
from scheduler_svc.front.preparation import Preparation
from scheduler_svc.front.prompt import PromptReader
from scheduler_svc.front.served_model import build_served_model
from scheduler_svc.front.service_state import Serving
from scheduler_svc.front_desk import FrontDesk
from scheduler_svc.messages import WorkerResult as ReadResult
from scheduler_svc.outbox import Outbox

PROMPT_TOKENS, PAGE_SIZE, NUM_PAGES, MAX_MODEL_LEN, VOCABULARY = 512, 32, 20_000, 8192, 16_384
WARM_UP, REPEATS = 20, 200
CACHE_BYTES = 96 * 2**20
WORKER = WorkerId("worker-1")
T = TypeVar("T")


class Stopwatch:
    """Seconds of the parts of a way, repetition by repetition."""

    def __init__(self) -> None:
        self.is_cold = True
        self.parts: dict[str, list[float]] = {}
        self._memory = np.zeros(CACHE_BYTES, dtype=np.uint8)

    def next_process(self) -> None:
        """Another one's caches know nothing of what was done so far."""
        if self.is_cold:
            self._memory[::64] += 1

    def time(self, name: str, do: Callable[[], T]) -> T:
        began = time.perf_counter()
        result = do()
        self.parts.setdefault(name, []).append(time.perf_counter() - began)
        return result


class Way:
    """All that a request passes, made once."""

    def __init__(self, directory: Path) -> None:
        path = write_model("tiny", directory)
        card = worker_pb2.ModelCard(
            name="tiny",
            tokenizer_json=(path / "tokenizer.json").read_bytes(),
            vocab_size=VOCABULARY,
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=[2],
        )
        self._serving = Serving(
            model=build_served_model(card), page_size=PAGE_SIZE, hash_key=bytes(32), max_request_tokens=MAX_MODEL_LEN
        )
        pool = ThreadPoolExecutor(1)
        state: Any = self
        self.preparation = Preparation(state, PromptReader(pool, pool), FormReader(pool), Figures())
        self.core = Scheduler(CoreConfig(max_num_batched_tokens=8192, max_num_seqs=256))
        self.core.add_worker(
            WorkerCard(
                worker_id=WORKER,
                num_pages=NUM_PAGES,
                page_size=PAGE_SIZE,
                max_num_seqs=256,
                max_num_batched_tokens=8192,
                max_model_len=MAX_MODEL_LEN,
                first_step_id=StepId(1),
            ),
            0.0,
        )
        link: Any = Link()
        self.box: Outbox = link.box
        self.desk = FrontDesk(self.core, link, unavailable_retry_ms=1000)
        self.desk.vocab_size = VOCABULARY
        self.expected = ExpectedRows()
        limits = RowLimits(
            max_num_seqs=256,
            max_num_batched_tokens=8192,
            max_model_len=MAX_MODEL_LEN,
            page_size=PAGE_SIZE,
            num_pages=NUM_PAGES,
            vocab_size=VOCABULARY,
        )
        self.rows, self.shapes = RequestRows(limits), GraphShapes(limits, 600_000_000)
        self.image = np.zeros(2**20, dtype=np.uint8)
        self.columns: dict[Any, Any] = {}

    def require(self) -> Serving:
        """As the front's ServiceState."""
        return self._serving

    def go(self, number: int, prompt: list[int], watch: Stopwatch) -> None:
        """One request."""
        now = number * 0.02
        watch.next_process()
        asked = watch.time("client writes", lambda: _asked(str(number), prompt))
        watch.next_process()
        submit = watch.time("front reads and prepares", lambda: self._prepared(asked))
        submit.key = number
        frame = front_pb2.FrontFrame(session=1, front_id=7, submits=[submit]).SerializeToString()
        watch.next_process()
        watch.time("scheduler reads and submits", lambda: self.desk.apply(front_codec.read_front_frame(frame), now))
        plan = watch.time("scheduler plans", lambda: self.core.plan(WORKER, now))[0]
        if plan is None:
            raise SystemExit("nothing was planned")
        self.expected.apply(plan)
        told = watch.time("scheduler writes the plan", lambda: worker_codec.plan(1, 1, plan))
        watch.next_process()
        decoded = watch.time("worker reads the plan", lambda: _decoded(told))
        work = watch.time("worker accounts", lambda: self.rows.advance(decoded))
        watch.time("worker fills inputs", lambda: self._fill(work))
        row = int(work.sampled_rows[0])
        ended = WorkerResult(step_id=plan.step_id, epoch=1, rows=work.sampled_rows, token_ids=np.array([97], np.int32))
        answer = gpu_codec.encode_result(1, ended)
        watch.next_process()
        read = watch.time("scheduler reads the result", lambda: worker_codec.read_worker_frame(answer).body)
        if not isinstance(read, ReadResult) or list(read.rows) != [row]:
            raise SystemExit("another row sampled")
        watch.time("scheduler commits and tells", lambda: self._commit(plan.step_id, read, now))

    def _prepared(self, content: bytes) -> Any:
        prepared = self.preparation.prepare_at_once(generation_pb2.GenerateManyRequest.FromString(content).start)
        if prepared is None:
            raise SystemExit("the request waits for something")
        return prepared.submit

    def _fill(self, work: Any) -> None:
        shape = self.shapes.fitting(work)
        if shape is None:
            raise SystemExit("no graph fits the step")
        if shape not in self.columns:  # as where a graph was captured
            self.columns[shape] = layout_of(shape).on_host(self.image)
        fill_columns(self.columns[shape], self.rows, work, shape)

    def _commit(self, step_id: StepId, read: ReadResult, now: float) -> bytes:
        result = StepResult(
            worker_id=WORKER,
            step_id=step_id,
            rows=array("i", read.rows),
            token_ids=read.token_ids,
            statuses=read.statuses,
            attachments=read.logprobs,
            failed=False,
            seconds=0.002,
        )
        committed = self.core.commit(result, now)
        self.desk.metrics.steps.committed(result, committed, 0.003, now)
        self.desk.deliver_tokens(committed)
        self.desk.deliver(committed.events, now)
        return self.box.take(1)


def _asked(name: str, prompt: list[int]) -> bytes:
    options = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True).options()
    options |= {"request_id": name, "token_ids": True, "max_delay_ms": 1000}
    return generation_pb2.GenerateManyRequest(start=text_request(prompt, options)).SerializeToString()


def _decoded(content: bytes) -> Any:
    frame = gpu_codec.decode_frame(content)
    if frame is None:
        raise SystemExit("the plan is no frame")
    return gpu_codec.decode_plan(frame)


async def main() -> int:
    """Prints a JSON object for cold and one for hot caches."""
    draw, watch, number = random.Random(1), Stopwatch(), 0
    with tempfile.TemporaryDirectory(prefix="pagewire-lone-") as directory:
        way = Way(Path(directory))
        for name in ("cold", "hot"):
            watch.is_cold = name == "cold"
            watch.parts.clear()
            for _ in range(WARM_UP + REPEATS):
                number += 1
                way.go(number, [draw.randrange(256) for _ in range(PROMPT_TOKENS)], watch)
            parts = {part: statistics.median(seconds[WARM_UP:]) * 1e6 for part, seconds in watch.parts.items()}
            rounded = {part: round(us) for part, us in {**parts, "all": sum(parts.values())}.items()}
            print(json.dumps({"caches": name, **rounded}), flush=True)
        way.require().model.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
