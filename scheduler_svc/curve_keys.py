"""``python -m scheduler_svc.curve_keys DIR [WORKER]``: makes the keys of the workers' endpoint, or another worker's.

Prints what belongs where. Exit code 2 if something is there already or not allowed.
"""

import sys
from pathlib import Path

from scheduler_svc import curve
from scheduler_svc.run_dir import RunDirError


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 2 or arguments[0].startswith("-"):
        print("usage: pagewire keys DIR [WORKER]", file=sys.stderr)
        return 0 if arguments in (["--help"], ["-h"]) else 2
    directory, names = Path(arguments[0]), arguments[1:]
    try:
        curve.ensure_keys(directory)
        secrets = [curve.add_worker(directory, name) for name in names]
    except RunDirError as error:
        print(f"pagewire keys: {str(error).removeprefix('--zmq-curve-dir ')}", file=sys.stderr)
        return 2
    print(f"{directory}: the scheduler's --zmq-curve-dir")
    for secret in secrets or [directory / f"{curve.FIRST_WORKER}.secret"]:
        print(f"{secret}, as worker.secret, and {directory / 'scheduler.public'}: a worker's --zmq-curve-dir")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
