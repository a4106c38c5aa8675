# ruff: noqa: N802 (methods are named as in the proto)
"""KServe's `inference.GRPCInferenceService` over our own generation, for tools that speak of models as named tensors.

A request has the input `text_input` (BYTES, one text) or `input_ids` (INT32 or INT64), and options as parameters or, as
Triton's vLLM backend takes them, as JSON in the input `sampling_parameters`. The answer has `text_output` and
`finish_reason` (BYTES, one for each output). `ModelStreamInfer` answers with the pieces of text as they come, then with
an empty one whose parameter `triton_final_response` is true; its requests run one after another.
"""

import json
import math
import struct
from array import array
from collections.abc import AsyncIterator
from importlib import metadata
from typing import Any

from pagewire.kserve.v2 import inference_pb2, inference_pb2_grpc
from pagewire.v1 import generation_pb2

from scheduler_svc.front.errors import FrontError, InvalidRequestError
from scheduler_svc.front.generation import GenerationService
from scheduler_svc.front.preparation import check_model
from scheduler_svc.front.service_state import ServiceState

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name

_SAMPLING = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty"),
        "repetition_penalty",
    }
)
_STOPPING = frozenset({"max_tokens", "min_tokens", "ignore_eos"})
_INPUTS = frozenset({"text_input", "input_ids", "sampling_parameters", "stream", "exclude_input_in_output"})
_TYPECODES = {"INT32": "i", "INT64": "q"}
MAX_DIMENSIONS = 8
"""Of a tensor's shape; the product of thousands of numbers would take the loop's time."""


