"""``python -m gpu_worker.rank RANK LINK_FD MEETING_FD``: a rank beside rank 0, which starts it.

Does what rank 0 does, plan by plan, and answers nobody. It ends with rank 0, at once, and not by a signal to all
processes of a terminal or a service: rank 0 still has steps to finish then.
"""

import json
import os
import queue
import signal
import socket
import sys
import threading
from typing import NoReturn

import torch

from gpu_worker import codec, startup
from gpu_worker.config import WorkerConfig
from gpu_worker.device import pick_device
from gpu_worker.errors import ConfigError, ModelLoadError, PagePoolTooSmallError, PlanRefusedError
from gpu_worker.model_runner import ModelRunner
from gpu_worker.other_ranks import RESET
from gpu_worker.rank_group import ProcessGroup
from gpu_worker.rank_link import RankLink

Messages = queue.SimpleQueue[bytes]


def main(arguments: list[str]) -> int:
    """Returns the exit code, unless rank 0 ends first."""
    rank, link_fd, meeting_fd = map(int, arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    link = RankLink(socket.socket(fileno=link_fd))
    messages: Messages = queue.SimpleQueue()
    threading.Thread(target=_read, args=(link, messages), name="rank-link", daemon=True).start()
    config = WorkerConfig(**json.loads(messages.get()))
    try:
        device = pick_device(config.device, rank, config.tensor_parallel_size)
        group = ProcessGroup(rank, config.tensor_parallel_size, device, meeting_fd)
        follow(startup.build(config, lambda sentence: None, group).runner, messages)
    except (ConfigError, ModelLoadError, PagePoolTooSmallError) as error:
        link.send(str(error).encode())
        return 2


def follow(runner: ModelRunner, messages: Messages) -> NoReturn:
    """Run what rank 0 runs, until that ends. Raises DeviceLostError."""
    with torch.inference_mode():
        while True:
            message = messages.get()
            frame = codec.decode_frame(message)
            if message == RESET or frame is None:
                runner.reset()
                continue
            try:
                runner.launch(codec.decode_plan(frame))
            except PlanRefusedError:
                continue  # rank 0 refuses it too, and drops all rows next


def _read(link: RankLink, messages: Messages) -> None:
    while (message := link.receive()) is not None:
        messages.put(message)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
