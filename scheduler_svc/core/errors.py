"""What the core raises. Nothing else leaves it as an exception.

CoreError
├── RequestRejected      submit: the request is not taken, nothing of it is kept
├── WorkerRejected       add_worker: the worker does not go with the others
└── InvariantViolation   a rule of the core is broken: a fault of the core itself
"""

from enum import Enum


class RejectCode(Enum):
    """Why a request was not taken."""

    INVALID = "invalid"
    """A field has a value that nothing could serve."""
    TOO_LARGE = "too large"
    """The prompt and one more token fit no worker, now or later."""
    QUEUE_FULL = "queue full"
    NO_WORKER = "no worker"
    """No worker has ever joined, so no limit is known."""
    DEADLINE = "deadline"
    """By measured rates not even its first token would come in time."""
    DUPLICATE = "duplicate"
    """A live request has this key, or a pin."""
    PIN_QUOTA = "pin quota"
    """Pins may not name so many pages."""


class CoreError(Exception):
    """Root of the tree."""


class RequestRejected(CoreError):  # noqa: N818 - says what happened
    """A request was refused at ``submit``.

    ``field`` names the field at fault, empty if it is none of the request's; ``message`` is one sentence for the
    caller.
    """

    def __init__(self, code: RejectCode, field: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.field = field
        self.message = message


class WorkerRejected(CoreError):  # noqa: N818 - says what happened
    """A worker was refused at ``add_worker``; the text says what differs."""


class InvariantViolation(CoreError):  # noqa: N818 - says what happened
    """The core's books do not agree with one another."""
