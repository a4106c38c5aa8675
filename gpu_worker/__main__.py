"""``python -m gpu_worker MODEL --scheduler ENDPOINT``: one worker process.

Exit codes: 0 stopped by SIGTERM or SIGINT; 2 bad configuration or a model that cannot be served; 1 anything else.
"""

import os
import signal
import sys
from typing import NoReturn

# Read by OpenMP when torch is loaded: idle threads soon sleep instead of spinning on a core that a neighbour needs.
# They spin for as long as the main thread takes from one parallel loop to the next, some 100 us: waking them for each
# of a step's 200 loops costs more (one stream of SmolLM2 on two cores: 35 ms a token without, 22 with).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Read by gloo: ranks without GPUs, which are on one machine, talk over nothing that leaves it.
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def main(arguments: list[str]) -> int:
    """Run a worker; returns the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave_at_once)
    from gpu_worker.config import load_config
    from gpu_worker.errors import ConfigError, HelloRefusedError, ModelLoadError, PagePoolTooSmallError, WorkerError

    try:
        config = load_config(arguments)
        others = None
        if config.tensor_parallel_size > 1:
            from gpu_worker.other_ranks import OtherRanks

            others = OtherRanks(config)  # they load torch while this process does
        from gpu_worker.process import run_worker

        code = run_worker(config, others)
        for number in (signal.SIGTERM, signal.SIGINT):
            # A second signal while the interpreter ends would be fatal: its handlers are gone by then.
            signal.signal(number, signal.SIG_IGN)
        return code
    except (ConfigError, ModelLoadError, PagePoolTooSmallError, HelloRefusedError) as error:
        print(f"pagewire worker: {error}", file=sys.stderr)
        return 2
    except WorkerError as error:
        print(f"pagewire worker: {error}", file=sys.stderr)
        return 1


def _leave_at_once(number: int, frame: object) -> NoReturn:
    """Until the loop runs there is nothing to hand back.

    No exception: in the middle of an import it may be swallowed, or come out as another one.
    """
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
