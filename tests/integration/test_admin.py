"""What an operator changes while a server runs, through the whole product."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from pagewire_client import AdminClient, InvalidRequestError, NotFoundError
from support.conditions import wait_until
from support.scripted_rows import Limits
from support.scripted_stack import ScriptedStack, counted, first_ids
from support.scripted_worker import ScriptedWorker

LIMITS = Limits(num_pages=100, max_num_seqs=8)
FLAGS = ("--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--max-queued-requests", "0")


@pytest.fixture(scope="module")
def stack() -> Iterator[ScriptedStack]:
    with ScriptedStack(*FLAGS) as running:
        with running.worker(LIMITS):  # its limits are the model's
            pass
        yield running


@pytest.fixture
def admin(stack: ScriptedStack) -> Iterator[AdminClient]:
    with AdminClient(stack.scheduler.internal_target, timeout=10) as client:
        yield client


def test_limits_change_for_what_comes(stack: ScriptedStack, admin: AdminClient) -> None:
    with stack.worker(LIMITS, step_seconds=0.02):
        assert stack.client.model().max_num_seqs == 4
        limits = admin.update_limits(max_num_seqs=1, max_queued_requests=1)
        assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_queued_requests) == (1, 64, 1)
        assert limits.scheduling_policy == "priority"
        wait_until(lambda: stack.client.model().max_num_seqs == 1, "fronts know")
        streams = [stack.client.stream([5, 0], max_tokens=400, token_ids=True)]
        assert first_ids(streams[0])
        streams.append(stack.client.stream([5, 1], max_tokens=400, token_ids=True))
        wait_until(lambda: stack.load().num_requests_waiting == 1, "the second one waits")
        assert stack.load().num_requests_running == 1
        admin.update_limits(max_num_seqs=4)
        assert first_ids(streams[1])
        for stream in streams:
            stream.cancel()
        for wrong in ({"max_num_seqs": 5}, {"max_num_batched_tokens": 0}):
            with pytest.raises(InvalidRequestError) as refused:
                admin.update_limits(**wrong)
            assert [violation.field for violation in refused.value.field_violations] == list(wrong)
        assert admin.update_limits(max_queued_requests=0).max_queued_requests == 0


def test_a_removed_worker_ends_and_its_requests_go_on(stack: ScriptedStack, admin: AdminClient) -> None:
    with stack.worker(LIMITS, step_seconds=0.005) as kept:
        leaving = ScriptedWorker(
            stack.scheduler.worker_endpoint, limits=LIMITS, script=stack.script, step_seconds=0.005
        )
        leaving.start()
        stack.wait_workers(2)
        streams = [stack.client.stream([6, number], max_tokens=100, token_ids=True) for number in range(6)]
        wait_until(lambda: all(worker.num_requests_running for worker in admin.workers()), "both work")
        removed = admin.workers()[1].worker_id
        admin.remove_worker(removed)
        answers = [stream.join().outputs[0].token_ids for stream in streams]
        assert answers == [counted([6, number], 100) for number in range(6)]
        assert [worker.worker_id for worker in admin.workers()] != [removed]
        leaving.stop()
        assert leaving.error is None
        assert kept.error is None
        with pytest.raises(NotFoundError) as missing:
            admin.remove_worker(removed)
        assert missing.value.reason == "WORKER_NOT_FOUND"


def test_an_emptied_cache_is_cold(stack: ScriptedStack, admin: AdminClient) -> None:
    prompt = list(range(1, 65))
    with stack.worker(LIMITS):
        stack.client.generate(prompt, max_tokens=1)
        assert stack.client.generate(prompt, max_tokens=1).usage.cached_tokens > 0
        assert admin.reset_prefix_cache() == 4
        assert admin.load().num_cached_pages == 0
        assert stack.client.generate(prompt, max_tokens=1).usage.cached_tokens == 0


def test_the_command_drains_and_the_server_ends_well() -> None:
    with ScriptedStack() as stack, ScriptedWorker(stack.scheduler.worker_endpoint, step_seconds=0.01) as worker:
        stack.wait_workers(1)
        stream = stack.client.stream([1], max_tokens=60, token_ids=True)
        first_ids(stream)
        command = [sys.executable, "-m", "pagewire_client.cli", "drain", "--target", stack.scheduler.internal_target]
        subprocess.run(command, check=True, timeout=20)
        assert len(stream.join().outputs[0].token_ids) == 60
        assert stack.scheduler.process.wait(10) == 0
        assert worker.error is None
