"""Who gets in: certificates, tokens, tenants and roles, at a real port; and how much of it."""

import asyncio
import hashlib
import json
import socket
import sys
import threading
import time
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt.algorithms import ECAlgorithm
from pagewire.v1 import admin_pb2, admin_pb2_grpc, model_pb2
from pagewire.v1 import generation_pb2 as pb
from pagewire_client import AsyncClient, Client, PermissionDeniedError, Tls, UnauthenticatedError, UnavailableError
from support.certificates import Authority, Pair
from support.fake_scheduler import FakeScheduler, toy_card
from support.front_stack import TIMEOUT, details_of, front_stack
from support.scheduler_process import SchedulerProcess
from support.scripted_stack import ScriptedStack

from scheduler_svc.front import prompt, reloaded_file
from scheduler_svc.front.access import AccessOptions
from scheduler_svc.front.reloaded_file import FileError
from scheduler_svc.front.server import Front, FrontOptions
from scheduler_svc.front.tls import FollowedPems, TlsFiles

SPIFFE = "spiffe://prod/api"


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> TlsFiles:
    found = TlsFiles(cert=tmp_path / "cert.pem", key=tmp_path / "key.pem", client_ca=tmp_path / "ca.pem")
    authority.server().write(found.cert, found.key)
    assert found.client_ca is not None
    found.client_ca.write_bytes(authority.cert)
    return found


@pytest.fixture
def tokens(tmp_path: Path) -> AccessOptions:
    path = tmp_path / "tokens.yaml"
    path.write_text(
        f"tokens:\n  - {{sha256: {digest('of acme')}, tenant: acme}}\n"
        f"  - {{sha256: {digest('of ops')}, tenant: ops, role: admin}}\n"
        "tenants: {acme: {max_concurrent_requests: 2, requests_per_minute: 60}}\n"
    )
    return AccessOptions(tokens_file=path)


def credentials(authority: Authority, client: Pair | None = None) -> grpc.ChannelCredentials:
    if client is None:
        return grpc.ssl_channel_credentials(authority.cert)
    return grpc.ssl_channel_credentials(authority.cert, client.key, client.cert)


def request(**fields: Any) -> Any:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=list(range(65, 97))), **fields)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Code and reason of a call that fails."""
    with pytest.raises(grpc.RpcError) as failed:
        await call
    error: Any = failed.value
    return error.code(), details_of(error)["ErrorInfo"].reason


async def test_mutual_tls_says_the_tenant(authority: Authority, files: TlsFiles) -> None:
    mine = credentials(authority, authority.client(SPIFFE))
    access = AccessOptions(client_certificates=True)
    async with front_stack(credentials=mine, tls=files, access=access) as stack:
        await stack.once(request(request_id="r"))
        assert stack.scheduler.submits[-1].tenant == SPIFFE
        cancel = stack.generation.CancelRequest(pb.CancelRequestRequest(request_id="r"))
        assert await code_of(cancel) == (grpc.StatusCode.NOT_FOUND, "REQUEST_NOT_FOUND")
        assert stack.scheduler.queries[-1].tenant == SPIFFE
        target = f"127.0.0.1:{stack.front.port}"
        strangers = Authority()
        for wrong in (credentials(authority), credentials(authority, strangers.client(SPIFFE)), credentials(strangers)):
            async with grpc.aio.secure_channel(target, wrong) as channel:
                assert await refuses(channel)
        async with grpc.aio.insecure_channel(target) as channel:
            assert await refuses(channel)


async def refuses(channel: Any) -> bool:
    """Whether no connection comes about."""
    call = channel.unary_unary("/pagewire.v1.ModelService/ListModels")
    with pytest.raises(grpc.RpcError) as failed:
        await call(b"", timeout=5)
    return bool(failed.value.code() == grpc.StatusCode.UNAVAILABLE)


async def test_a_rotated_certificate_serves_the_next_connection(
    authority: Authority, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloaded_file, "CHECK_SECONDS", 0.0)
    next_authority, client = Authority(), authority.client(SPIFFE)
    fresh = [("grpc.use_local_subchannel_pool", 1)]
    async with front_stack(credentials=credentials(authority, client), tls=files) as stack:
        target = f"127.0.0.1:{stack.front.port}"

        async def is_served(roots: Authority) -> bool:
            shown = grpc.ssl_channel_credentials(roots.cert, client.key, client.cert)
            async with grpc.aio.secure_channel(target, shown, options=fresh) as channel:
                try:
                    await channel.unary_unary("/pagewire.v1.ModelService/ListModels")(b"", timeout=5)
                except grpc.RpcError:
                    return False
                return True

        assert await is_served(authority)
        rotated = next_authority.server()
        # Half a rotation: certificate and key do not belong together, the old pair stays.
        files.cert.write_bytes(rotated.cert)
        assert await is_served(authority)
        files.key.write_bytes(rotated.key)
        assert await is_served(next_authority)
        assert not await is_served(authority)
        # A connection from before goes on.
        await stack.once(request())


def test_what_has_not_changed_is_not_replaced(
    authority: Authority, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC frees what it replaces, which another handshake may just use."""
    monkeypatch.setattr(reloaded_file, "CHECK_SECONDS", 0.0)
    followed = FollowedPems(files)
    assert followed.changed() is None
    rotated = authority.server()
    rotated.write(files.cert, files.key)
    found = followed.changed()
    assert found is not None
    assert (found.cert, found.key) == (rotated.cert, rotated.key)
    assert followed.changed() is None


