"""How the command line ends: one line on stderr and an exit code.

0 done, or a server or `top` ended by Ctrl-C or SIGTERM; 1 the server (or a process) failed; 2 usage, or no such model;
130 Ctrl-C.
"""

from __future__ import annotations

from ..errors import (
    FetchError,
    PagewireError,
    ServerError,
    StackError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class UsageError(PagewireError):
    """The command line itself is wrong: an unknown flag, a missing value."""


def error_line(error: PagewireError) -> str:
    """What stderr says of it, and what to do where that is plain."""
    advice = _advice(error) if isinstance(error, ServerError) else ""
    return f"error: {error} ({advice})" if advice else f"error: {error}"


def _advice(error: ServerError) -> str:
    """A status without a reason is gRPC's word, not our server's."""
    if isinstance(error, UnauthenticatedError) and error.reason == "NO_CREDENTIALS":
        return "--token-file FILE shows a token"
    if error.reason:
        return ""
    if isinstance(error, UnimplementedError):
        return "what operators ask is answered on the internal port, 127.0.0.1:50052 if not told otherwise"
    if isinstance(error, UnavailableError):
        if "WRONG_VERSION_NUMBER" in error.message:
            return "what answers there speaks no TLS"
        if "Socket closed" in error.message:
            return (
                "what answers there may want TLS, --tls-ca FILE, or a certificate too, --tls-cert FILE --tls-key FILE"
            )
        return "is a server running there? `pagewire serve` starts one"
    return ""


def exit_code(error: PagewireError) -> int:
    """The exit code for an error. A service that refused its configuration makes it ours, as does a missing MODEL."""
    if isinstance(error, UsageError | FetchError) or (isinstance(error, StackError) and error.exit_code == EXIT_USAGE):
        return EXIT_USAGE
    return EXIT_FAILED
