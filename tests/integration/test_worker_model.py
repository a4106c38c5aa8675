"""Tiny random Llamas through rows, pages and kernels equal transformers token for token in float32."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.plan_driver import Generation, PlanMaker, drive, generate, last_logits
from support.tiny_models import LINEAR_ROPE, LLAMA3_ROPE, VOCAB_SIZE, TinyModel, greedy, make_model, random_prompt

from gpu_worker import startup
from gpu_worker.batch_plan import BatchPlan, int32s
from gpu_worker.config import WorkerConfig
from gpu_worker.errors import ConfigError, ModelLoadError
from gpu_worker.model_runner import ModelRunner

LENGTHS = (1, 15, 16, 17, 31, 33, 100)
MAX_TOKENS = 12

Build = Callable[..., ModelRunner]


def build(path: Path, **options: Any) -> ModelRunner:
    settings: dict[str, Any] = {
        "dtype": "float32",
        "device": "cpu",
        "kernels": "cpu",
        "page_size": 16,
        "max_num_seqs": 8,
        "max_model_len": 256,
        "cpu_threads": 1,
        **options,
    }
    return startup.build(WorkerConfig(model=path, scheduler="ipc:///unused", **settings), print).runner


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_model(tmp_path_factory.mktemp("gqa"), num_attention_heads=6, num_key_value_heads=2)


@pytest.fixture(scope="module")
def expected(tiny: TinyModel) -> dict[int, list[int]]:
    return {length: greedy(tiny.reference, random_prompt(length), MAX_TOKENS) for length in LENGTHS}


@pytest.fixture(scope="module", params=["cpu", "reference"])
def runner(tiny: TinyModel, request: pytest.FixtureRequest) -> ModelRunner:
    return build(tiny.path, kernels=request.param)


def of_lengths(lengths: tuple[int, ...] = LENGTHS, **options: Any) -> list[Generation]:
    return [Generation(prompt=random_prompt(length), max_tokens=MAX_TOKENS, **options) for length in lengths]


@pytest.mark.parametrize("chunk", [1, 7, 16, 17, 1000])
def test_chunks_and_mixed_batches_change_nothing(
    runner: ModelRunner, expected: dict[int, list[int]], chunk: int
) -> None:
    assert generate(runner, of_lengths(), chunk=chunk) == list(expected.values())


def test_alone_is_as_together(runner: ModelRunner, expected: dict[int, list[int]]) -> None:
    for length in LENGTHS:
        assert generate(runner, of_lengths((length,))) == [expected[length]]


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_steps_rounded_up_to_the_shapes_of_graphs_give_the_same(
    tiny: TinyModel, expected: dict[int, list[int]], chunk: int
) -> None:
    """Padding names no live page and no row, whatever the rows before left behind."""
    runner = build(tiny.path, kernels="reference", max_num_seqs=5, max_model_len=112)
    shapes = runner.round_shapes()
    assert max(shape.num_tokens for shape in shapes.all()) == 512 + 5
    outputs = generate(runner, of_lengths() + of_lengths(), chunk=chunk, seed=3)
    assert outputs == 2 * list(expected.values())


def test_rows_and_pages_are_used_again(tiny: TinyModel, expected: dict[int, list[int]]) -> None:
    """Three rows and few pages for 21 requests: everything is reused, in random places."""
    runner = build(tiny.path, max_num_seqs=3, max_model_len=112)
    generations = of_lengths() + of_lengths() + of_lengths()
    random.Random(3).shuffle(generations)
    outputs = generate(runner, generations, chunk=20, seed=5)
    assert outputs == [expected[len(generation.prompt)] for generation in generations]


def test_a_prefix_in_another_rows_pages_is_not_computed_again(
    tiny: TinyModel, runner: ModelRunner, expected: dict[int, list[int]]
) -> None:
    prompt = random_prompt(100)
    first = Generation(prompt=prompt, max_tokens=30)
    same = [Generation(prompt=prompt, max_tokens=MAX_TOKENS, share_with=first) for _ in range(2)]
    other = Generation(prompt=[*prompt[:50], *random_prompt(20)], max_tokens=MAX_TOKENS, share_with=first)
    runner.reset()
    maker = PlanMaker(num_rows=8, num_pages=runner.limits.num_pages, page_size=16, chunk=64)
    maker.submit(first)
    for _ in range(3):
        plan = maker.next_plan()
        assert plan is not None
        maker.commit(runner.launch(plan).wait())
    maker.submit(*same, other)
    plans: list[BatchPlan] = []
    drive(runner, maker, on_plan=plans.append)
    assert plans[0].new_rows.num_cached_tokens.tolist() == [96, 96, 48]
    assert [generation.output for generation in same] == [expected[100]] * 2
    assert other.output == greedy(tiny.reference, other.prompt, MAX_TOKENS)
    assert first.output == greedy(tiny.reference, prompt, 30)


def test_a_preempted_row_resumes_with_all_its_ids(runner: ModelRunner, expected: dict[int, list[int]]) -> None:
    generations = of_lengths(resume_after=5)
    assert generate(runner, generations, chunk=30, max_in_flight=1) == list(expected.values())
    assert all(generation.preempted for generation in generations)


def test_a_decoding_row_can_sit_out(tiny: TinyModel, runner: ModelRunner) -> None:
    runner.reset()
    generations = of_lengths((15, 31))
    maker = PlanMaker(num_rows=8, num_pages=runner.limits.num_pages, page_size=16)
    maker.submit(*generations)
    plan = maker.next_plan()
    assert plan is not None
    maker.commit(runner.launch(plan).wait())
    rows = [generation.row for generation in generations]
    idle = BatchPlan(idle_rows=int32s([row for row in rows if row is not None]))
    for _ in range(2):
        result = runner.launch(idle).wait()
        assert (result.failure, len(result.rows)) == (None, 0)
    drive(runner, maker)
    assert [generation.output for generation in generations] == [
        greedy(tiny.reference, generation.prompt, MAX_TOKENS) for generation in generations
    ]


def test_copied_pages_hold_the_same(tiny: TinyModel, runner: ModelRunner, expected: dict[int, list[int]]) -> None:
    """Copy on write: a second row begins on copies of the first one's pages, its half full last page included."""
    runner.reset()
    prompt = random_prompt(31)
    maker = PlanMaker(num_rows=8, num_pages=20, page_size=16)
    first = Generation(prompt=prompt, max_tokens=20)
    maker.submit(first)
    plan = maker.next_plan()
    assert plan is not None
    maker.commit(runner.launch(plan).wait())
    second = Generation(prompt=prompt, max_tokens=MAX_TOKENS)
    maker.submit(second)
    plan = maker.next_plan()
    assert plan is not None
    begun = BatchPlan(
        step_id=plan.step_id,
        new_rows=type(plan.new_rows)(
            **{name: getattr(plan.new_rows, name) for name in plan.new_rows.__slots__ if name != "num_cached_tokens"},
            num_cached_tokens=int32s([30]),
        ),
        append_rows=plan.append_rows,
        append_pages=plan.append_pages,
        copy_sources=int32s(first.pages[:2]),
        copy_destinations=int32s(second.pages[:2]),
        chunk_rows=plan.chunk_rows,
        chunk_tokens=int32s([1]),
        num_scheduled_rows=2,
        num_scheduled_tokens=2,
    )
    maker.commit(runner.launch(begun).wait())
    drive(runner, maker)
    assert second.output == expected[31]
    assert first.output[:MAX_TOKENS] == expected[31]


