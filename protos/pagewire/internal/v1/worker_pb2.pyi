from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RowStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROW_STATUS_UNSPECIFIED: _ClassVar[RowStatus]
    ROW_STATUS_NAN: _ClassVar[RowStatus]
    ROW_STATUS_GRAMMAR: _ClassVar[RowStatus]
ROW_STATUS_UNSPECIFIED: RowStatus
ROW_STATUS_NAN: RowStatus
ROW_STATUS_GRAMMAR: RowStatus

class WorkerFrame(_message.Message):
    __slots__ = ("session", "epoch", "step_id", "hello", "result", "heartbeat", "goodbye")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    step_id: int
    hello: Hello
    result: StepResult
    heartbeat: Heartbeat
    goodbye: Goodbye
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., step_id: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., result: _Optional[_Union[StepResult, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class SchedulerFrame(_message.Message):
    __slots__ = ("session", "epoch", "step_id", "welcome", "refusal", "plan", "heartbeat", "resync", "goodbye", "names")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    RESYNC_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    step_id: int
    welcome: Welcome
    refusal: Refusal
    plan: BatchPlan
    heartbeat: Heartbeat
    resync: Resync
    goodbye: Goodbye
    names: PageNames
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., step_id: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., plan: _Optional[_Union[BatchPlan, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., resync: _Optional[_Union[Resync, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., names: _Optional[_Union[PageNames, _Mapping]] = ...) -> None: ...

class PageNames(_message.Message):
    __slots__ = ("published_pages", "published_hashes", "published_parents", "evicted_pages", "parent_hashes")
    PUBLISHED_PAGES_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_HASHES_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_PARENTS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_PAGES_FIELD_NUMBER: _ClassVar[int]
    PARENT_HASHES_FIELD_NUMBER: _ClassVar[int]
    published_pages: bytes
    published_hashes: bytes
    published_parents: bytes
    evicted_pages: bytes
    parent_hashes: bytes
    def __init__(self, published_pages: _Optional[bytes] = ..., published_hashes: _Optional[bytes] = ..., published_parents: _Optional[bytes] = ..., evicted_pages: _Optional[bytes] = ..., parent_hashes: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "device", "page_size", "num_pages", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "model_card", "cache_fingerprint", "inventory", "num_ranks", "rank", "pid", "version")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_PAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MODEL_CARD_FIELD_NUMBER: _ClassVar[int]
    CACHE_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    NUM_RANKS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    device: str
    page_size: int
    num_pages: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    model_card: ModelCard
    cache_fingerprint: bytes
    inventory: Inventory
    num_ranks: int
    rank: int
    pid: int
    version: str
    def __init__(self, protocol_version: _Optional[int] = ..., device: _Optional[str] = ..., page_size: _Optional[int] = ..., num_pages: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., max_model_len: _Optional[int] = ..., model_card: _Optional[_Union[ModelCard, _Mapping]] = ..., cache_fingerprint: _Optional[bytes] = ..., inventory: _Optional[_Union[Inventory, _Mapping]] = ..., num_ranks: _Optional[int] = ..., rank: _Optional[int] = ..., pid: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class Inventory(_message.Message):
    __slots__ = ("pages", "hashes", "parents", "identity")
    PAGES_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    pages: bytes
    hashes: bytes
    parents: bytes
    identity: bytes
    def __init__(self, pages: _Optional[bytes] = ..., hashes: _Optional[bytes] = ..., parents: _Optional[bytes] = ..., identity: _Optional[bytes] = ...) -> None: ...

class ModelCard(_message.Message):
    __slots__ = ("name", "architecture", "tokenizer_json", "chat_template", "special_tokens", "eos_token_ids", "bos_token_id", "vocab_size", "max_model_len", "dtype", "kv_cache_dtype", "quantization", "digest", "generation_defaults")
    class SpecialTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_JSON_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    GENERATION_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    architecture: str
    tokenizer_json: bytes
    chat_template: str
    special_tokens: _containers.ScalarMap[str, str]
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bos_token_id: int
    vocab_size: int
    max_model_len: int
    dtype: str
    kv_cache_dtype: str
    quantization: str
    digest: str
    generation_defaults: GenerationDefaults
    def __init__(self, name: _Optional[str] = ..., architecture: _Optional[str] = ..., tokenizer_json: _Optional[bytes] = ..., chat_template: _Optional[str] = ..., special_tokens: _Optional[_Mapping[str, str]] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., bos_token_id: _Optional[int] = ..., vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., dtype: _Optional[str] = ..., kv_cache_dtype: _Optional[str] = ..., quantization: _Optional[str] = ..., digest: _Optional[str] = ..., generation_defaults: _Optional[_Union[GenerationDefaults, _Mapping]] = ...) -> None: ...

class GenerationDefaults(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    max_tokens: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("worker_id", "first_step_id", "heartbeat_ms", "inventory_accepted", "cache_identity")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_ID_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CACHE_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    first_step_id: int
    heartbeat_ms: int
    inventory_accepted: bool
    cache_identity: bytes
    def __init__(self, worker_id: _Optional[str] = ..., first_step_id: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ..., inventory_accepted: _Optional[bool] = ..., cache_identity: _Optional[bytes] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "retryable")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    retryable: bool
    def __init__(self, reason: _Optional[str] = ..., retryable: _Optional[bool] = ...) -> None: ...

class Resync(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason", "for_good")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FOR_GOOD_FIELD_NUMBER: _ClassVar[int]
    reason: str
    for_good: bool
    def __init__(self, reason: _Optional[str] = ..., for_good: _Optional[bool] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("last_received_step_id",)
    LAST_RECEIVED_STEP_ID_FIELD_NUMBER: _ClassVar[int]
    last_received_step_id: int
    def __init__(self, last_received_step_id: _Optional[int] = ...) -> None: ...

class BatchPlan(_message.Message):
    __slots__ = ("releases", "new_rows", "append_rows", "append_pages", "copy_sources", "copy_destinations", "chunk_rows", "chunk_tokens", "idle_rows", "published_pages", "published_hashes", "published_parents", "evicted_pages", "group_ids", "group_pages", "group_sizes", "group_rows", "num_scheduled_rows", "num_scheduled_tokens", "grammars", "parent_hashes")
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    NEW_ROWS_FIELD_NUMBER: _ClassVar[int]
    APPEND_ROWS_FIELD_NUMBER: _ClassVar[int]
    APPEND_PAGES_FIELD_NUMBER: _ClassVar[int]
    COPY_SOURCES_FIELD_NUMBER: _ClassVar[int]
    COPY_DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ROWS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IDLE_ROWS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_PAGES_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_HASHES_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_PARENTS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_PAGES_FIELD_NUMBER: _ClassVar[int]
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    GROUP_PAGES_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZES_FIELD_NUMBER: _ClassVar[int]
    GROUP_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_SCHEDULED_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_SCHEDULED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GRAMMARS_FIELD_NUMBER: _ClassVar[int]
    PARENT_HASHES_FIELD_NUMBER: _ClassVar[int]
    releases: bytes
    new_rows: NewRows
    append_rows: bytes
    append_pages: bytes
    copy_sources: bytes
    copy_destinations: bytes
    chunk_rows: bytes
    chunk_tokens: bytes
    idle_rows: bytes
    published_pages: bytes
    published_hashes: bytes
    published_parents: bytes
    evicted_pages: bytes
    group_ids: bytes
    group_pages: bytes
    group_sizes: bytes
    group_rows: bytes
    num_scheduled_rows: int
    num_scheduled_tokens: int
    grammars: _containers.RepeatedCompositeFieldContainer[Grammar]
    parent_hashes: bytes
    def __init__(self, releases: _Optional[bytes] = ..., new_rows: _Optional[_Union[NewRows, _Mapping]] = ..., append_rows: _Optional[bytes] = ..., append_pages: _Optional[bytes] = ..., copy_sources: _Optional[bytes] = ..., copy_destinations: _Optional[bytes] = ..., chunk_rows: _Optional[bytes] = ..., chunk_tokens: _Optional[bytes] = ..., idle_rows: _Optional[bytes] = ..., published_pages: _Optional[bytes] = ..., published_hashes: _Optional[bytes] = ..., published_parents: _Optional[bytes] = ..., evicted_pages: _Optional[bytes] = ..., group_ids: _Optional[bytes] = ..., group_pages: _Optional[bytes] = ..., group_sizes: _Optional[bytes] = ..., group_rows: _Optional[bytes] = ..., num_scheduled_rows: _Optional[int] = ..., num_scheduled_tokens: _Optional[int] = ..., grammars: _Optional[_Iterable[_Union[Grammar, _Mapping]]] = ..., parent_hashes: _Optional[bytes] = ...) -> None: ...

class NewRows(_message.Message):
    __slots__ = ("rows", "num_prompt_tokens", "num_token_ids", "token_ids", "num_cached_tokens", "output_indices", "seeds", "temperatures", "top_ps", "top_ks", "min_ps", "grammar_ids", "options")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDICES_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURES_FIELD_NUMBER: _ClassVar[int]
    TOP_PS_FIELD_NUMBER: _ClassVar[int]
    TOP_KS_FIELD_NUMBER: _ClassVar[int]
    MIN_PS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_IDS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    rows: bytes
    num_prompt_tokens: bytes
    num_token_ids: bytes
    token_ids: bytes
    num_cached_tokens: bytes
    output_indices: bytes
    seeds: bytes
    temperatures: bytes
    top_ps: bytes
    top_ks: bytes
    min_ps: bytes
    grammar_ids: bytes
    options: _containers.RepeatedCompositeFieldContainer[RowOptions]
    def __init__(self, rows: _Optional[bytes] = ..., num_prompt_tokens: _Optional[bytes] = ..., num_token_ids: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., num_cached_tokens: _Optional[bytes] = ..., output_indices: _Optional[bytes] = ..., seeds: _Optional[bytes] = ..., temperatures: _Optional[bytes] = ..., top_ps: _Optional[bytes] = ..., top_ks: _Optional[bytes] = ..., min_ps: _Optional[bytes] = ..., grammar_ids: _Optional[bytes] = ..., options: _Optional[_Iterable[_Union[RowOptions, _Mapping]]] = ...) -> None: ...

class RowOptions(_message.Message):
    __slots__ = ("position", "frequency_penalty", "presence_penalty", "repetition_penalty", "bias_token_ids", "biases", "allowed_token_ids", "bad_words", "min_tokens", "stop_token_ids", "logprobs", "prompt_logprobs")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BIAS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BIASES_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    position: int
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    bias_token_ids: bytes
    biases: bytes
    allowed_token_ids: bytes
    bad_words: bytes
    min_tokens: int
    stop_token_ids: bytes
    logprobs: int
    prompt_logprobs: int
    def __init__(self, position: _Optional[int] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., bias_token_ids: _Optional[bytes] = ..., biases: _Optional[bytes] = ..., allowed_token_ids: _Optional[bytes] = ..., bad_words: _Optional[bytes] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[bytes] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("grammar_id", "text")
    GRAMMAR_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    grammar_id: int
    text: str
    def __init__(self, grammar_id: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("rows", "token_ids", "statuses", "failure", "step_us", "logprobs", "refusal")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STEP_US_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    rows: bytes
    token_ids: bytes
    statuses: bytes
    failure: str
    step_us: int
    logprobs: _containers.RepeatedCompositeFieldContainer[RowLogprobs]
    refusal: str
    def __init__(self, rows: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., statuses: _Optional[bytes] = ..., failure: _Optional[str] = ..., step_us: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[RowLogprobs, _Mapping]]] = ..., refusal: _Optional[str] = ...) -> None: ...

class RowLogprobs(_message.Message):
    __slots__ = ("row", "width", "num_prompt_positions", "first_position", "token_ids", "logprobs", "ranks")
    ROW_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    row: int
    width: int
    num_prompt_positions: int
    first_position: int
    token_ids: bytes
    logprobs: bytes
    ranks: bytes
    def __init__(self, row: _Optional[int] = ..., width: _Optional[int] = ..., num_prompt_positions: _Optional[int] = ..., first_position: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., ranks: _Optional[bytes] = ...) -> None: ...
