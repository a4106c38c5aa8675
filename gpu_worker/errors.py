"""Errors of the worker.

WorkerError
├── ConfigError          a flag, variable or file value is wrong                       exit 2
├── ModelLoadError       the checkpoint cannot be served as it is; names what is wrong exit 2
├── PagePoolTooSmallError     memory does not hold enough pages; says needed and available  exit 2
├── HelloRefusedError         the scheduler will never take this worker                     exit 2
├── PlanRefusedError          a plan is inconsistent; nothing of it was applied             new epoch
└── DeviceLostError           the accelerator's context is unusable                         exit 1
"""


class WorkerError(Exception):
    """Anything the worker reports on its own account."""


class ConfigError(WorkerError):
    """A configuration value is wrong; the message names it, its value and what is allowed."""


class ModelLoadError(WorkerError):
    """The model cannot be loaded; the message names the file, tensor or field."""


class PagePoolTooSmallError(WorkerError):
    """The memory left for the page pool is too small; the message gives needed and available bytes."""


class HelloRefusedError(WorkerError):
    """The scheduler refused the hello for good."""


class PlanRefusedError(WorkerError):
    """A batch plan does not fit the protocol or the rows; it was not applied."""


class DeviceLostError(WorkerError):
    """The device context is broken: no later call can succeed in this process."""
