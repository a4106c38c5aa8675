"""The front as a process: how it starts, tells that it is ready, refuses, and ends."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from pagewire.internal.v1 import front_pb2
from pagewire.v1 import generation_pb2 as pb
from pagewire.v1 import generation_pb2_grpc
from pagewire_client.stack import free_ports
from support.fake_scheduler import FakeScheduler

SECONDS = 20


@contextlib.asynccontextmanager
async def process(scheduler: FakeScheduler, port: int, *arguments: str) -> AsyncIterator[tuple[Any, str]]:
    """A front process and the line it wrote when it had started."""
    reader, writer = os.pipe()
    command = ["-m", "scheduler_svc.front", "--front-endpoint", scheduler.endpoint, "--port", str(port)]
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        "--ready-fd",
        str(writer),
        *arguments,
        pass_fds=[writer],
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(writer)
    try:
        with os.fdopen(reader) as pipe:
            line = await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(None, pipe.readline), SECONDS)
        yield running, line.strip()
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


async def wait_serving(channel: Any) -> None:
    async for answer in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS):
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return


async def test_a_front_serves_reflects_and_stops() -> None:
    port, internal = free_ports(2)
    async with (
        FakeScheduler() as scheduler,
        process(scheduler, port, "--internal-port", str(internal), "--log-format", "json") as (running, line),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        assert line == "ready"
        await wait_serving(channel)
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        answer = await stub.GenerateOnce(pb.GenerateOnceRequest(request=pb.GenerateRequest(text="x")), timeout=SECONDS)
        assert answer.outputs[0].text == "Hi"
        assert "pagewire.v1.GenerationService" in await services(channel)
        assert "pagewire.v1.AdminService" not in await services(channel)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{internal}") as other:
            assert "pagewire.v1.AdminService" in await services(other, "grpc.reflection.v1")
        scheduler.script = lambda submit: [[65]]
        call = stub.Generate(pb.GenerateRequest(text="x"))
        assert (await call.read()).delta.text == "A"
        running.send_signal(signal.SIGINT)
        running.send_signal(signal.SIGTERM)
        # A running request gets some time; it can still end well.
        await scheduler.end(2, front_pb2.END_REASON_TIME_LIMIT)
        assert (await call.read()).WhichOneof("event") == "finished"
        assert (await call.read()).WhichOneof("event") == "summary"
        _, log = await asyncio.wait_for(running.communicate(), SECONDS)
        assert running.returncode == 0, log
        assert b"Traceback" not in log


async def services(channel: Any, package: str = "grpc.reflection.v1alpha") -> list[str]:
    """Names a server lists by reflection."""
    if package == "grpc.reflection.v1alpha":
        method = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
    else:
        method = channel.stream_stream(
            f"/{package}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
    call = method(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=SECONDS)
    async for answer in call:
        return [service.name for service in answer.list_services_response.service]
    return []


async def test_a_port_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with FakeScheduler() as scheduler, process(scheduler, port) as (running, line):
            assert line == f"error: --port {port}: cannot listen on 127.0.0.1:{port}: Address already in use"
            assert await asyncio.wait_for(running.wait(), SECONDS) == 2


async def test_a_refused_front_ends() -> None:
    async with FakeScheduler() as scheduler, process(scheduler, free_ports(1)[0]) as (running, line):
        assert line == "ready"
        await scheduler.wait_for(lambda: len(scheduler.hellos) == 1)
        await scheduler.send_all(front_pb2.SchedulerToFrontFrame(refusal="another version"))
        assert await asyncio.wait_for(running.wait(), SECONDS) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are told by the kernel on Linux")
async def test_a_front_dies_with_its_parent() -> None:
    script = (
        "import subprocess, sys, os, time\n"
        "command = [sys.executable, '-m', 'scheduler_svc.front', *sys.argv[1:]]\n"
        "child = subprocess.Popen(command, pass_fds=[int(sys.argv[-1])])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    reader, writer = os.pipe()
    async with FakeScheduler(lambda submit: [[65]]) as scheduler:
        (port,) = free_ports(1)
        parent = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            script,
            *("--front-endpoint", scheduler.endpoint, "--port", str(port), "--ready-fd", str(writer)),
            pass_fds=[writer],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        os.close(writer)
        with os.fdopen(reader) as pipe:
            line = await asyncio.get_running_loop().run_in_executor(None, pipe.readline)
        assert line == "ready\n"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await wait_serving(channel)
            call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(pb.GenerateRequest(text="x"))
            await call.read()
            parent.kill()
            await parent.communicate()
            assert await asyncio.wait_for(call.code(), 5) == grpc.StatusCode.UNAVAILABLE
