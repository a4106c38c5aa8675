"""The embedded model's GGUF through the worker equals transformers on the same file; kept short, e2e does the rest."""

from pathlib import Path

import pytest
from support.e2e_prompts import CASES, LONG_CASES
from support.plan_driver import Generation, generate
from support.reference_outputs import COMPUTE_SECONDS, references
from support.smollm2 import MISSING, find_gguf
from tokenizers import Tokenizer

from gpu_worker import startup
from gpu_worker.config import WorkerConfig

NUM_GENERATED = 4

GGUF = find_gguf()
pytestmark = pytest.mark.skipif(GGUF is None, reason=MISSING)


@pytest.fixture(scope="module")
def path() -> Path:
    assert GGUF is not None
    return GGUF


@pytest.fixture(scope="module")
def parts(path: Path) -> startup.Parts:
    config = WorkerConfig(
        model=path,
        scheduler="ipc:///unused",
        device="cpu",
        dtype="float32",
        max_model_len=256,
        max_num_seqs=4,
        cpu_threads=1,
    )
    notices: list[str] = []
    parts = startup.build(config, notices.append)
    assert len(notices) == 1
    assert "dequantised" in notices[0]
    return parts


@pytest.mark.timeout(120 + COMPUTE_SECONDS)
def test_ids_and_greedy_outputs_equal_transformers(path: Path, parts: startup.Parts) -> None:
    card = parts.card.model_card
    assert (card.vocab_size, list(card.eos_token_ids), card.bos_token_id) == (49152, [2], 1)
    assert card.quantization == "gguf Q4_1+Q8_0"
    ours = Tokenizer.from_buffer(card.tokenizer_json)
    expected = references(path, CASES + LONG_CASES)  # the end-to-end tests' own, so that they are computed once
    plain = [reference for reference in expected if reference.case.text]
    for reference in plain:
        assert ours.encode(reference.case.text).ids == list(reference.prompt_ids)
        assert ours.decode(list(reference.prompt_ids)) == reference.case.text
    chosen = sorted(expected, key=lambda reference: len(reference.prompt_ids))[:NUM_GENERATED]
    generations = [
        Generation(prompt=list(reference.prompt_ids), max_tokens=len(reference.output_ids)) for reference in chosen
    ]
    assert generate(parts.runner, generations, chunk=5) == [list(reference.output_ids) for reference in chosen]


def test_chat_markers_are_single_tokens(parts: startup.Parts) -> None:
    ours = Tokenizer.from_buffer(parts.card.model_card.tokenizer_json)
    assert ours.encode("<|im_start|>user\n<|im_end|>").ids[0] == 1
    assert ours.encode("<|im_end|>").ids == [2]
    assert "<|im_start|>" in parts.card.model_card.chat_template
