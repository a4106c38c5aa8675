"""Asks a server with Triton's own client and prints what it heard as JSON: `python triton_calls.py HOST:PORT`.

A process of its own, because the client brings its own copy of the protocol's messages.
"""

import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton


def texts(*contents: str, name: str = "text_input") -> Any:
    """An input of BYTES."""
    tensor = triton.InferInput(name, [len(contents)], "BYTES")
    tensor.set_data_from_numpy(np.array([content.encode() for content in contents], dtype=np.object_))
    return tensor


def decoded(result: Any, name: str) -> list[str]:
    """A BYTES output."""
    return [content.decode() for content in result.as_numpy(name)]


def streamed(client: Any, inputs: list[Any], **options: Any) -> list[Any]:
    """Answers of one request of a stream, errors as their messages."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(callback=lambda result, error: answers.put(error or result))
    client.async_stream_infer("toy", inputs, enable_empty_final_response=True, parameters=options)
    told = []
    while True:
        answer = answers.get(timeout=20)
        if isinstance(answer, Exception):
            told.append({"error": str(answer)})
            break
        told.append({"text": decoded(answer, "text_output")[0], "reason": decoded(answer, "finish_reason")[0]})
        if answer.get_response().parameters["triton_final_response"].bool_param:
            break
    client.stop_stream()
    return told


def refused(client: Any, inputs: list[Any], parameters: dict[str, Any]) -> str:
    """The status of a call that is wrong."""
    try:
        client.infer("toy", inputs, parameters=parameters)
    except triton.InferenceServerException as error:
        return str(error.status())
    return "OK"


def main(target: str) -> None:
    """Everything a caller does."""
    client = triton.InferenceServerClient(target)
    heard: dict[str, Any] = {
        "live": client.is_server_live(),
        "ready": client.is_server_ready() and client.is_model_ready("toy"),
        "other": client.is_model_ready("other"),
        "server": client.get_server_metadata().name,
        "inputs": [tensor.name for tensor in client.get_model_metadata("toy").inputs],
    }
    result = client.infer("toy", [texts("abc")], request_id="one", parameters={"max_tokens": 20})
    heard["once"] = (decoded(result, "text_output"), decoded(result, "finish_reason"), result.get_response().id)
    heard["output_tokens"] = result.get_response().parameters["output_tokens"].int64_param
    ids = triton.InferInput("input_ids", [2], "INT32")
    ids.set_data_from_numpy(np.array([1, 2], dtype=np.int32))
    options = texts(json.dumps({"max_tokens": 3, "n": 2, "temperature": 0}), name="sampling_parameters")
    result = client.infer("toy", [ids, options], outputs=[triton.InferRequestedOutput("text_output")])
    heard["ids"] = decoded(result, "text_output")
    heard["streamed"] = streamed(client, [texts("abc")], max_tokens=20)
    heard["failed"] = streamed(client, [texts("abc")], temperature="hot")
    for name, inputs, parameters in (
        ("two texts", [texts("a", "b")], {}),
        ("no such option", [texts("a")], {"colour": "red"}),
        ("no such input", [texts("a", name="picture")], {}),
        ("out of range", [texts("a")], {"top_p": 7.0}),
    ):
        heard[name] = refused(client, inputs, parameters)
    print(json.dumps(heard))


if __name__ == "__main__":
    main(sys.argv[1])