def test_key_files_that_cannot_be_used_are_named(authority: Authority, files: TlsFiles) -> None:
    async def start(tls: TlsFiles) -> None:
        front = Front(FrontOptions(front_endpoint="ipc:///nowhere.sock", tls=tls))
        try:
            await front.start()
        finally:
            await front.stop(0)

    other = authority.server()
    odd_key = ec.generate_private_key(ec.SECP256K1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for flag, path, content in (
        ("--tls-key", files.key, other.key),
        ("--tls-key", files.key, odd_key),
        ("--tls-key", files.key, b"no key"),
        ("--tls-cert", files.cert, b"no certificate"),
        ("--tls-client-ca", files.client_ca, b""),
    ):
        assert path is not None
        before = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(FileError, match=f"^{flag} "):
            asyncio.run(start(files))
        path.write_bytes(before)
    files.key.unlink()
    with pytest.raises(FileError, match=r"--tls-key .*No such file"):
        asyncio.run(start(files))


async def test_tokens_say_tenant_limits_and_role(tokens: AccessOptions) -> None:
    async with front_stack(access=tokens) as stack:
        models, admin = stack.models, admin_pb2_grpc.AdminServiceStub(stack.channel)
        nobody = (grpc.StatusCode.UNAUTHENTICATED, "NO_CREDENTIALS")
        stranger = (grpc.StatusCode.UNAUTHENTICATED, "BAD_CREDENTIALS")
        assert await code_of(models.ListModels(model_pb2.ListModelsRequest())) == nobody
        assert await code_of(stack.generation.Generate(request()).read()) == nobody
        assert await code_of(models.ListModels(model_pb2.ListModelsRequest(), metadata=bearer("wrong"))) == stranger
        once = pb.GenerateOnceRequest(request=request())
        await stack.generation.GenerateOnce(once, metadata=bearer("of acme"))
        submit = stack.scheduler.submits[-1]
        assert (submit.tenant, submit.max_tenant_requests, submit.tenant_requests_per_minute) == ("acme", 2, 60)
        denied = (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED")
        load = admin_pb2.GetLoadRequest()
        assert await code_of(admin.GetLoad(load, metadata=bearer("of acme"))) == denied
        assert (await admin.GetLoad(load, metadata=bearer("of ops"))).num_workers == 1
        # Bytes that are no request are not even read.
        raw = stack.channel.unary_unary("/pagewire.v1.GenerationService/GenerateOnce")
        assert await code_of(raw(b"\xff\xff", metadata=bearer("wrong"))) == stranger


async def test_strangers_are_refused_before_they_send_anything(tokens: AccessOptions) -> None:
    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async with front_stack(access=tokens) as stack:
        for method in ("GenerationService/GenerateOnce", "GenerationService/GenerateMany", "ModelService/ListModels"):
            for metadata in ((), bearer("wrong"), (("authorization", "Basic x"),)):
                call = stack.channel.stream_unary(f"/pagewire.v1.{method}")
                code, _ = await code_of(call(nothing(), metadata=metadata, timeout=TIMEOUT))
                assert code == grpc.StatusCode.UNAUTHENTICATED


async def test_entries_of_one_stream_are_the_callers(tokens: AccessOptions) -> None:
    async with front_stack(access=tokens) as stack:
        call = stack.generation.GenerateMany(metadata=bearer("of acme"))
        for _ in range(3):
            await call.write(pb.GenerateManyRequest(start=request()))
        await call.done_writing()
        assert [message async for message in call]
        assert [submit.tenant for submit in stack.scheduler.submits] == ["acme"] * 3


async def test_pages_have_other_names_for_each_tenant() -> None:
    async def root(share: bool, *names: str) -> list[bytes]:
        options = AccessOptions(trust_tenant_metadata=True)
        async with front_stack(access=options, tenants_share_pages=share) as stack:
            for name in names:
                metadata = (("x-pagewire-tenant", name),) if name else ()
                once = pb.GenerateOnceRequest(request=request())
                await stack.generation.GenerateOnce(once, metadata=metadata)
            return [submit.page_hashes for submit in stack.scheduler.submits]

    mine, again, other, nobodys = await root(False, "a", "a", "b", "")
    assert mine == again
    assert len({mine, other, nobodys}) == 3
    assert not {mine[:16], mine[16:]} & {other[:16], other[16:]}
    shared = await root(True, "a", "b", "")
    assert len(set(shared)) == 1
    assert shared[0] == nobodys


async def test_the_internal_port_asks_for_nothing_and_health_is_open(tokens: AccessOptions) -> None:
    async with front_stack(access=tokens, internal_port=0, health_port=0, health_host="127.0.0.1") as stack:
        await stack.wait_serving()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{stack.front.internal_port}") as channel:
            admin = admin_pb2_grpc.AdminServiceStub(channel)
            named = (("x-pagewire-tenant", "acme"),)
            await admin.ExplainRequest(admin_pb2.ExplainRequestRequest(request_id="r"), metadata=named)
            assert stack.scheduler.queries[-1].tenant == "acme"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{stack.front.health_port}") as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await check(b"") == b"\x08\x01"
            with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
                await channel.unary_unary("/pagewire.v1.ModelService/ListModels")(b"")


async def test_clients_show_certificates_and_tokens(
    authority: Authority, files: TlsFiles, tokens: AccessOptions
) -> None:
    options = AccessOptions(tokens_file=tokens.tokens_file, client_certificates=True)
    client = authority.client(SPIFFE)
    tls = Tls(root_certificates=authority.cert, private_key=client.key, certificate_chain=client.cert)
    async with front_stack(credentials=credentials(authority, client), tls=files, access=options) as stack:
        target = f"127.0.0.1:{stack.front.port}"
        async with AsyncClient(target, tls=tls, token="of acme") as mine:
            assert (await mine.generate([65])).text == "Hi"
            with pytest.raises(PermissionDeniedError):
                await mine.load()
        async with AsyncClient(target, tls=tls, token="of ops") as mine:
            assert (await mine.load()).num_workers == 1
        async with AsyncClient(target, tls=tls, token="wrong") as mine:
            with pytest.raises(UnauthenticatedError):
                await mine.generate([65])

        def plain() -> None:
            with Client(target, timeout=5) as mine, pytest.raises(UnavailableError):
                mine.models()

        await asyncio.to_thread(plain)


async def test_the_command_line_shows_them_too(
    authority: Authority, files: TlsFiles, tokens: AccessOptions, tmp_path: Path
) -> None:
    client = authority.client(SPIFFE)
    client.write(tmp_path / "mine.pem", tmp_path / "mine.key")
    (tmp_path / "token").write_text("of ops\n")
    shown = ["--tls-ca", str(files.client_ca), "--tls-cert", str(tmp_path / "mine.pem")]
    shown += ["--tls-key", str(tmp_path / "mine.key"), "--token-file", str(tmp_path / "token")]
    options = AccessOptions(tokens_file=tokens.tokens_file, client_certificates=True)
    async with front_stack(credentials=credentials(authority, client), tls=files, access=options) as stack:
        command = [*shown, "--tenant", "acme", "generate", "x", "--target", f"127.0.0.1:{stack.front.port}"]
        program = [sys.executable, "-m", "pagewire_client.cli"]
        process = await asyncio.create_subprocess_exec(*program, *command, stdout=asyncio.subprocess.PIPE)
        output, _ = await asyncio.wait_for(process.communicate(), 20)
        assert (process.returncode, output) == (0, b"Hi\n")
        assert stack.scheduler.submits[-1].tenant == "acme"


def test_flags_of_the_scheduler_reach_its_fronts(authority: Authority, files: TlsFiles, tmp_path: Path) -> None:
    """TLS and a JSON Web Token through the whole product, and what is said of a file that cannot be used."""
    key, jwks = ec.generate_private_key(ec.SECP256R1()), tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [ECAlgorithm.to_jwk(key.public_key(), as_dict=True)]}))
    flags = ("--tls-cert", str(files.cert), "--tls-key", str(files.key), "--auth-jwks-file", str(jwks))
    token = jwt.encode({"sub": "acme", "exp": time.time() + 60}, key, "ES256")
    tls = Tls(root_certificates=authority.cert)
    with (
        ScriptedStack(*flags) as stack,
        Client(stack.scheduler.internal_target, timeout=20) as stack.client,
        stack.worker(),
    ):
        with Client(stack.scheduler.target, tls=tls, token=token, timeout=20) as client:
            assert client.generate([1, 2, 3]).text == "known"
        with Client(stack.scheduler.target, tls=tls, timeout=20) as client, pytest.raises(UnauthenticatedError):
            client.models()
        # Handshakes that come to nothing, many at a time: gRPC's threads meet in what they share.
        for _ in range(2000):
            with socket.create_connection(("127.0.0.1", stack.scheduler.port), timeout=10) as link:
                link.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with Client(stack.scheduler.target, tls=tls, token=token, timeout=20) as client:
            assert client.generate([1, 2, 3]).text == "known"
        assert stack.scheduler.events("front_ended") == []
    files.key.write_text("no key")
    broken = SchedulerProcess(*flags)
    try:
        assert broken.run_to_end() == 2
        assert broken.log()[-1]["event"].startswith(f"pagewire scheduler: --tls-key {files.key}: ")
    finally:
        broken.close()


async def test_headers_have_limits() -> None:
    async with front_stack(FakeScheduler()) as stack:
        call = stack.models.ListModels(model_pb2.ListModelsRequest(), metadata=(("x-large", "x" * 40_000),))
        with pytest.raises(grpc.RpcError) as failed:
            await call
        assert failed.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        await stack.once(request())


async def test_text_that_waits_for_a_thread_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(prompt, "MAX_WAITING_BYTES", 10_000)
    monkeypatch.setattr(prompt, "prompt_token_ids", lambda request, model: gate.wait(20) and array("i", [65]))
    async with front_stack(FakeScheduler(card=toy_card(max_model_len=8192))) as stack:
        calls = [asyncio.ensure_future(stack.once(pb.GenerateRequest(text="a" * 4000))) for _ in range(4)]
        done: set[Any] = set()
        while len(done) < 2:
            done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        refused: Any = done.pop().exception()
        assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details_of(refused)["RetryInfo"].retry_delay.ToMilliseconds() > 0
        gate.set()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(end, grpc.RpcError) for end in ends) == 2
        await stack.once(pb.GenerateRequest(text="a" * 4000))
