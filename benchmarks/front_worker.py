"""The scripted worker of `benchmarks.front`: letters for ever, as fast as the scheduler plans or at a given pace."""

import argparse
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.scripted_rows import Limits, ScriptedRows
from support.scripted_worker import ScriptedWorker

MAX_MODEL_LEN = 8192


class QuickRows(ScriptedRows):
    """Steps take the same time however long the rows have become: nobody looks at pages written before."""

    def _check_pages(self, row: int) -> None:
        """They are not looked at."""


def letters(prompt: tuple[int, ...], position: int, index: int, seed: int) -> int:
    """Ids of the letters in turn, each its own token."""
    return 97 + position % 26


def main() -> int:
    """Runs until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheduler", required=True)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument(
        "--times", type=Path, required=True, help="gets a line when a plan comes and when a result goes"
    )
    given = parser.parse_args()
    limits = Limits(
        num_pages=32768, max_num_seqs=given.max_num_seqs, max_num_batched_tokens=8192, max_model_len=MAX_MODEL_LEN
    )
    worker = ScriptedWorker(given.scheduler, limits=limits, script=letters, step_seconds=given.step_seconds)
    worker.rows = QuickRows(limits, letters)
    times = given.times.open("w", buffering=1)

    def note(step_id: int, frame: bytes) -> Iterable[bytes]:
        times.write(f"{time.monotonic()}\n")
        return (frame,)

    worker.options.on_plan = worker.options.on_result = note

    def stop(number: int, frame: FrameType | None) -> None:
        worker._stopping.set()

    signal.signal(signal.SIGTERM, stop)
    worker.run()
    if worker.error is not None:
        raise worker.error
    return 0


if __name__ == "__main__":
    sys.exit(main())