@pytest.mark.parametrize("page_size", [1, 8, 64])
def test_page_boundaries(tiny: TinyModel, page_size: int) -> None:
    runner = build(tiny.path, page_size=page_size, max_model_len=100)
    pairs = [(length, tokens) for length in (1, 7, 8, 9, 63, 64, 65) for tokens in (1, 2, 9)]
    generations = [Generation(prompt=random_prompt(length), max_tokens=tokens) for length, tokens in pairs]
    longest = {length: greedy(tiny.reference, random_prompt(length), 9) for length, _ in pairs}
    outputs = generate(runner, generations, chunk=33)
    assert outputs == [longest[length][:tokens] for length, tokens in pairs]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 1},
        {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 56},
        {"num_attention_heads": 12, "num_key_value_heads": 2, "hidden_size": 96},
        {"num_attention_heads": 10, "num_key_value_heads": 2, "hidden_size": 80, "head_dim": 24},
        {"hidden_size": 96, "num_attention_heads": 4, "head_dim": 64, "num_key_value_heads": 1},
        {"hidden_size": 160, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 80},
        {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 192},
        {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 256},
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_parameters": LLAMA3_ROPE, "head_dim": 32},
        {"rope_parameters": LINEAR_ROPE},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        {"num_hidden_layers": 1, "rms_norm_eps": 1e-2},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_mod_01_02_08_every_shape_of_the_family(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = make_model(tmp_path, seed=1, **changes)
    runner = build(tmp_path)
    generations = of_lengths((3, 16, 120))
    outputs = generate(runner, generations, chunk=50)
    assert outputs == [greedy(model.reference, generation.prompt, MAX_TOKENS) for generation in generations]


@pytest.mark.parametrize("kernels", ["cpu", "reference"])
@pytest.mark.parametrize("family", ["Mistral", "Qwen2", "Qwen3"])
def test_every_family(tmp_path: Path, family: str, kernels: str) -> None:
    no_window = {"sliding_window": None} if family == "Mistral" else {}
    model = make_model(tmp_path, seed=4, family=family, num_key_value_heads=2, head_dim=16, **no_window)
    runner = build(tmp_path, kernels=kernels)
    generations = of_lengths((3, 16, 100))
    outputs = generate(runner, generations, chunk=40)
    assert outputs == [greedy(model.reference, generation.prompt, MAX_TOKENS) for generation in generations]


def test_dummy_weights_need_no_checkpoint(tmp_path: Path) -> None:
    make_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (first,), (second,) = (generate(build(tmp_path, load_format="dummy"), of_lengths((20,))) for _ in range(2))
    assert first == second


def test_dummy_weights_are_quantised_where_that_is_asked_for(tmp_path: Path) -> None:
    """By the flag or by the config; other methods are refused."""
    make_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    plain = build(tmp_path, load_format="dummy")
    by_flag = build(tmp_path, load_format="dummy", quantization="awq")
    assert len(by_flag.model.quantized_linears) == 4 * by_flag.model.config.num_layers
    assert by_flag.model.num_parameters == plain.model.num_parameters
    assert generate(by_flag, of_lengths((20,))) != generate(plain, of_lengths((20,)))
    config = json.loads((tmp_path / "config.json").read_text())
    fields = {"quant_method": "gptq", "bits": 8, "group_size": -1}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": fields}))
    (first,), (second,) = (generate(build(tmp_path, load_format="dummy"), of_lengths((20,))) for _ in range(2))
    assert first == second
    fields["quant_method"] = "marlin"
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": fields}))
    with pytest.raises(ModelLoadError, match="marlin"):
        build(tmp_path, load_format="dummy")


def test_bfloat16_logits_are_close(tmp_path: Path) -> None:
    """Against transformers in float32, where bfloat16 itself errs as much."""
    model = make_model(tmp_path, initializer_range=0.1)
    runner = build(tmp_path, dtype="bfloat16")
    ours = last_logits(runner, random_prompt(100)).log_softmax(0)
    ids = torch.tensor([random_prompt(100)])
    with torch.inference_mode():
        exact = model.reference(ids).logits[0, -1].log_softmax(0)
        theirs = model.reference.to(torch.bfloat16)(ids).logits[0, -1].float().log_softmax(0)
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max() + 0.02


def test_seeds_decide_whatever_the_neighbours(runner: ModelRunner) -> None:
    def sampled(seed: int = 42, index: int = 0) -> Generation:
        return Generation(
            prompt=random_prompt(33), max_tokens=20, temperature=1.0, top_p=0.9, seed=seed, output_index=index
        )

    (alone,) = generate(runner, [sampled()])
    neighbours = of_lengths((1, 16, 31))
    outputs = generate(
        runner, [*neighbours, sampled(), sampled(2**64 - 1), sampled(), sampled(42, 1)], chunk=10, seed=9
    )
    assert outputs[3] == outputs[5] == alone
    assert len({tuple(output) for output in (alone, outputs[4], outputs[6])}) == 3


def test_tiny_temperatures_are_greedy(runner: ModelRunner, expected: dict[int, list[int]]) -> None:
    for temperature in (1e-10, 1e-5):
        assert generate(runner, of_lengths((17,), temperature=temperature, seed=7)) == [expected[17]]


def test_padding_of_the_vocabulary_is_never_sampled(tmp_path: Path) -> None:
    model = make_model(tmp_path, vocab_size=VOCAB_SIZE + 20)
    with torch.no_grad():
        model.reference.lm_head.weight[VOCAB_SIZE:] *= 50
    model.reference.save_pretrained(tmp_path)
    runner = build(tmp_path)
    assert runner.limits.vocab_size == VOCAB_SIZE
    greedy_and_hot = [
        Generation(prompt=random_prompt(5), max_tokens=100),
        Generation(prompt=random_prompt(5), max_tokens=200, temperature=5.0, top_k=VOCAB_SIZE, seed=1),
    ]
    outputs = generate(runner, greedy_and_hot)
    assert max(max(output) for output in outputs) < VOCAB_SIZE


def test_nan_fails_its_row_alone(tmp_path: Path) -> None:
    """A poisoned embedding row makes the logits of the one request that uses it NaN."""
    model = make_model(tmp_path)
    with torch.no_grad():
        model.reference.model.embed_tokens.weight[299] = float("nan")
    model.reference.save_pretrained(tmp_path)
    runner = build(tmp_path)
    fine, poisoned = of_lengths((17,))[0], Generation(prompt=[5, 299, 6], max_tokens=4)
    generate(runner, [fine, poisoned])
    assert poisoned.statuses == [1] * 4
    assert fine.statuses == [0] * MAX_TOKENS
    assert fine.output == greedy(model.reference, fine.prompt, MAX_TOKENS)


def test_a_failed_step_leaves_the_others_intact(
    runner: ModelRunner, expected: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of the failed step are released; one that sat it out goes on unharmed, and so do new rows."""
    runner.reset()
    survivor, victim = of_lengths((17,))[0], of_lengths((31,))[0]
    maker = PlanMaker(num_rows=8, num_pages=40, page_size=16)
    maker.submit(survivor, victim)
    plan = maker.next_plan()
    assert plan is not None
    maker.commit(runner.launch(plan).wait())
    assert survivor.row is not None
    assert victim.row is not None

    def explode(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("no memory\nsecond line")

    with monkeypatch.context() as patch:
        patch.setattr(runner.model, "forward", explode)
        failing = BatchPlan(idle_rows=int32s([survivor.row]), num_scheduled_rows=1, num_scheduled_tokens=1)
        result = runner.launch(failing).wait()
    assert result.failure == "OutOfMemoryError: no memory"
    assert len(result.rows) == 0
    runner.launch(BatchPlan(releases=int32s([victim.row]), idle_rows=int32s([survivor.row]))).wait()
    maker._running.remove(victim)
    maker._release(victim)
    newcomer = of_lengths((33,))[0]
    maker.submit(newcomer)
    drive(runner, maker)
    assert survivor.output == expected[17]
    assert newcomer.output == expected[33]


def test_positions_that_would_take_gigabytes_are_refused_before_they_do(tmp_path: Path) -> None:
    path = make_model(tmp_path, max_position_embeddings=2**24).path
    with pytest.raises(ConfigError, match=r"--max-model-len 16777216: not allowed; allowed: 2 to 4194304"):
        build(path, max_model_len=None)
    assert build(path).limits.max_model_len == 256
