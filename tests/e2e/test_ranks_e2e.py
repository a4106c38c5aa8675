"""A worker of two ranks through the whole stack: equal to transformers, and gone as a whole when one rank is."""

import os
import signal
from pathlib import Path

import psutil
from pagewire_client import Delta
from support.conditions import wait_until
from support.greedy import run_many
from support.stack import ONE_THREAD, Stack, attached_log
from support.tiny_models import greedy, make_model, random_prompt

MAX_TOKENS = 300
WORKER = ("--tensor-parallel-size", "2", "--max-model-len", "512", "--kv-cache-memory-bytes", "20000000")


def other_rank(stack: Stack) -> psutil.Process:
    [process] = psutil.Process(stack.workers[-1].pid).children()
    return process


def test_two_ranks_and_the_loss_of_each(tmp_path: Path) -> None:
    tiny = make_model(tmp_path, num_key_value_heads=2)
    prompts = [random_prompt(length) for length in (1, 17, 60)]
    expected = [tuple(greedy(tiny.reference, prompt, 12)) for prompt in prompts]
    long_output = greedy(tiny.reference, prompts[0], MAX_TOKENS)
    with Stack(tiny.path, scheduler=("--worker-lost-seconds", "60"), worker=(*ONE_THREAD, *WORKER)) as stack:
        assert run_many(stack.target, prompts, max_tokens=12) == expected
        with attached_log(stack):
            options = {"temperature": 0.0, "max_tokens": MAX_TOKENS, "token_ids": True, "ignore_eos": True}
            stream, ids = stack.client.stream(prompts[0], **options), []
            while len(ids) < 3:
                event = next(stream)
                ids += event.token_ids if isinstance(event, Delta) else ()
            worker = stack.workers[-1]
            other_rank(stack).send_signal(signal.SIGKILL)
            assert worker.wait(10)
            assert worker.exit_code() == 1
            stack.start_worker()
            for event in stream:
                ids += event.token_ids if isinstance(event, Delta) else ()
            assert ids == long_output
            stack.await_idle()
            other = other_rank(stack)
            os.kill(stack.workers[-1].pid, signal.SIGKILL)
            wait_until(lambda: not other.is_running() or other.status() == psutil.STATUS_ZOMBIE, "rank 1 ends too")
