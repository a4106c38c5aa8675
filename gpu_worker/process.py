"""Joins the parts to one process: builds, connects, runs, and leaves on a signal."""

import contextlib
import gc
import queue
import signal
import sys

import structlog
import torch

from gpu_worker import log, startup
from gpu_worker.config import WorkerConfig
from gpu_worker.curve import read_keys
from gpu_worker.scheduler_link import LinkEvent, SchedulerLink, Stop
from gpu_worker.worker import Worker


def run_worker(config: WorkerConfig) -> int:
    """Returns the exit code. Raises ConfigError, ModelLoadError, PagePoolTooSmallError, HelloRefusedError."""
    log.configure(config.log_format)
    keys = None if config.zmq_curve_dir is None else read_keys(config.zmq_curve_dir)
    logger = structlog.get_logger()
    parts = startup.build(config, lambda sentence: logger.warning("model", note=sentence))
    with contextlib.suppress(OSError):
        print(parts.summary, file=sys.stderr, flush=True)
    # What lives now lives for ever: the collector need not look at it during steps.
    gc.collect()
    gc.freeze()
    events: queue.SimpleQueue[LinkEvent] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: events.put(Stop(reason=signal.Signals(number).name)))
    link = SchedulerLink(config.scheduler, parts.card, events, keys)
    link.start()
    logger.info("ready", scheduler=config.scheduler, device=parts.card.device, num_pages=parts.card.num_pages)
    try:
        with torch.inference_mode():
            return Worker(parts.runner, link, events).run()
    finally:
        link.close("the worker stops")
