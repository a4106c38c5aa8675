"""Turns a Llama GGUF into Hugging Face directories (safetensors) that peers can load: one in bfloat16, one in
float32.

`python benchmarks/convert_gguf.py NAME.QUANT.gguf OUT` writes OUT/NAME-bfloat16 and OUT/NAME-float32. Quantized
weights are dequantized, so every engine computes with the same numbers.

Three things transformers leaves to us. A model loaded from GGUF is marked as quantized and refuses `save_pretrained`,
so its weights are copied into a freshly built model. The norm's epsilon comes back as the nearest float32 of 1e-5.
And the "smollm" pre-tokenizer, which splits digits one by one before the byte-level split, is dropped: it is put
back.
"""

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def convert(gguf: Path, out: Path) -> None:
    """Writes a folder for each dtype into ``out``."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    weights = model.state_dict()
    for name, dtype in DTYPES.items():
        target = out / f"{gguf.name.split('.')[0]}-{name}"
        plain = LlamaForCausalLM(plain_config(model.config.to_dict())).to(torch.float32)
        missing, unexpected = plain.load_state_dict(weights, strict=False)
        if unexpected or set(missing) - {"lm_head.weight"}:
            raise SystemExit(f"{gguf}: weights do not fit: missing {missing}, unexpected {unexpected}")
        plain.tie_weights()
        plain = plain.to(dtype)
        eos = tokenizer.eos_token_id
        plain.generation_config = GenerationConfig(
            bos_token_id=tokenizer.bos_token_id, eos_token_id=eos, pad_token_id=eos
        )
        plain.save_pretrained(target)
        tokenizer.save_pretrained(target)
        restore_digits(target / "tokenizer.json")
        print(target)


def plain_config(values: dict[str, object]) -> LlamaConfig:
    """The configuration without what says where the weights came from."""
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path", "dtype", "torch_dtype"):
        values.pop(key, None)
    return LlamaConfig(**{**values, "rms_norm_eps": 1e-5})


def restore_digits(path: Path) -> None:
    """Puts the split into single digits back in front of a bare byte-level pre-tokenizer."""
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    byte_level = tokenizer["pre_tokenizer"]
    if byte_level["type"] == "ByteLevel":
        digits = {"type": "Digits", "individual_digits": True}
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, byte_level]}
        path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    convert(arguments.gguf, arguments.out)


if __name__ == "__main__":
    main()
