"""How the command line ends: one line on stderr and an exit code.

0 done, or a server or `top` ended by Ctrl-C or SIGTERM; 1 the server (or a process) failed; 2 usage, or no such model;
130 Ctrl-C.
"""

from __future__ import annotations

from ..errors import FetchError, PagewireError, StackError, UnavailableError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class UsageError(PagewireError):
    """The command line itself is wrong: an unknown flag, a missing value."""


def error_line(error: PagewireError) -> str:
    """What stderr says of it. UNAVAILABLE without a reason is not a server's word: nothing answered."""
    if isinstance(error, UnavailableError) and not error.reason:
        return f"error: {error} (is a server running there? `pagewire serve` starts one)"
    return f"error: {error}"


def exit_code(error: PagewireError) -> int:
    """The exit code for an error. A service that refused its configuration makes it ours, as does a missing MODEL."""
    if isinstance(error, UsageError | FetchError) or (isinstance(error, StackError) and error.exit_code == EXIT_USAGE):
        return EXIT_USAGE
    return EXIT_FAILED
