"""Compressed requests: gzip is read within the limit on messages, whatever it unpacks to; deflate is refused."""

import gzip
import zlib
from typing import Any

import grpc
import pytest
from pagewire.v1 import generation_pb2 as pb
from support.front_stack import FrontStack, details_of, fields_of, front_stack

from scheduler_svc.front.compression import MAX_MESSAGE_BYTES, unpacked
from scheduler_svc.front.errors import ExhaustedError, InvalidRequestError

ONCE = pb.GenerateOnceRequest(request=pb.GenerateRequest(token_ids=pb.TokenIds(ids=[65])))


def once(stack: FrontStack, content: bytes, **how: Any) -> Any:
    """A call with these bytes as its message."""
    method = stack.channel.unary_unary(
        "/pagewire.v1.GenerationService/GenerateOnce", response_deserializer=pb.GenerateOnceResponse.FromString
    )
    return method(content, timeout=20, **how)


async def test_grp_01_compressed_messages_have_the_same_limit() -> None:
    async with front_stack() as stack:
        gzipped = {"compression": grpc.Compression.Gzip}
        assert (await once(stack, ONCE.SerializeToString(), **gzipped)).outputs[0].text == "Hi"
        many = stack.generation.GenerateMany(iter([pb.GenerateManyRequest(start=ONCE.request)]), **gzipped)
        assert len([message async for message in many]) >= 1
        with pytest.raises(grpc.RpcError) as large:
            await once(stack, bytes(MAX_MESSAGE_BYTES + 1), **gzipped)
        assert large.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details_of(large.value)["ErrorInfo"].reason == "MESSAGE_TOO_LARGE"
        with pytest.raises(grpc.RpcError) as broken:
            await once(stack, gzip.compress(ONCE.SerializeToString())[:-3])
        assert fields_of(broken.value) == ["request"]
        with pytest.raises(grpc.RpcError) as deflated:
            await once(stack, ONCE.SerializeToString(), compression=grpc.Compression.Deflate)
        assert deflated.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert (await once(stack, ONCE.SerializeToString())).outputs[0].text == "Hi"


def test_no_more_is_unpacked_than_is_allowed() -> None:
    packer = zlib.compressobj(1, wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    assert len(bomb) < 1 << 20
    with pytest.raises(ExhaustedError):
        unpacked(bomb)
    assert unpacked(gzip.compress(bytes(MAX_MESSAGE_BYTES))) == bytes(MAX_MESSAGE_BYTES)
    assert unpacked(b"\x0a\x00") == b"\x0a\x00"


@pytest.mark.parametrize(
    "content", [b"\x1f\x8b", b"\x1f\x8b" + bytes(40), gzip.compress(b"a") + b"b", gzip.compress(b"a")[:-1]]
)
def test_what_is_not_whole_is_no_request(content: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        unpacked(content)
