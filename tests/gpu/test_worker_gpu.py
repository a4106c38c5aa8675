"""The worker's model on a GPU with the Triton kernels: equal to transformers in float32, close in bfloat16, steps in
flight, failures contained. Needs no link and no messages, so it runs where only torch, Triton and transformers are."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from support.gpu_parts import build
from support.plan_driver import Generation, PlanMaker, drive, generate, last_logits
from support.tiny_models import LINEAR_ROPE, LLAMA3_ROPE, TinyModel, greedy, make_model, random_prompt
from transformers import LlamaConfig, LlamaForCausalLM

from gpu_worker.batch_plan import BatchPlan
from gpu_worker.errors import PagePoolTooSmallError
from gpu_worker.model_runner import ModelRunner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LENGTHS = (1, 15, 16, 17, 31, 33, 100, 300)
MAX_TOKENS = 12
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    model = make_model(tmp_path_factory.mktemp("gqa"), num_attention_heads=6, num_key_value_heads=2, head_dim=16)
    model.reference.cuda()
    return model


@pytest.fixture(scope="module")
def runner(tiny: TinyModel) -> ModelRunner:
    return build(tiny.path).runner


@pytest.fixture(scope="module")
def expected(tiny: TinyModel) -> dict[int, list[int]]:
    return {length: greedy_on_gpu(tiny.reference, random_prompt(length), MAX_TOKENS) for length in LENGTHS}


def greedy_on_gpu(model: LlamaForCausalLM, prompt: list[int], max_tokens: int) -> list[int]:
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(max_tokens):
            logits = model(torch.tensor([ids], device="cuda")).logits[0, -1]
            ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


def of_lengths(lengths: tuple[int, ...] = LENGTHS, **options: Any) -> list[Generation]:
    return [Generation(prompt=random_prompt(length), max_tokens=MAX_TOKENS, **options) for length in lengths]


@pytest.mark.parametrize("chunk", [1, 7, 16, 17, 1000])
@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_chunks_and_steps_in_flight_change_nothing(
    runner: ModelRunner, expected: dict[int, list[int]], chunk: int, max_in_flight: int
) -> None:
    assert generate(runner, of_lengths(), chunk=chunk, max_in_flight=max_in_flight) == list(expected.values())


def test_rows_and_pages_are_used_again(tiny: TinyModel, expected: dict[int, list[int]]) -> None:
    runner = build(tiny.path, max_num_seqs=3, max_model_len=320).runner
    generations = of_lengths() + of_lengths() + of_lengths()
    outputs = generate(runner, generations, chunk=20, seed=5)
    assert outputs == [expected[len(generation.prompt)] for generation in generations]


def test_a_shared_prefix_and_a_resumed_row(
    tiny: TinyModel, runner: ModelRunner, expected: dict[int, list[int]]
) -> None:
    prompt = random_prompt(100)
    first = Generation(prompt=prompt, max_tokens=30)
    runner.reset()
    maker = PlanMaker(num_rows=8, num_pages=runner.limits.num_pages, page_size=16, chunk=64)
    maker.submit(first)
    for _ in range(3):
        plan = maker.next_plan()
        assert plan is not None
        maker.commit(runner.launch(plan).wait())
    second = Generation(prompt=prompt, max_tokens=MAX_TOKENS, share_with=first, resume_after=4)
    maker.submit(second)
    drive(runner, maker, max_in_flight=1)
    assert (second.output, second.preempted) == (expected[100], True)
    assert first.output == greedy_on_gpu(tiny.reference, prompt, 30)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 1},
        {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 56, "head_dim": 64},
        {"hidden_size": 96, "num_attention_heads": 4, "head_dim": 64, "num_key_value_heads": 1},
        {"head_dim": 128, "num_key_value_heads": 1},
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        {"rope_parameters": LLAMA3_ROPE, "head_dim": 32},
        {"rope_parameters": LINEAR_ROPE},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_every_shape_of_the_family(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = make_model(tmp_path, seed=1, **{"head_dim": 32, **changes})
    runner = build(tmp_path).runner
    generations = of_lengths((3, 16, 120))
    outputs = generate(runner, generations, chunk=50)
    assert outputs == [greedy(model.reference, generation.prompt, MAX_TOKENS) for generation in generations]


@pytest.mark.parametrize("family", ["Mistral", "Qwen2", "Qwen3"])
def test_every_family(tmp_path: Path, family: str) -> None:
    no_window = {"sliding_window": None} if family == "Mistral" else {}
    model = make_model(tmp_path, seed=4, family=family, num_key_value_heads=2, head_dim=32, **no_window)
    outputs = generate(build(tmp_path).runner, generations := of_lengths((3, 16, 120)), chunk=50)
    assert outputs == [greedy(model.reference, generation.prompt, MAX_TOKENS) for generation in generations]


def test_nothing_is_compiled_after_the_warm_up(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = build(tiny.path, max_num_seqs=64, max_model_len=2048).runner
    compiled: list[str] = []
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_post_compile_hook", lambda **details: compiled.append(str(details.get("repr")))
    )
    for count, chunk in ((1, 1000), (2, 16), (15, 7), (33, 64), (50, 1000)):
        prompts = [random_prompt(1 + number * 7 % 200, seed=number) for number in range(count)]
        prompts[0] = random_prompt(300 * count % 1900 + 5)
        greedy_rows = [Generation(prompt=prompt, max_tokens=5) for prompt in prompts[::2]]
        sampling = [
            Generation(prompt=prompt, max_tokens=6, temperature=0.8, top_k=number % 3 * 10, top_p=0.9, seed=number)
            for number, prompt in enumerate(prompts[1::2])
        ]
        generate(runner, [*greedy_rows, *sampling], chunk=chunk)
    assert compiled == []


def test_seeds_decide_whatever_the_neighbours(runner: ModelRunner) -> None:
    def sampled() -> Generation:
        return Generation(prompt=random_prompt(33), max_tokens=20, temperature=1.0, top_p=0.9, seed=42)

    (alone,) = generate(runner, [sampled()])
    outputs = generate(runner, [*of_lengths((1, 16, 31)), sampled(), sampled()], chunk=10, seed=9)
    assert outputs[3] == outputs[4] == alone


def test_running_out_of_memory_fails_the_step_alone(
    tiny: TinyModel, expected: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real allocation failure: reported, memory back to where it was, the next rows unharmed."""
    runner = build(tiny.path, enforce_eager=True).runner
    generate(runner, of_lengths((17,)))
    runner.reset()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    maker = PlanMaker(num_rows=8, num_pages=runner.limits.num_pages, page_size=16)
    maker.submit(*of_lengths((17, 31)))
    plan = maker.next_plan()
    assert plan is not None
    with monkeypatch.context() as patch:
        patch.setattr(runner.model, "forward", lambda *arguments: torch.empty(1 << 50, device="cuda"))
        output = runner.launch(plan)
    assert "OutOfMemoryError" in str(output.wait().failure)
    assert torch.cuda.memory_allocated() <= before * 1.01
    released = BatchPlan(releases=plan.new_rows.rows.copy())
    assert runner.launch(released).wait().failure is None
    assert generate(runner, of_lengths((33,))) == [expected[33]]


