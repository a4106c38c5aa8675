# ruff: noqa: N802 (methods are named as in the proto)
"""`vllm.grpc.engine.VllmEngine` over our own generation: a drop-in behind gateways that speak to vLLM's workers.

Only words are exchanged here: a request becomes a pagewire.v1.GenerateRequest and runs as any other, its events become
chunks. What has no counterpart (media, transfers of KV caches, embeddings) is refused, never ignored. The messages are
those of the package `smg-grpc-proto`; without it the service is not there.
"""

import asyncio
import contextlib
import hashlib
import io
import json
import time
import zipfile
from collections import defaultdict
from datetime import datetime, timezone
from typing import Any

from pagewire.v1 import admin_pb2, generation_pb2
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, vllm_engine_pb2_grpc

from scheduler_svc.front.caller import CALLER
from scheduler_svc.front.errors import InvalidRequestError, NotFoundError, UnsupportedError
from scheduler_svc.front.generation import GenerationService
from scheduler_svc.front.scheduler_link import SchedulerLink
from scheduler_svc.front.served_model import ServedModel
from scheduler_svc.front.service_state import ServiceState
from scheduler_svc.front.stream import HeadersFirst

SERVICE = vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"].full_name
CHUNK_BYTES = 1024 * 1024

_UNSERVED = ("mm_inputs", "extra_mm_inputs", "media_refs", "kv_transfer_params", "kv_transfer_params_json")
_FINISH_REASONS = {
    generation_pb2.FINISH_REASON_STOP: "stop",
    generation_pb2.FINISH_REASON_LENGTH: "length",
    generation_pb2.FINISH_REASON_DEADLINE: "length",
    generation_pb2.FINISH_REASON_CANCELLED: "abort",
}


