from pagewire.internal.v1 import worker_pb2 as _worker_pb2
from pagewire.v1 import admin_pb2 as _admin_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EndReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_REASON_UNSPECIFIED: _ClassVar[EndReason]
    END_REASON_STOP_TOKEN: _ClassVar[EndReason]
    END_REASON_STOP_STRING: _ClassVar[EndReason]
    END_REASON_LENGTH: _ClassVar[EndReason]
    END_REASON_CANCELLED: _ClassVar[EndReason]
    END_REASON_CANCELLED_ELSEWHERE: _ClassVar[EndReason]
    END_REASON_DEADLINE: _ClassVar[EndReason]
    END_REASON_TIME_LIMIT: _ClassVar[EndReason]
    END_REASON_WORKER_LOST: _ClassVar[EndReason]
    END_REASON_NAN: _ClassVar[EndReason]
    END_REASON_STEP_FAILED: _ClassVar[EndReason]
    END_REASON_SHUTDOWN: _ClassVar[EndReason]
    END_REASON_NO_PAGES: _ClassVar[EndReason]
    END_REASON_GRAMMAR: _ClassVar[EndReason]
END_REASON_UNSPECIFIED: EndReason
END_REASON_STOP_TOKEN: EndReason
END_REASON_STOP_STRING: EndReason
END_REASON_LENGTH: EndReason
END_REASON_CANCELLED: EndReason
END_REASON_CANCELLED_ELSEWHERE: EndReason
END_REASON_DEADLINE: EndReason
END_REASON_TIME_LIMIT: EndReason
END_REASON_WORKER_LOST: EndReason
END_REASON_NAN: EndReason
END_REASON_STEP_FAILED: EndReason
END_REASON_SHUTDOWN: EndReason
END_REASON_NO_PAGES: EndReason
END_REASON_GRAMMAR: EndReason

class FrontFrame(_message.Message):
    __slots__ = ("session", "front_id", "hello", "submits", "cancels", "stops", "scanned", "queries", "heartbeat", "resumes", "figures")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FRONT_ID_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMITS_FIELD_NUMBER: _ClassVar[int]
    CANCELS_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    SCANNED_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    session: int
    front_id: int
    hello: FrontHello
    submits: _containers.RepeatedCompositeFieldContainer[Submit]
    cancels: _containers.RepeatedCompositeFieldContainer[Cancel]
    stops: _containers.RepeatedCompositeFieldContainer[Stop]
    scanned: _containers.RepeatedCompositeFieldContainer[Scanned]
    queries: _containers.RepeatedCompositeFieldContainer[Query]
    heartbeat: bool
    resumes: _containers.RepeatedCompositeFieldContainer[Resume]
    figures: FrontFigures
    def __init__(self, session: _Optional[int] = ..., front_id: _Optional[int] = ..., hello: _Optional[_Union[FrontHello, _Mapping]] = ..., submits: _Optional[_Iterable[_Union[Submit, _Mapping]]] = ..., cancels: _Optional[_Iterable[_Union[Cancel, _Mapping]]] = ..., stops: _Optional[_Iterable[_Union[Stop, _Mapping]]] = ..., scanned: _Optional[_Iterable[_Union[Scanned, _Mapping]]] = ..., queries: _Optional[_Iterable[_Union[Query, _Mapping]]] = ..., heartbeat: _Optional[bool] = ..., resumes: _Optional[_Iterable[_Union[Resume, _Mapping]]] = ..., figures: _Optional[_Union[FrontFigures, _Mapping]] = ...) -> None: ...