def test_the_pool_is_sized_from_the_share_of_memory(tiny: TinyModel) -> None:
    total = torch.cuda.mem_get_info()[1]
    options = {"kv_cache_memory_bytes": None, "max_num_batched_tokens": 512}
    small = build(tiny.path, gpu_memory_utilization=0.05, max_num_seqs=60000, **options)
    shape_bytes = small.runner.limits.num_pages * sum(layer[0].nbytes for layer in small.runner._kv_pages)
    assert 0.01 * total < shape_bytes < 0.05 * total
    with pytest.raises(PagePoolTooSmallError, match="the page pool is too small"):
        build(tiny.path, gpu_memory_utilization=0.0001, **options)


# The embedded model


def find_gguf() -> Path | None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagewire" / "models" / GGUF_NAME
    path = Path(os.environ.get("PAGEWIRE_TEST_GGUF") or cache)
    return path if path.exists() else None


@pytest.fixture(scope="module")
def gguf_path() -> Path:
    pytest.importorskip("gguf")
    path = find_gguf()
    if path is None:
        pytest.skip("the embedded model is not in the cache; `pagewire fetch` gets it")
    return path


@pytest.fixture(scope="module")
def smollm2(gguf_path: Path) -> LlamaForCausalLM:
    """transformers' model with the file's weights."""
    from gpu_worker.weights.gguf import GgufCheckpoint

    checkpoint = GgufCheckpoint(gguf_path)
    read = checkpoint.config
    config = LlamaConfig(
        vocab_size=read.vocab_size,
        hidden_size=read.hidden_size,
        intermediate_size=read.intermediate_size,
        num_hidden_layers=read.num_layers,
        num_attention_heads=read.num_heads,
        num_key_value_heads=read.num_kv_heads,
        max_position_embeddings=read.max_positions,
        rms_norm_eps=read.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": read.rope.theta},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    weights = {name: checkpoint.read(name) for name in checkpoint.names()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model.eval().cuda()


PROMPTS = [
    [504, 3575, 282, 4649, 314],
    [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198],
    [17 + position * 104729 % 49000 for position in range(40)],
    [17 + (7919 + position * 104729) % 49000 for position in range(200)],
]


def test_smollm2_in_float32_equals_transformers(gguf_path: Path, smollm2: LlamaForCausalLM) -> None:
    runner = build(gguf_path, page_size=32).runner
    expected = [greedy_on_gpu(smollm2, prompt, 24) for prompt in PROMPTS]
    for chunk in (16, 64, 1000):
        generations = [Generation(prompt=prompt, max_tokens=24) for prompt in PROMPTS * 2]
        assert generate(runner, generations, chunk=chunk) == expected * 2


def test_smollm2_in_bfloat16_is_as_close_as_transformers(gguf_path: Path, smollm2: LlamaForCausalLM) -> None:
    """Log probabilities: rounding moves all logits of a row together, which means nothing."""
    runner = build(gguf_path, page_size=32, dtype="bfloat16", enforce_eager=True).runner
    half = LlamaForCausalLM(smollm2.config)
    half.load_state_dict(smollm2.state_dict())
    half = half.eval().to("cuda", torch.bfloat16)
    for prompt in PROMPTS:
        ids = torch.tensor([prompt], device="cuda")
        with torch.inference_mode():
            exact = smollm2(ids).logits[0, -1].log_softmax(0)
            theirs = (half(ids).logits[0, -1].float().log_softmax(0) - exact).abs()
        ours = (last_logits(runner, prompt).log_softmax(0) - exact).abs()
        assert ours.mean() <= 1.5 * theirs.mean() + 0.05
        assert ours.max() <= 2 * theirs.max() + 0.1
