"""Client library of Pagewire: sync and async clients, a local stack, the model fetcher.

from pagewire_client import Client
with Client("127.0.0.1:50051") as client:
    print(client.generate("The capital of France is", max_tokens=8).text)
"""

from .aio import AsyncClient, AsyncStream
from .channel import Tls
from .client import Client, Stream
from .errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FetchError,
    FieldViolation,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PagewireError,
    PermissionDeniedError,
    RequestCancelledError,
    ServerError,
    StackError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from .llm import LLM
from .request_output import CompletionOutput, Logprob, RequestOutput
from .results import (
    Admitted,
    ChatMessage,
    Decision,
    Delta,
    Event,
    Finished,
    FinishReason,
    Generation,
    HealthStatus,
    Heartbeat,
    Load,
    Model,
    Output,
    Preempted,
    Prefill,
    PromptLogprobs,
    Queued,
    Summary,
    Timings,
    TokenLogprob,
    Usage,
)
from .sampling_params import SamplingParams

__all__ = [
    "LLM",
    "Admitted",
    "AlreadyExistsError",
    "AsyncClient",
    "AsyncStream",
    "ChatMessage",
    "Client",
    "CompletionOutput",
    "DeadlineExceededError",
    "Decision",
    "Delta",
    "Event",
    "FetchError",
    "FieldViolation",
    "FinishReason",
    "Finished",
    "Generation",
    "HealthStatus",
    "Heartbeat",
    "InternalError",
    "InvalidRequestError",
    "Load",
    "Logprob",
    "Model",
    "NotFoundError",
    "Output",
    "OverloadedError",
    "PagewireError",
    "PermissionDeniedError",
    "Preempted",
    "Prefill",
    "PromptLogprobs",
    "Queued",
    "RequestCancelledError",
    "RequestOutput",
    "SamplingParams",
    "ServerError",
    "StackError",
    "Stream",
    "Summary",
    "Timings",
    "Tls",
    "TokenLogprob",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "Usage",
]
