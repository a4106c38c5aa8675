"""transformers' continuous batching behind the lines of `child`; a model directory without weights gets random ones."""

import argparse
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.child import Generate, Requests, serve

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def start(model: str, dtype: str, *, on_gpu: bool) -> tuple[Generate, str, str]:
    """Loads the model; pages of 32 tokens, shared between requests, all cores of a CPU."""
    import torch
    import transformers
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    options = {"dtype": getattr(torch, dtype), "attn_implementation": "paged|sdpa"}
    if list(Path(model).glob("*.safetensors")):
        loaded = transformers.AutoModelForCausalLM.from_pretrained(model, **options).eval()
    else:
        config = transformers.AutoConfig.from_pretrained(model)
        loaded = transformers.AutoModelForCausalLM.from_config(config, **options).eval()
    loaded = loaded.to("cuda" if on_gpu else "cpu")
    batching = ContinuousBatchingConfig(
        page_size=32,
        num_blocks=8192 if on_gpu else 1024,
        max_batch_tokens=8192 if on_gpu else 2048,
        allow_block_sharing=True,
        use_cuda_graph=on_gpu,
        use_async_batching=on_gpu,
    )

    def generate(requests: Requests, temperature: float) -> dict[str, Any]:
        if temperature or len({count for _, count in requests}) != 1:
            return {"error": "transformers: a batch is greedy and has one output length"}
        config = transformers.GenerationConfig(
            max_new_tokens=requests[0][1], do_sample=False, eos_token_id=-1, pad_token_id=2
        )
        began = time.perf_counter()
        with torch.inference_mode():
            results = loaded.generate_batch(
                inputs=[list(prompt) for prompt, _ in requests],
                generation_config=config,
                continuous_batching_config=batching,
                progress_bar=False,
            )
        wall = time.perf_counter() - began
        in_order = sorted(results, key=lambda key: int(key.rsplit("_", 1)[1]))
        return {
            "wall_s": wall,
            "outputs": [list(results[key].generated_tokens) for key in in_order],
            "cached_tokens": None,
        }

    return generate, transformers.__version__, f"continuous batching, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--gpu", action="store_true")
    arguments = parser.parse_args()
    serve(lambda: start(arguments.model, arguments.dtype, on_gpu=arguments.gpu))


if __name__ == "__main__":
    main()