class InferenceService(inference_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The protocol's methods."""

    def __init__(self, generation: GenerationService, state: ServiceState) -> None:
        self._generation = generation
        self._state = state

    async def ServerLive(self, request: Any, context: Any) -> Any:
        """It answers, so it lives."""
        return inference_pb2.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        """Whether requests can run now."""
        return inference_pb2.ServerReadyResponse(ready=self._state.is_serving())

    async def ModelReady(self, request: Any, context: Any) -> Any:
        """Whether the model is the served one and requests can run now."""
        model = self._state.model
        is_known = model is not None and request.name == model.name
        return inference_pb2.ModelReadyResponse(ready=is_known and self._state.is_serving())

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        """Name and version."""
        try:
            version = metadata.version("pagewire")
        except metadata.PackageNotFoundError:
            version = "unknown"
        return inference_pb2.ServerMetadataResponse(name="pagewire", version=version)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        """The tensors of the served model."""
        model = self._state.require_model()
        check_model(request.name, model)
        tensor = inference_pb2.ModelMetadataResponse.TensorMetadata
        return inference_pb2.ModelMetadataResponse(
            name=model.name,
            versions=["1"],
            platform="pagewire",
            inputs=[
                tensor(name="text_input", datatype="BYTES", shape=[1]),
                tensor(name="input_ids", datatype="INT32", shape=[-1]),
                tensor(name="sampling_parameters", datatype="BYTES", shape=[1]),
            ],
            outputs=[tensor(name=name, datatype="BYTES", shape=[-1]) for name in ("text_output", "finish_reason")],
        )

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        """One answer."""
        message = _message(request)
        once = generation_pb2.GenerateOnceRequest(request=message)
        answer = await self._generation.GenerateOnce(once, context)
        texts = [output.text for output in answer.outputs]
        reasons = [_finish_reason(output.finished) for output in answer.outputs]
        response = _response(request, text_output=texts, finish_reason=reasons)
        usage = answer.summary.usage
        for name in ("prompt_tokens", "cached_tokens", "output_tokens"):
            response.parameters[name].int64_param = getattr(usage, name)
        return response

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> None:
        """Answers as they come; what is wrong with one request is told in the stream, which goes on."""
        async for request in requests:
            try:
                message = _message(request)
                if message.output.n > 1:
                    raise InvalidRequestError.at("n", "a stream answers with one output")
                await self._generation.run(message, context, _Stream(request, context).write)
            except FrontError as error:
                failed = inference_pb2.ModelInferResponse(id=request.id, model_name=request.model_name)
                answer = inference_pb2.ModelStreamInferResponse(error_message=error.message, infer_response=failed)
                await context.write(answer)


class _Stream:
    """Events of one request as answers."""

    def __init__(self, request: Any, context: Any) -> None:
        self._request = request
        self._context = context
        self._reason = ""

    async def write(self, event: Any) -> None:
        """Writes what an event comes to."""
        kind = event.WhichOneof("event")
        if kind == "finished":
            self._reason = _finish_reason(event.finished)
        elif kind == "delta":
            await self._answer(event.delta.text, is_final=False)
        elif kind == "summary":
            await self._answer("", is_final=True)

    async def _answer(self, text: str, *, is_final: bool) -> None:
        response = _response(self._request, text_output=[text], finish_reason=[self._reason])
        response.parameters["triton_final_response"].bool_param = is_final
        await self._context.write(inference_pb2.ModelStreamInferResponse(infer_response=response))


def _message(request: Any) -> Any:
    """Raises: InvalidRequestError."""
    message = generation_pb2.GenerateRequest(request_id=request.id, model=request.model_name)
    inputs = {tensor.name: _elements(request, place) for place, tensor in enumerate(request.inputs)}
    if len(inputs) < len(request.inputs) or inputs.keys() >= {"text_input", "input_ids"}:
        raise InvalidRequestError.at("inputs", "each name once, and one of text_input and input_ids")
    for name in sorted(inputs.keys() - _INPUTS):
        raise InvalidRequestError.at(f"inputs.{name[:40]}", "there is no such input")
    if "text_input" in inputs:
        message.text = _text("text_input", inputs["text_input"])
    elif "input_ids" in inputs:
        _apply("input_ids", lambda: message.token_ids.ids.extend(inputs["input_ids"]))
        message.token_ids.SetInParent()
    options = {
        name: getattr(value, value.WhichOneof("parameter_choice") or "", None) for name, value in _named(request)
    }
    if "sampling_parameters" in inputs:
        options.update(_json(_text("sampling_parameters", inputs["sampling_parameters"])))
    for name, value in options.items():
        _set_option(message, name, value)
    return message


def _named(request: Any) -> list[tuple[str, Any]]:
    """Parameters but those that clients of Triton add by themselves."""
    return [(name, value) for name, value in request.parameters.items() if not name.startswith("triton_")]


def _set_option(message: Any, name: str, value: Any) -> None:
    if name in _SAMPLING:
        _apply(name, lambda: setattr(message.sampling, name, value))
    elif name in _STOPPING:
        _apply(name, lambda: setattr(message.stop, name, value))
    elif name == "stop":
        _apply(name, lambda: message.stop.stop.extend(_texts(value)))
    elif name == "n":
        _apply(name, lambda: setattr(message.output, "n", value))
    elif name not in ("stream", "priority", "timeout"):
        raise InvalidRequestError.at(f"parameters.{name[:40]}", "there is no such option")


def _texts(value: Any) -> list[Any]:
    """One text or a list. Raises: TypeError."""
    if not isinstance(value, (str, list)):
        raise TypeError
    return [value] if isinstance(value, str) else value


def _apply(name: str, act: Any) -> None:
    """Raises: InvalidRequestError: no value of this option's type."""
    try:
        act()
    except (TypeError, ValueError):
        raise InvalidRequestError.at(f"parameters.{name}", "the value has another type") from None


def _elements(request: Any, place: int) -> list[Any]:
    """The elements of an input, raw or not. Raises: InvalidRequestError."""
    tensor, raw = request.inputs[place], request.raw_input_contents
    name, kind = tensor.name[:40], tensor.datatype
    if len(tensor.shape) > MAX_DIMENSIONS or any(size < 0 for size in tensor.shape):
        raise InvalidRequestError.at(f"inputs.{name}.shape", f"at most {MAX_DIMENSIONS} sizes, none negative")
    found: list[Any]
    if raw and len(raw) != len(request.inputs):
        raise InvalidRequestError.at("raw_input_contents", "one for each input")
    try:
        if not raw:
            fields = {"BYTES": "bytes_contents", "INT32": "int_contents", "INT64": "int64_contents"}
            found = list(getattr(tensor.contents, {**fields, "BOOL": "bool_contents"}[kind]))
        elif kind == "BYTES":
            found = _split(raw[place])
        elif kind == "BOOL":
            found = [bool(each) for each in raw[place]]
        else:
            found = list(array(_TYPECODES[kind], raw[place]))
    except (KeyError, ValueError, struct.error):
        raise InvalidRequestError.at(f"inputs.{name}", f"is no tensor of {kind[:10]}") from None
    if len(found) != math.prod(tensor.shape):
        raise InvalidRequestError.at(f"inputs.{name}", f"{len(found)} elements in a shape of {list(tensor.shape)}")
    return found


def _split(content: bytes) -> list[bytes]:
    """Elements of a raw BYTES tensor: each behind its length."""
    found, at = [], 0
    while at < len(content):
        (length,) = struct.unpack_from("<I", content, at)
        at += 4
        if at + length > len(content):
            raise ValueError("cut off")
        found.append(content[at : at + length])
        at += length
    return found


def _text(name: str, elements: list[Any]) -> str:
    """Raises: InvalidRequestError unless there is one element, in UTF-8."""
    try:
        (content,) = elements
        return str(content.decode())
    except (ValueError, AttributeError):
        raise InvalidRequestError.at(f"inputs.{name}", "must be one text") from None


def _json(text: str) -> dict[str, Any]:
    """Raises: InvalidRequestError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidRequestError.at("inputs.sampling_parameters", "must be a JSON object")
    return found


def _response(request: Any, **outputs: list[str]) -> Any:
    """Raw tensors of texts, those that are wanted."""
    wanted = {output.name for output in request.outputs} or outputs.keys()
    response = inference_pb2.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    for name, texts in outputs.items():
        if name in wanted:
            response.outputs.add(name=name, datatype="BYTES", shape=[len(texts)])
            contents = [text.encode() for text in texts]
            response.raw_output_contents.append(b"".join(struct.pack("<I", len(each)) + each for each in contents))
    return response


def _finish_reason(finished: Any) -> str:
    return generation_pb2.FinishReason.Name(finished.finish_reason).removeprefix("FINISH_REASON_").lower()
