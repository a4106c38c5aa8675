"""transformers' continuous batching behind the lines of `child`."""

import argparse
import os
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.child import Generate, serve

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def start(model: str, dtype: str) -> tuple[Generate, str, str]:
    """Loads the model; pages of 32 tokens, shared between requests, all cores."""
    import torch
    import transformers
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=getattr(torch, dtype), attn_implementation="paged|sdpa"
    ).eval()
    batching = ContinuousBatchingConfig(
        page_size=32,
        num_blocks=1024,
        max_batch_tokens=2048,
        allow_block_sharing=True,
        use_cuda_graph=False,
        use_async_batching=False,
    )

    def generate(prompts: Sequence[Sequence[int]], max_tokens: int) -> dict[str, Any]:
        config = transformers.GenerationConfig(
            max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1, pad_token_id=2
        )
        began = time.perf_counter()
        with torch.inference_mode():
            results = loaded.generate_batch(
                inputs=[list(prompt) for prompt in prompts],
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
    arguments = parser.parse_args()
    serve(lambda: start(arguments.model, arguments.dtype))


if __name__ == "__main__":
    main()
