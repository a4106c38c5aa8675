# ruff: noqa: N802 (methods are named as in the proto)
"""pagewire.v1.ModelService: what is served."""

from importlib import metadata
from typing import Any

from pagewire.v1 import model_pb2, model_pb2_grpc

from scheduler_svc.front.preparation import check_model
from scheduler_svc.front.service_state import ServiceState

SCHEMA_REVISION = "2026-1"


class ModelService(model_pb2_grpc.ModelServiceServicer):  # type: ignore[misc]
    """Describes the served model."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state

    async def ListModels(self, request: Any, context: Any) -> Any:
        """The served model; empty before a worker has joined."""
        if self._state.model is None:
            return model_pb2.ListModelsResponse()
        return model_pb2.ListModelsResponse(models=[self._describe()])

    async def GetModel(self, request: Any, context: Any) -> Any:
        """One model by name."""
        check_model(request.name, self._state.require_model())
        return model_pb2.GetModelResponse(model=self._describe())

    def _describe(self) -> Any:
        model, service = self._state.require_model(), self._state.service
        card = model.card
        capabilities = ["text", "token_ids", "seed", "stop", "n", "logprobs"]
        if model.chat_template is not None:
            capabilities.append("chat")
        if model.eos_token_ids:
            capabilities.append("structured")
        return model_pb2.Model(
            name=card.name,
            architecture=card.architecture,
            max_model_len=card.max_model_len,
            vocab_size=card.vocab_size,
            dtype=card.dtype,
            quantization=card.quantization,
            digest=card.digest,
            capabilities=sorted(capabilities),
            server_version=_version(),
            schema_revision=SCHEMA_REVISION,
            page_size=service.page_size if service is not None else 0,
            max_num_seqs=service.max_num_seqs if service is not None else 0,
            max_request_tokens=service.max_request_tokens if service is not None else 0,
        )


def _version() -> str:
    try:
        return metadata.version("pagewire")
    except metadata.PackageNotFoundError:
        return "unknown"
