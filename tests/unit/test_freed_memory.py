"""Memory that comes and goes costs no page faults."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from scheduler_svc.freed_memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        kept = [bytes(300_000) for _ in range(6)]
        del kept
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no such setting")
def test_what_was_freed_is_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 20 * 10