class FrontHello(_message.Message):
    __slots__ = ("protocol_version", "pid")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    pid: int
    def __init__(self, protocol_version: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("key", "request_id", "tenant", "prompt_token_ids", "page_hashes", "root_hash", "n", "max_tokens", "stop_token_ids", "hold_endings", "deadline_ms", "time_limit_ms", "priority", "seed", "temperature", "top_p", "top_k", "min_p", "options", "grammar", "resume_grace_ms", "progress_events", "front_options", "content_digest", "max_tenant_requests", "tenant_requests_per_minute")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PAGE_HASHES_FIELD_NUMBER: _ClassVar[int]
    ROOT_HASH_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    HOLD_ENDINGS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    RESUME_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_EVENTS_FIELD_NUMBER: _ClassVar[int]
    FRONT_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MAX_TENANT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TENANT_REQUESTS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    key: int
    request_id: str
    tenant: str
    prompt_token_ids: bytes
    page_hashes: bytes
    root_hash: bytes
    n: int
    max_tokens: int
    stop_token_ids: bytes
    hold_endings: bool
    deadline_ms: int
    time_limit_ms: int
    priority: int
    seed: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    options: _worker_pb2.RowOptions
    grammar: _worker_pb2.Grammar
    resume_grace_ms: int
    progress_events: bool
    front_options: bytes
    content_digest: bytes
    max_tenant_requests: int
    tenant_requests_per_minute: int
    def __init__(self, key: _Optional[int] = ..., request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., prompt_token_ids: _Optional[bytes] = ..., page_hashes: _Optional[bytes] = ..., root_hash: _Optional[bytes] = ..., n: _Optional[int] = ..., max_tokens: _Optional[int] = ..., stop_token_ids: _Optional[bytes] = ..., hold_endings: _Optional[bool] = ..., deadline_ms: _Optional[int] = ..., time_limit_ms: _Optional[int] = ..., priority: _Optional[int] = ..., seed: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., options: _Optional[_Union[_worker_pb2.RowOptions, _Mapping]] = ..., grammar: _Optional[_Union[_worker_pb2.Grammar, _Mapping]] = ..., resume_grace_ms: _Optional[int] = ..., progress_events: _Optional[bool] = ..., front_options: _Optional[bytes] = ..., content_digest: _Optional[bytes] = ..., max_tenant_requests: _Optional[int] = ..., tenant_requests_per_minute: _Optional[int] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("key", "tenant", "request_id")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    key: int
    tenant: str
    request_id: str
    def __init__(self, key: _Optional[int] = ..., tenant: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("key", "deadline", "broken", "code")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    key: int
    deadline: bool
    broken: bool
    code: int
    def __init__(self, key: _Optional[int] = ..., deadline: _Optional[bool] = ..., broken: _Optional[bool] = ..., code: _Optional[int] = ...) -> None: ...

class FrontFigures(_message.Message):
    __slots__ = ("refused", "stall_counts", "stall_seconds")
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    STALL_COUNTS_FIELD_NUMBER: _ClassVar[int]
    STALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    refused: _containers.RepeatedCompositeFieldContainer[RefusedRequests]
    stall_counts: bytes
    stall_seconds: float
    def __init__(self, refused: _Optional[_Iterable[_Union[RefusedRequests, _Mapping]]] = ..., stall_counts: _Optional[bytes] = ..., stall_seconds: _Optional[float] = ...) -> None: ...

class RefusedRequests(_message.Message):
    __slots__ = ("code", "reason", "count")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    count: int
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("key", "index", "num_output_tokens")
    KEY_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    key: int
    index: int
    num_output_tokens: int
    def __init__(self, key: _Optional[int] = ..., index: _Optional[int] = ..., num_output_tokens: _Optional[int] = ...) -> None: ...

class Scanned(_message.Message):
    __slots__ = ("key", "index")
    KEY_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    key: int
    index: int
    def __init__(self, key: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class Query(_message.Message):
    __slots__ = ("query_id", "tenant", "load", "workers", "cancel_request_id", "get_request_id", "drain_ms", "explain_request_id", "explain_prefix", "drain", "update_limits", "remove_worker_id", "reset_prefix_cache", "quote", "pin_prefix", "unpin_id", "list_pins")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GET_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DRAIN_MS_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_PREFIX_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    UPDATE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    RESET_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    QUOTE_FIELD_NUMBER: _ClassVar[int]
    PIN_PREFIX_FIELD_NUMBER: _ClassVar[int]
    UNPIN_ID_FIELD_NUMBER: _ClassVar[int]
    LIST_PINS_FIELD_NUMBER: _ClassVar[int]
    query_id: int
    tenant: str
    load: bool
    workers: bool
    cancel_request_id: str
    get_request_id: str
    drain_ms: int
    explain_request_id: str
    explain_prefix: PrefixQuestion
    drain: bool
    update_limits: _admin_pb2.UpdateLimitsRequest
    remove_worker_id: str
    reset_prefix_cache: bool
    quote: Submit
    pin_prefix: PinQuestion
    unpin_id: str
    list_pins: bool
    def __init__(self, query_id: _Optional[int] = ..., tenant: _Optional[str] = ..., load: _Optional[bool] = ..., workers: _Optional[bool] = ..., cancel_request_id: _Optional[str] = ..., get_request_id: _Optional[str] = ..., drain_ms: _Optional[int] = ..., explain_request_id: _Optional[str] = ..., explain_prefix: _Optional[_Union[PrefixQuestion, _Mapping]] = ..., drain: _Optional[bool] = ..., update_limits: _Optional[_Union[_admin_pb2.UpdateLimitsRequest, _Mapping]] = ..., remove_worker_id: _Optional[str] = ..., reset_prefix_cache: _Optional[bool] = ..., quote: _Optional[_Union[Submit, _Mapping]] = ..., pin_prefix: _Optional[_Union[PinQuestion, _Mapping]] = ..., unpin_id: _Optional[str] = ..., list_pins: _Optional[bool] = ...) -> None: ...

class PinQuestion(_message.Message):
    __slots__ = ("pin_id", "ttl_ms", "page_hashes")
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    PAGE_HASHES_FIELD_NUMBER: _ClassVar[int]
    pin_id: str
    ttl_ms: int
    page_hashes: bytes
    def __init__(self, pin_id: _Optional[str] = ..., ttl_ms: _Optional[int] = ..., page_hashes: _Optional[bytes] = ...) -> None: ...

class PrefixQuestion(_message.Message):
    __slots__ = ("prompt_token_ids", "page_hashes", "root_hash", "unsalted_root")
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PAGE_HASHES_FIELD_NUMBER: _ClassVar[int]
    ROOT_HASH_FIELD_NUMBER: _ClassVar[int]
    UNSALTED_ROOT_FIELD_NUMBER: _ClassVar[int]
    prompt_token_ids: bytes
    page_hashes: bytes
    root_hash: bytes
    unsalted_root: bytes
    def __init__(self, prompt_token_ids: _Optional[bytes] = ..., page_hashes: _Optional[bytes] = ..., root_hash: _Optional[bytes] = ..., unsalted_root: _Optional[bytes] = ...) -> None: ...

class SchedulerToFrontFrame(_message.Message):
    __slots__ = ("session", "service", "tokens", "events", "replies", "refusal", "heartbeat", "logprobs")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    session: int
    service: Service
    tokens: Tokens
    events: _containers.RepeatedCompositeFieldContainer[RequestEvent]
    replies: _containers.RepeatedCompositeFieldContainer[Reply]
    refusal: str
    heartbeat: bool
    logprobs: _containers.RepeatedCompositeFieldContainer[OutputLogprobs]
    def __init__(self, session: _Optional[int] = ..., service: _Optional[_Union[Service, _Mapping]] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., events: _Optional[_Iterable[_Union[RequestEvent, _Mapping]]] = ..., replies: _Optional[_Iterable[_Union[Reply, _Mapping]]] = ..., refusal: _Optional[str] = ..., heartbeat: _Optional[bool] = ..., logprobs: _Optional[_Iterable[_Union[OutputLogprobs, _Mapping]]] = ...) -> None: ...

class OutputLogprobs(_message.Message):
    __slots__ = ("key", "logprobs")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    key: int
    logprobs: _worker_pb2.RowLogprobs
    def __init__(self, key: _Optional[int] = ..., logprobs: _Optional[_Union[_worker_pb2.RowLogprobs, _Mapping]] = ...) -> None: ...

class Service(_message.Message):
    __slots__ = ("model_card", "num_workers", "page_size", "hash_key", "max_request_tokens", "max_num_seqs", "draining", "retry_ms", "leaving", "drain_ms", "stalled")
    MODEL_CARD_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    HASH_KEY_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    RETRY_MS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    DRAIN_MS_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    model_card: _worker_pb2.ModelCard
    num_workers: int
    page_size: int
    hash_key: bytes
    max_request_tokens: int
    max_num_seqs: int
    draining: bool
    retry_ms: int
    leaving: bool
    drain_ms: int
    stalled: bool
    def __init__(self, model_card: _Optional[_Union[_worker_pb2.ModelCard, _Mapping]] = ..., num_workers: _Optional[int] = ..., page_size: _Optional[int] = ..., hash_key: _Optional[bytes] = ..., max_request_tokens: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., draining: _Optional[bool] = ..., retry_ms: _Optional[int] = ..., leaving: _Optional[bool] = ..., drain_ms: _Optional[int] = ..., stalled: _Optional[bool] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("keys", "token_ids")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    token_ids: bytes
    def __init__(self, keys: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ...) -> None: ...

class RequestEvent(_message.Message):
    __slots__ = ("key", "rejected", "queued", "admitted", "prefill", "preempted", "held", "output_ended", "ended", "resumed")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ENDED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    key: int
    rejected: Rejected
    queued: QueuedEvent
    admitted: AdmittedEvent
    prefill: PrefillEvent
    preempted: PreemptedEvent
    held: HeldEnding
    output_ended: OutputEnded
    ended: RequestEnded
    resumed: Resumed
    def __init__(self, key: _Optional[int] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ..., queued: _Optional[_Union[QueuedEvent, _Mapping]] = ..., admitted: _Optional[_Union[AdmittedEvent, _Mapping]] = ..., prefill: _Optional[_Union[PrefillEvent, _Mapping]] = ..., preempted: _Optional[_Union[PreemptedEvent, _Mapping]] = ..., held: _Optional[_Union[HeldEnding, _Mapping]] = ..., output_ended: _Optional[_Union[OutputEnded, _Mapping]] = ..., ended: _Optional[_Union[RequestEnded, _Mapping]] = ..., resumed: _Optional[_Union[Resumed, _Mapping]] = ...) -> None: ...

class Resumed(_message.Message):
    __slots__ = ("submit",)
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    submit: Submit
    def __init__(self, submit: _Optional[_Union[Submit, _Mapping]] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("code", "reason", "message", "field", "retry_ms", "num_waiting")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_MS_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    field: str
    retry_ms: int
    num_waiting: int
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retry_ms: _Optional[int] = ..., num_waiting: _Optional[int] = ...) -> None: ...

class QueuedEvent(_message.Message):
    __slots__ = ("position", "reason")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    position: int
    reason: str
    def __init__(self, position: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AdmittedEvent(_message.Message):
    __slots__ = ("cached_tokens", "worker_id")
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    cached_tokens: int
    worker_id: str
    def __init__(self, cached_tokens: _Optional[int] = ..., worker_id: _Optional[str] = ...) -> None: ...

class PrefillEvent(_message.Message):
    __slots__ = ("computed_tokens", "total_tokens")
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    computed_tokens: int
    total_tokens: int
    def __init__(self, computed_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ...) -> None: ...

class PreemptedEvent(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class HeldEnding(_message.Message):
    __slots__ = ("index", "num_output_tokens")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    index: int
    num_output_tokens: int
    def __init__(self, index: _Optional[int] = ..., num_output_tokens: _Optional[int] = ...) -> None: ...

class OutputEnded(_message.Message):
    __slots__ = ("index", "reason", "num_output_tokens", "stop_token_id")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    index: int
    reason: EndReason
    num_output_tokens: int
    stop_token_id: int
    def __init__(self, index: _Optional[int] = ..., reason: _Optional[_Union[EndReason, str]] = ..., num_output_tokens: _Optional[int] = ..., stop_token_id: _Optional[int] = ...) -> None: ...

class RequestEnded(_message.Message):
    __slots__ = ("reason", "prompt_tokens", "cached_tokens", "output_tokens", "recomputed_tokens", "queue_seconds", "first_token_seconds", "decode_seconds", "total_seconds", "worker_id", "retry_ms", "stage")
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DECODE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    RETRY_MS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    reason: EndReason
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    recomputed_tokens: int
    queue_seconds: float
    first_token_seconds: float
    decode_seconds: float
    total_seconds: float
    worker_id: str
    retry_ms: int
    stage: str
    def __init__(self, reason: _Optional[_Union[EndReason, str]] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., queue_seconds: _Optional[float] = ..., first_token_seconds: _Optional[float] = ..., decode_seconds: _Optional[float] = ..., total_seconds: _Optional[float] = ..., worker_id: _Optional[str] = ..., retry_ms: _Optional[int] = ..., stage: _Optional[str] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("query_id", "response", "code", "message", "field", "reason")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    query_id: int
    response: bytes
    code: int
    message: str
    field: str
    reason: str
    def __init__(self, query_id: _Optional[int] = ..., response: _Optional[bytes] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
