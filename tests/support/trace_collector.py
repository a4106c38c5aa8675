"""A collector of OpenTelemetry traces: takes what arrives over OTLP/gRPC, for tests to read."""

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from support.conditions import wait_until


class TraceCollector:
    """``with TraceCollector() as collector``: listens at ``endpoint``."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self._server = grpc.server(ThreadPoolExecutor(1))
        method = grpc.unary_unary_rpc_method_handler(
            self._export,
            request_deserializer=trace_service_pb2.ExportTraceServiceRequest.FromString,
            response_serializer=trace_service_pb2.ExportTraceServiceResponse.SerializeToString,
        )
        service = "opentelemetry.proto.collector.trace.v1.TraceService"
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": method}),))
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> "TraceCollector":
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._server.stop(None)

    def _export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait(self, name: str, value: Any) -> Any:
        """The first span with this attribute, once it is there."""

        def found() -> list[Any]:
            return [span for span in list(self.spans) if attributes_of(span).get(name) == value]

        wait_until(found, f"a span with {name} = {value}", 30)
        return found()[0]


def attributes_of(span_or_event: Any) -> dict[str, Any]:
    """Attributes as plain values."""
    return {each.key: _plain(each.value) for each in span_or_event.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_plain(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
