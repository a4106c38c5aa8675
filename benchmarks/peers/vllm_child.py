"""vLLM's offline engine behind the lines of `child`; runs under vLLM's own Python.

Its argument is a JSON list of the model and the engine's arguments.
"""

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.peers.child import Generate, Requests, serve


def start(model: str, settings: Mapping[str, Any]) -> tuple[Generate, str, str]:
    """Loads the model as `LLM` users do; prefix caching is on, as by default."""
    import vllm  # type: ignore[import-not-found]
    from vllm import LLM, SamplingParams

    engine = LLM(model, skip_tokenizer_init=True, **settings)

    def generate(requests: Requests, temperature: float) -> dict[str, Any]:
        engine.reset_prefix_cache()
        sampling = [
            SamplingParams(temperature=temperature, max_tokens=count, ignore_eos=True, detokenize=False)
            for _, count in requests
        ]
        inputs = [{"prompt_token_ids": prompt} for prompt, _ in requests]
        began = time.perf_counter()
        results = engine.generate(inputs, sampling, use_tqdm=False)
        wall = time.perf_counter() - began
        return {
            "wall_s": wall,
            "outputs": [list(result.outputs[0].token_ids) for result in results],
            "cached_tokens": sum(result.num_cached_tokens or 0 for result in results),
        }

    return generate, vllm.__version__, " ".join(f"{key}={value}" for key, value in settings.items())


def main() -> None:
    model, settings = json.loads(sys.argv[1])
    serve(lambda: start(model, settings))


if __name__ == "__main__":
    main()
