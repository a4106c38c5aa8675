"""Runs reference cases on a server, greedily, and compares them with the reference."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio
from pagewire.v1 import generation_pb2 as pb
from pagewire.v1.generation_pb2_grpc import GenerationServiceStub
from pagewire_client import AsyncClient, FinishReason, Generation
from pagewire_client.options import GenerateOptions
from support.reference_outputs import Case, Reference

CALL_SECONDS = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How cases are sent."""

    at_once: int = 16
    streamed: bool = True
    bypass_prefix_cache: bool = False


def run_cases(target: str, cases: Sequence[Case], mode: Mode) -> list[Generation]:
    """Results in the order of ``cases``, at most ``mode.at_once`` running."""
    return asyncio.run(_run_cases(target, cases, mode))


async def _run_cases(target: str, cases: Sequence[Case], mode: Mode) -> list[Generation]:
    places = asyncio.Semaphore(mode.at_once)
    async with AsyncClient(target, timeout=CALL_SECONDS) as client:

        async def run(case: Case) -> Generation:
            async with places:
                return await _run_case(client, case, mode)

        return await asyncio.gather(*map(run, cases))


async def _run_case(client: AsyncClient, case: Case, mode: Mode) -> Generation:
    options: GenerateOptions = {
        "temperature": 0.0,
        "max_tokens": case.max_tokens,
        "token_ids": True,
        "bypass_prefix_cache": mode.bypass_prefix_cache or None,
    }
    if case.chat:
        messages = [{"role": role, "content": content} for role, content in case.chat]
        if mode.streamed:
            return await client.stream_chat(messages, **options).join()
        return await client.chat(messages, **options)
    if mode.streamed:
        return await client.stream(case.text, **options).join()
    return await client.generate(case.text, **options)


def assert_equal(generations: Sequence[Generation], references: Sequence[Reference]) -> None:
    """Every generation is its reference: ids, text, finish reason and usage."""
    for generation, reference in zip(generations, references, strict=True):
        output = generation.outputs[0]
        prompt = reference.case.text or reference.case.chat
        assert output.token_ids == reference.output_ids, prompt
        # A length limit may fall inside a character.
        assert output.text.rstrip("\ufffd") == reference.text.rstrip("\ufffd"), prompt
        at_limit = len(reference.output_ids) == reference.case.max_tokens
        if not at_limit:
            assert output.finish_reason is FinishReason.STOP, prompt
        assert output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH), prompt
        assert generation.usage.prompt_tokens == len(reference.prompt_ids), prompt
        assert generation.usage.output_tokens == len(reference.output_ids), prompt


def run_many(target: str, prompts: Sequence[Sequence[int]], *, max_tokens: int) -> list[tuple[int, ...]]:
    """Output ids of all prompts, sent together over one GenerateMany stream, their endings ignored."""
    return asyncio.run(_run_many(target, prompts, max_tokens))


async def _run_many(target: str, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[tuple[int, ...]]:
    outputs: list[list[int]] = [[] for _ in prompts]
    async with grpc.aio.insecure_channel(target) as channel:
        call = GenerationServiceStub(channel).GenerateMany(timeout=CALL_SECONDS)
        for index, prompt in enumerate(prompts):
            start = pb.GenerateRequest(
                request_id=str(index),
                token_ids=pb.TokenIds(ids=prompt),
                sampling=pb.SamplingOptions(temperature=0),
                stop=pb.StopOptions(max_tokens=max_tokens, ignore_eos=True),
                output=pb.OutputOptions(text=False, token_ids=True),
            )
            await call.write(pb.GenerateManyRequest(start=start))
        await call.done_writing()
        async for message in call:
            for event in message.events:
                assert not event.HasField("failure"), event.failure
                outputs[int(event.response.request_id)].extend(event.response.delta.token_ids)
    return list(map(tuple, outputs))