class VllmEngine(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """What a gateway asks of a worker of vLLM's."""

    def __init__(self, generation: GenerationService, state: ServiceState, link: SchedulerLink) -> None:
        self._generation = generation
        self._state = state
        self._link = link
        self._began = time.monotonic()
        self._tokenizer: tuple[ServedModel, bytes] | None = None

    async def Generate(self, request: Any, context: Any) -> None:
        """One request: chunks if it streams, then one `complete` for each output."""
        message = _message(request)
        write = HeadersFirst(context).write
        answer = _Answer(streams=request.stream)

        async def translate(event: Any) -> None:
            for response in answer.take(event):
                await write(response)

        await self._generation.run(message, context, translate)

    async def Abort(self, request: Any, context: Any) -> Any:
        """Ends requests; those that are not known have ended."""
        for request_id in request.request_ids:
            with contextlib.suppress(NotFoundError):
                await self._link.query(CALLER.get().tenant, cancel_request_id=request_id)
        return vllm_engine_pb2.AbortResponse()

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        """Whether requests can run now."""
        is_serving = self._state.is_serving()
        return vllm_engine_pb2.HealthCheckResponse(healthy=is_serving, message="" if is_serving else "not serving")

    async def GetModelInfo(self, request: Any, context: Any) -> Any:
        """The served model."""
        model = self._state.require_model()
        card = model.card
        return vllm_engine_pb2.GetModelInfoResponse(
            model_path=card.name,
            served_model_name=card.name,
            tokenizer_path=card.name,
            is_generation=True,
            max_context_length=model.max_model_len,
            max_req_input_len=model.max_model_len - 1,
            vocab_size=model.vocab_size,
            architectures=[card.architecture],
            eos_token_ids=sorted(model.eos_token_ids),
            bos_token_id=card.bos_token_id if card.HasField("bos_token_id") else 0,
        )

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        """This front."""
        service = self._state.service
        return vllm_engine_pb2.GetServerInfoResponse(
            active_requests=self._link.num_live,
            uptime_seconds=time.monotonic() - self._began,
            server_type="vllm-grpc",
            data_parallel_size=1,
            block_size=service.page_size if service is not None else 0,
            max_num_seqs=service.max_num_seqs if service is not None else 0,
        )

    async def GetLoads(self, request: Any, context: Any) -> Any:
        """What the scheduler does, as one rank."""
        load = admin_pb2.GetLoadResponse.FromString(await self._link.query(load=True))
        service = self._state.service
        page_size = service.page_size if service is not None else 0
        usage = load.num_held_pages / load.num_pages if load.num_pages else 0.0
        rank = vllm_engine_pb2.SchedulerLoad(
            num_running_reqs=load.num_requests_running,
            num_waiting_reqs=load.num_requests_waiting,
            num_total_reqs=load.num_requests_running + load.num_requests_waiting,
            num_used_tokens=load.num_held_pages * page_size,
            max_total_num_tokens=load.num_pages * page_size,
            token_usage=usage,
            cache_hit_rate=load.num_hit_pages / load.num_asked_pages if load.num_asked_pages else 0.0,
            utilization=usage,
            max_running_requests=service.max_num_seqs if service is not None else 0,
        )
        now = datetime.now(timezone.utc).isoformat()
        return vllm_engine_pb2.GetLoadsResponse(timestamp=now, dp_rank_count=1, loads=[rank])

    async def GetTokenizer(self, request: Any, context: Any) -> None:
        """The tokenizer's files as a zip, in chunks."""
        content = await self._tokenizer_files()
        digest = hashlib.sha256(content).hexdigest()
        for start in range(0, len(content), CHUNK_BYTES):
            is_last = start + CHUNK_BYTES >= len(content)
            data = content[start : start + CHUNK_BYTES]
            await context.write(common_pb2.GetTokenizerChunk(data=data, sha256=digest if is_last else ""))

    async def _tokenizer_files(self) -> bytes:
        """Of the served model; to pack them takes long, so it is done once and beside the loop."""
        model = self._state.require_model()
        if self._tokenizer is None or self._tokenizer[0] is not model:
            self._tokenizer = model, await asyncio.to_thread(_tokenizer_zip, model.card)
        return self._tokenizer[1]

    async def Embed(self, request: Any, context: Any) -> Any:
        """Not served."""
        raise UnsupportedError("VllmEngine.Embed")

    async def FlushCache(self, request: Any, context: Any) -> Any:
        """Not served: CacheService.ResetPrefixCache does it, for admins."""
        raise UnsupportedError("VllmEngine.FlushCache")

    async def StartProfile(self, request: Any, context: Any) -> Any:
        """Not served."""
        raise UnsupportedError("VllmEngine.StartProfile")

    async def StopProfile(self, request: Any, context: Any) -> Any:
        """Not served."""
        raise UnsupportedError("VllmEngine.StopProfile")

    async def SubscribeKvEvents(self, request: Any, context: Any) -> None:
        """Not served: page hashes are keyed and mean nothing outside."""
        raise UnsupportedError("VllmEngine.SubscribeKvEvents")


class _Answer:
    """Events of one request as vLLM's responses."""

    def __init__(self, *, streams: bool) -> None:
        self._streams = streams
        self._token_ids: defaultdict[int, list[int]] = defaultdict(list)
        self._logprobs: defaultdict[int, Any] = defaultdict(vllm_engine_pb2.OutputLogProbs)
        self._finished: list[Any] = []

    def take(self, event: Any) -> list[Any]:
        """The responses that an event comes to. Usage is known at the end, so outputs complete together."""
        kind = event.WhichOneof("event")
        if kind == "delta":
            return self._delta(event.delta)
        if kind == "finished":
            self._finished.append(event.finished)
        return [self._complete(each, event.summary.usage) for each in self._finished] if kind == "summary" else []

    def _delta(self, delta: Any) -> list[Any]:
        self._token_ids[delta.index] += delta.token_ids
        logprobs = _logprobs(delta.logprobs, delta.token_ids) if delta.HasField("logprobs") else None
        if logprobs is not None:
            self._logprobs[delta.index].MergeFrom(logprobs)
        if not self._streams or not delta.token_ids:
            return []
        chunk = vllm_engine_pb2.GenerateStreamChunk(
            token_ids=delta.token_ids,
            completion_tokens=len(self._token_ids[delta.index]),
            index=delta.index,
            output_logprobs=logprobs,
        )
        return [vllm_engine_pb2.GenerateResponse(chunk=chunk)]

    def _complete(self, finished: Any, usage: Any) -> Any:
        token_ids = self._token_ids[finished.index]
        complete = vllm_engine_pb2.GenerateComplete(
            output_ids=token_ids,
            finish_reason=_FINISH_REASONS.get(finished.finish_reason, "error"),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=len(token_ids),
            cached_tokens=usage.cached_tokens,
            index=finished.index,
        )
        if self._logprobs[finished.index].token_ids:
            complete.output_logprobs.CopyFrom(self._logprobs[finished.index])
        matched = finished.WhichOneof("matched")
        if matched == "stop_string":
            complete.matched_stop_str = finished.stop_string
        elif matched == "stop_token_id":
            complete.matched_token_id = finished.stop_token_id
        return vllm_engine_pb2.GenerateResponse(complete=complete)


def _message(request: Any) -> Any:
    """Raises: InvalidRequestError."""
    params = request.sampling_params
    for name in _UNSERVED:
        present = getattr(request, name) if name == "extra_mm_inputs" else request.HasField(name)
        if present:
            raise InvalidRequestError.at(name, "is not served")
    if params.HasField("prompt_logprobs"):
        raise InvalidRequestError.at("sampling_params.prompt_logprobs", "is not served by this facade")
    message = generation_pb2.GenerateRequest(request_id=request.request_id)
    kind = request.WhichOneof("input")
    if kind == "tokenized":
        message.token_ids.ids.extend(request.tokenized.input_ids)
        message.token_ids.SetInParent()
    elif kind == "text":
        message.text = request.text
    message.output.n = params.n or 1
    message.output.text = False
    message.output.token_ids = True
    if params.HasField("logprobs"):
        message.output.logprobs = max(0, params.logprobs)
    _sample(message.sampling, params)
    _stop(message.stop, params)
    _form(message.structured, params)
    if params.HasField("truncate_prompt_tokens") and params.truncate_prompt_tokens > 0:
        message.prompt_options.truncate_prompt_tokens = params.truncate_prompt_tokens
    return message


def _sample(sampling: Any, params: Any) -> None:
    """Zero is unset where the proto cannot tell them apart and zero would mean nothing."""
    if params.HasField("temperature"):
        sampling.temperature = params.temperature
    if params.HasField("seed"):
        sampling.seed = params.seed % 2**64
    for name in ("top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"):
        value = getattr(params, name)
        if value:
            setattr(sampling, name, value)
    for token_id, bias in params.logit_bias.items():
        if token_id < 0:
            raise InvalidRequestError.at("sampling_params.logit_bias", f"{token_id} is no token id")
        sampling.logit_bias[token_id] = bias


def _stop(stop: Any, params: Any) -> None:
    if params.HasField("max_tokens"):
        stop.max_tokens = params.max_tokens
    if params.min_tokens:
        stop.min_tokens = params.min_tokens
    stop.stop.extend(params.stop)
    stop.stop_token_ids.extend(params.stop_token_ids)
    stop.ignore_eos = params.ignore_eos
    stop.include_stop = params.include_stop_str_in_output


def _form(structured: Any, params: Any) -> None:
    kind = params.WhichOneof("constraint")
    if kind == "choice":
        structured.choice.choices.extend(params.choice.choices)
    elif kind == "structural_tag":
        raise InvalidRequestError.at("sampling_params.structural_tag", "is not served")
    elif kind is not None:
        setattr(structured, kind, getattr(params, kind))


def _logprobs(found: Any, token_ids: Any) -> Any:
    """Columns of log probabilities as vLLM's lists; the chosen token is the entry of its id."""
    width = found.width
    ids, values = memoryview(found.token_ids).cast("i"), memoryview(found.logprobs).cast("f")
    told = vllm_engine_pb2.OutputLogProbs(token_ids=token_ids)
    for place, token_id in enumerate(token_ids):
        entries = range(place * width, (place + 1) * width)
        told.token_logprobs.append(next(values[entry] for entry in entries if ids[entry] == token_id))
        top = [entry for entry in entries[: width - 1] if ids[entry] >= 0]
        told.top_logprobs.add(values=[values[entry] for entry in top], token_ids=[ids[entry] for entry in top])
    return told


def _tokenizer_zip(card: Any) -> bytes:
    """The files a tokenizer is made from elsewhere."""
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **dict(card.special_tokens)}
    if card.chat_template:
        settings["chat_template"] = card.chat_template
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as files:
        # A fixed time: equal files have equal digests.
        for name, text in (("tokenizer.json", card.tokenizer_json), ("tokenizer_config.json", json.dumps(settings))):
            files.writestr(zipfile.ZipInfo(name), text)
    return content.getvalue()
