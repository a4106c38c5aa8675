"""Joins the parts to one process: builds, connects, runs, and leaves on a signal. Of several ranks this is rank 0."""

import contextlib
import gc
import queue
import signal
import sys
from types import FrameType

import structlog
import torch

from gpu_worker import log, startup
from gpu_worker.config import WorkerConfig
from gpu_worker.curve import read_keys
from gpu_worker.device import pick_device
from gpu_worker.leading_runner import LeadingRunner
from gpu_worker.link_events import LinkEvent, Stop
from gpu_worker.other_ranks import OtherRanks
from gpu_worker.polling import Polling
from gpu_worker.rank_group import ALONE, ProcessGroup, RankGroup
from gpu_worker.scheduler_link import SchedulerLink
from gpu_worker.worker import Runner, Worker


def run_worker(config: WorkerConfig, others: OtherRanks | None) -> int:
    """Returns the exit code; ``others`` are ended then.

    Raises ConfigError, ModelLoadError, PagePoolTooSmallError, HelloRefusedError.
    """
    log.configure(config.log_format)
    if others is None:
        return _run(config, ALONE, None)
    group: ProcessGroup | None = None
    try:
        device = pick_device(config.device, 0, config.tensor_parallel_size)
        group = ProcessGroup(0, config.tensor_parallel_size, device, others.meeting_fd)
        return _run(config, group, others)
    finally:
        others.close()
        if group is not None:
            group.close()


def _run(config: WorkerConfig, group: RankGroup, others: OtherRanks | None) -> int:
    keys = None if config.zmq_curve_dir is None else read_keys(config.zmq_curve_dir)
    logger = structlog.get_logger()
    parts = startup.build(config, lambda sentence: logger.warning("model", note=sentence), group)
    with contextlib.suppress(OSError):
        print(parts.summary, file=sys.stderr, flush=True)
    # What lives now lives for ever: the collector need not look at it during steps.
    gc.collect()
    gc.freeze()
    events: queue.SimpleQueue[LinkEvent] = queue.SimpleQueue()
    on_gpu = parts.runner.device.type == "cuda"
    link = SchedulerLink(config.scheduler, parts.card, events, keys, is_attended=on_gpu)

    def stop(number: int, frame: FrameType | None) -> None:
        events.put(Stop(reason=signal.Signals(number).name))
        link.wake()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    link.start()
    logger.info("ready", scheduler=config.scheduler, device=parts.card.device, num_pages=parts.card.num_pages)
    runner: Runner = parts.runner
    if others is not None:
        others.say_goodbye = link.close
        runner = LeadingRunner(parts.runner, others)
    try:
        with torch.inference_mode():
            worker = Worker(runner, link, events, Polling.of_machine() if on_gpu else None)
            parts.runner.tell_done = worker.send_done
            return worker.run()
    finally:
        link.close("the worker stops")
