from pagewire.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PageStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAGE_STATUS_UNSPECIFIED: _ClassVar[PageStatus]
    PAGE_STATUS_HIT: _ClassVar[PageStatus]
    PAGE_STATUS_COLD: _ClassVar[PageStatus]
    PAGE_STATUS_EVICTED: _ClassVar[PageStatus]
    PAGE_STATUS_SALTED: _ClassVar[PageStatus]
    PAGE_STATUS_DIVERGED: _ClassVar[PageStatus]
    PAGE_STATUS_TAIL_NOT_FULL: _ClassVar[PageStatus]
PAGE_STATUS_UNSPECIFIED: PageStatus
PAGE_STATUS_HIT: PageStatus
PAGE_STATUS_COLD: PageStatus
PAGE_STATUS_EVICTED: PageStatus
PAGE_STATUS_SALTED: PageStatus
PAGE_STATUS_DIVERGED: PageStatus
PAGE_STATUS_TAIL_NOT_FULL: PageStatus

class Prefix(_message.Message):
    __slots__ = ("text", "token_ids", "chat", "cache_salt")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _generation_pb2.TokenIds
    chat: _generation_pb2.Chat
    cache_salt: str
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[_generation_pb2.TokenIds, _Mapping]] = ..., chat: _Optional[_Union[_generation_pb2.Chat, _Mapping]] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class WarmPrefixRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: Prefix
    def __init__(self, prefix: _Optional[_Union[Prefix, _Mapping]] = ...) -> None: ...

class WarmPrefixResponse(_message.Message):
    __slots__ = ("cached_tokens",)
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    cached_tokens: int
    def __init__(self, cached_tokens: _Optional[int] = ...) -> None: ...

class PinPrefixRequest(_message.Message):
    __slots__ = ("prefix", "ttl_ms")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    prefix: Prefix
    ttl_ms: int
    def __init__(self, prefix: _Optional[_Union[Prefix, _Mapping]] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class Pin(_message.Message):
    __slots__ = ("pin_id", "num_pages", "ttl_ms")
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_PAGES_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    pin_id: str
    num_pages: int
    ttl_ms: int
    def __init__(self, pin_id: _Optional[str] = ..., num_pages: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class PinPrefixResponse(_message.Message):
    __slots__ = ("pin",)
    PIN_FIELD_NUMBER: _ClassVar[int]
    pin: Pin
    def __init__(self, pin: _Optional[_Union[Pin, _Mapping]] = ...) -> None: ...

class UnpinPrefixRequest(_message.Message):
    __slots__ = ("pin_id",)
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    pin_id: str
    def __init__(self, pin_id: _Optional[str] = ...) -> None: ...

class UnpinPrefixResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPinsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPinsResponse(_message.Message):
    __slots__ = ("pins",)
    PINS_FIELD_NUMBER: _ClassVar[int]
    pins: _containers.RepeatedCompositeFieldContainer[Pin]
    def __init__(self, pins: _Optional[_Iterable[_Union[Pin, _Mapping]]] = ...) -> None: ...

class ExplainPrefixRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: Prefix
    def __init__(self, prefix: _Optional[_Union[Prefix, _Mapping]] = ...) -> None: ...

class PageExplanation(_message.Message):
    __slots__ = ("status", "diverged_at")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_AT_FIELD_NUMBER: _ClassVar[int]
    status: PageStatus
    diverged_at: int
    def __init__(self, status: _Optional[_Union[PageStatus, str]] = ..., diverged_at: _Optional[int] = ...) -> None: ...

class ExplainPrefixResponse(_message.Message):
    __slots__ = ("pages",)
    PAGES_FIELD_NUMBER: _ClassVar[int]
    pages: _containers.RepeatedCompositeFieldContainer[PageExplanation]
    def __init__(self, pages: _Optional[_Iterable[_Union[PageExplanation, _Mapping]]] = ...) -> None: ...

class ResetPrefixCacheRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetPrefixCacheResponse(_message.Message):
    __slots__ = ("num_pages",)
    NUM_PAGES_FIELD_NUMBER: _ClassVar[int]
    num_pages: int
    def __init__(self, num_pages: _Optional[int] = ...) -> None: ...
