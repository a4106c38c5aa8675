"""vLLM's offline engine behind the lines of `child`; runs under vLLM's own Python."""

import argparse
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.child import Generate, serve


def start(model: str, dtype: str) -> tuple[Generate, str, str]:
    """Loads the model as `LLM` users do; prefix caching is on, as by default."""
    import vllm  # type: ignore[import-not-found]
    from vllm import LLM, SamplingParams

    settings = {"dtype": dtype, "max_model_len": 2048, "max_num_seqs": 64, "enable_prefix_caching": True}
    engine = LLM(model, **settings)

    def generate(prompts: Sequence[Sequence[int]], max_tokens: int) -> dict[str, Any]:
        engine.reset_prefix_cache()
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
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
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", required=True)
    arguments = parser.parse_args()
    serve(lambda: start(arguments.model, arguments.dtype))


if __name__ == "__main__":
    main()
