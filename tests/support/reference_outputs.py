"""What transformers generates, greedily and in float32, for the prompts of the end-to-end tests.

The outputs are computed one prompt at a time in a process of their own and kept in the user's cache under a digest of
everything they depend on: the model file, the prompts and the versions of torch and transformers. Tests compare token
ids, so the tokenization of each prompt is part of the reference.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

COMPUTE_SECONDS = 300
EOS_ID = 2
"""As the file says; some versions of transformers read another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A prompt: plain text, or the messages of a chat as (role, content)."""

    text: str = ""
    chat: tuple[tuple[str, str], ...] = ()
    max_tokens: int = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A case with the ids of its prompt, and its greedy output: ids with a final end-of-sequence id, text without."""

    case: Case
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    text: str


def references(gguf: Path, cases: Sequence[Case]) -> list[Reference]:
    """References for ``cases``, from the cache or computed now (a minute for thirty prompts)."""
    kept = _cache_folder() / f"{_digest(gguf, cases)}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        _compute_in_child(gguf, cases, kept)
    answers = json.loads(kept.read_text(encoding="utf-8"))
    return [
        Reference(
            case=case,
            prompt_ids=tuple(answer["prompt_ids"]),
            output_ids=tuple(answer["output_ids"]),
            text=answer["text"],
        )
        for case, answer in zip(cases, answers, strict=True)
    ]


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "pagewire" / "reference-outputs"


def _digest(gguf: Path, cases: Sequence[Case]) -> str:
    parts = hashlib.blake2b(digest_size=16)
    with gguf.open("rb") as weights:
        for chunk in iter(lambda: weights.read(1 << 22), b""):
            parts.update(chunk)
    parts.update(json.dumps([asdict(case) for case in cases]).encode())
    parts.update(f"{version('torch')} {version('transformers')}".encode())
    parts.update(Path(__file__).read_bytes())
    return parts.hexdigest()


def _compute_in_child(gguf: Path, cases: Sequence[Case], kept: Path) -> None:
    """Writes ``kept`` whole or not at all."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    question = json.dumps([asdict(case) for case in cases])
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        made = Path(folder) / "made.json"
        child = subprocess.run(
            [sys.executable, __file__, str(gguf), str(made)],
            input=question,
            text=True,
            capture_output=True,
            timeout=COMPUTE_SECONDS,
            env=environment,
            check=False,
        )
        if child.returncode:
            raise RuntimeError(f"transformers failed:\n{child.stderr[-4000:]}")
        made.replace(kept)


def _main(gguf: Path, made: Path) -> None:
    """The child: reads cases from stdin, writes answers to ``made``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    _split_digits(tokenizer)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()
    answers = [_answer(tokenizer, model, case) for case in json.load(sys.stdin)]
    made.write_text(json.dumps(answers), encoding="utf-8")


def _split_digits(tokenizer: Any) -> None:
    """Puts the single-digit split of the "smollm" pre-tokenizer back; transformers drops it."""
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])


def _answer(tokenizer: Any, model: Any, case: dict[str, Any]) -> dict[str, Any]:
    import torch

    if case["chat"]:
        messages = [{"role": role, "content": content} for role, content in case["chat"]]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        ids = tokenizer(case["text"])["input_ids"]
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=case["max_tokens"],
            do_sample=False,
            use_cache=True,
            eos_token_id=EOS_ID,
            pad_token_id=EOS_ID,
        )
    made = output[0, len(ids) :].tolist()
    text = tokenizer.decode(made, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return {"prompt_ids": list(ids), "output_ids": made, "text": text}


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
