from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("num_requests_running", "num_requests_waiting", "num_workers", "num_pages", "num_free_pages", "num_held_pages", "num_cached_pages", "num_preemptions", "num_computed_tokens", "num_output_tokens", "num_cached_tokens", "num_wasted_tokens", "num_steps", "num_link_faults", "page_waste_ratio", "num_asked_pages", "num_hit_pages", "num_evicted_pages", "num_diverged_pages", "num_salted_pages", "num_tail_pages", "first_token_seconds", "inter_token_seconds")
    NUM_REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_HELD_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_WASTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_LINK_FAULTS_FIELD_NUMBER: _ClassVar[int]
    PAGE_WASTE_RATIO_FIELD_NUMBER: _ClassVar[int]
    NUM_ASKED_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_HIT_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_EVICTED_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_DIVERGED_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_SALTED_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_TAIL_PAGES_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INTER_TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    num_requests_running: int
    num_requests_waiting: int
    num_workers: int
    num_pages: int
    num_free_pages: int
    num_held_pages: int
    num_cached_pages: int
    num_preemptions: int
    num_computed_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_wasted_tokens: int
    num_steps: int
    num_link_faults: int
    page_waste_ratio: float
    num_asked_pages: int
    num_hit_pages: int
    num_evicted_pages: int
    num_diverged_pages: int
    num_salted_pages: int
    num_tail_pages: int
    first_token_seconds: Distribution
    inter_token_seconds: Distribution
    def __init__(self, num_requests_running: _Optional[int] = ..., num_requests_waiting: _Optional[int] = ..., num_workers: _Optional[int] = ..., num_pages: _Optional[int] = ..., num_free_pages: _Optional[int] = ..., num_held_pages: _Optional[int] = ..., num_cached_pages: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., num_wasted_tokens: _Optional[int] = ..., num_steps: _Optional[int] = ..., num_link_faults: _Optional[int] = ..., page_waste_ratio: _Optional[float] = ..., num_asked_pages: _Optional[int] = ..., num_hit_pages: _Optional[int] = ..., num_evicted_pages: _Optional[int] = ..., num_diverged_pages: _Optional[int] = ..., num_salted_pages: _Optional[int] = ..., num_tail_pages: _Optional[int] = ..., first_token_seconds: _Optional[_Union[Distribution, _Mapping]] = ..., inter_token_seconds: _Optional[_Union[Distribution, _Mapping]] = ...) -> None: ...

class Distribution(_message.Message):
    __slots__ = ("bounds", "counts", "sum")
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum: float
    def __init__(self, bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., sum: _Optional[float] = ...) -> None: ...

class UpdateLimitsRequest(_message.Message):
    __slots__ = ("max_num_seqs", "max_num_batched_tokens", "max_queued_requests", "max_queued_tokens", "scheduling_policy")
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_POLICY_FIELD_NUMBER: _ClassVar[int]
    max_num_seqs: int
    max_num_batched_tokens: int
    max_queued_requests: int
    max_queued_tokens: int
    scheduling_policy: str
    def __init__(self, max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., max_queued_requests: _Optional[int] = ..., max_queued_tokens: _Optional[int] = ..., scheduling_policy: _Optional[str] = ...) -> None: ...

class UpdateLimitsResponse(_message.Message):
    __slots__ = ("max_num_seqs", "max_num_batched_tokens", "max_queued_requests", "max_queued_tokens", "scheduling_policy")
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_POLICY_FIELD_NUMBER: _ClassVar[int]
    max_num_seqs: int
    max_num_batched_tokens: int
    max_queued_requests: int
    max_queued_tokens: int
    scheduling_policy: str
    def __init__(self, max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., max_queued_requests: _Optional[int] = ..., max_queued_tokens: _Optional[int] = ..., scheduling_policy: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout_ms",)
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    timeout_ms: int
    def __init__(self, timeout_ms: _Optional[int] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Worker(_message.Message):
    __slots__ = ("worker_id", "device", "num_pages", "num_free_pages", "num_held_pages", "num_cached_pages", "num_requests_running", "num_steps", "pid")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NUM_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_HELD_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    device: str
    num_pages: int
    num_free_pages: int
    num_held_pages: int
    num_cached_pages: int
    num_requests_running: int
    num_steps: int
    pid: int
    def __init__(self, worker_id: _Optional[str] = ..., device: _Optional[str] = ..., num_pages: _Optional[int] = ..., num_free_pages: _Optional[int] = ..., num_held_pages: _Optional[int] = ..., num_cached_pages: _Optional[int] = ..., num_requests_running: _Optional[int] = ..., num_steps: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    def __init__(self, workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ...) -> None: ...

class RemoveWorkerRequest(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...

class RemoveWorkerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExplainRequestRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class ExplainRequestResponse(_message.Message):
    __slots__ = ("decisions",)
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    def __init__(self, decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("at_seconds", "step_id", "text")
    AT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    at_seconds: float
    step_id: int
    text: str
    def __init__(self, at_seconds: _Optional[float] = ..., step_id: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...
