"""How many files and connections a process may have open.

Most systems allow 1,024 unless a program asks for more, for the sake of programs that wait with select(), which none of
ours does. A front has one for each connection: callers beyond the limit would wait in vain.
"""

import contextlib
import resource


def allow_all() -> None:
    """As many as the system lets this process and its children have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a system may promise more than it gives
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
