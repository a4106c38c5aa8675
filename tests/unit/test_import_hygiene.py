"""The scheduler process stays small: what it loads, every module by itself."""

import subprocess
import sys
from pathlib import Path

import scheduler_svc

PROGRAM = """\
import importlib, pkgutil, sys
import scheduler_svc
names = [found.name for found in pkgutil.walk_packages(scheduler_svc.__path__, "scheduler_svc.")]
for name in names:
    importlib.import_module(name)
print(*names)
print(*{name.split(".")[0] for name in sys.modules})
"""
HEAVY = {"torch", "triton", "transformers", "numpy", "gpu_worker", "pagewire_kernels", "pagewire_client"}


def test_every_module_loads_and_none_loads_a_worker() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    imported, loaded = (set(line.split()) for line in done.stdout.splitlines())
    assert {"scheduler_svc.engine", "scheduler_svc.__main__", "scheduler_svc.front.__main__"} <= imported
    assert loaded & HEAVY == set()


def test_nothing_in_it_unpickles() -> None:
    root = Path(scheduler_svc.__file__).parent
    words = ("pickle", "recv_pyobj", "send_pyobj", "marshal")
    wrong = [path.name for path in root.rglob("*.py") if any(word in path.read_text() for word in words)]
    assert wrong == []
