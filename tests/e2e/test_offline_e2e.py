"""The offline API on real processes: tutorial programs with only the import changed; bad prompts among good ones."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from pagewire_client import LLM, InvalidRequestError, SamplingParams, StackError
from support.conditions import wait_until
from support.reference_outputs import Reference
from support.stack import MARK, kill_marked, marked_pids, new_mark
from support.tiny_models import greedy, make_model

SMALL = {"dtype": "float32", "device": "cpu", "cpu_threads": 1, "kv_cache_memory_bytes": 20_000_000}

SHARED_PREFIX = """
    from pagewire_client import LLM, SamplingParams

    prefix = (
        "You are the harbour master of a small island. Ferries come at seven and at noon, fishing boats whenever the "
        "tide allows, and once a year a tall ship. You know every captain by name. Answer briefly and kindly. "
    )
    prompts = ["The morning ferry is", "The captain of the tall ship", "Today the tide will", "Children may watch"]
    generating_prompts = [prefix + prompt for prompt in prompts]
    sampling_params = SamplingParams(temperature=0.0)
    llm = LLM(model={model!r}, gpu_memory_utilization=0.4, enable_prefix_caching=True, max_num_batched_tokens=4096)
    llm.generate(generating_prompts[0], sampling_params)
    outputs = llm.generate(generating_prompts, sampling_params)
    for prompt, output in zip(generating_prompts, outputs):
        assert output.prompt == prompt
        print(f"Prompt: {{output.prompt!r}}, Generated text: {{output.outputs[0].text!r}}", output.num_cached_tokens)
    assert all(output.num_cached_tokens >= 160 for output in outputs)
"""
MANY_EQUAL = """
    from pagewire_client import LLM, SamplingParams

    prompts = ["Hello, my name is"] * 100
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=12, ignore_eos=True)
    llm = LLM(model={model!r}, max_num_seqs=256, enforce_eager=True)
    outputs = llm.generate(prompts, sampling_params)
    assert [output.prompt for output in outputs] == prompts
    assert all(len(output.outputs[0].token_ids) == 12 for output in outputs)
    assert len({{output.outputs[0].text for output in outputs}}) > 1
"""


@pytest.mark.parametrize("program", [SHARED_PREFIX, MANY_EQUAL], ids=["shared prefix", "many equal"])
def test_tutorial_programs_run_with_only_the_import_changed(tmp_path: Path, program: str) -> None:
    make_model(tmp_path / "model")
    script = tmp_path / "tutorial.py"
    script.write_text(dedent(program).format(model=str(tmp_path / "model")))
    mark = new_mark()
    environment = {MARK: mark, "PAGEWIRE_KV_CACHE_MEMORY_BYTES": "20000000", "PAGEWIRE_CPU_THREADS": "1"}
    try:
        done = _run([sys.executable, str(script)], environment)
        assert done.returncode == 0, done.stderr
        assert "100%" in done.stderr  # the progress bar
        wait_until(lambda: not marked_pids(mark), "the stack ends with its program")
    finally:
        kill_marked(mark)


def _run(command: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    settings = [f"{name}={value}" for name, value in environment.items()]
    return subprocess.run(["env", *settings, *command], capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def llm(gguf: Path) -> Iterator[LLM]:
    with LLM(str(gguf), seed=5, max_model_len=512, dtype="float32", device="cpu") as running:
        yield running


def test_prm_02_bad_prompts_keep_their_places_and_sink_no_others(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=4) for _ in range(6)]
    params[5] = SamplingParams(temperature=-1.0)
    good = llm.generate(["Hi", "A" * 10, "Bye"], params[0], use_tqdm=False)
    results = llm.generate(["Hi", [], "A" * 10, [10**9], "Bye", "Hello"], params, use_tqdm=False)
    assert [result.error is not None for result in results] == [False, True, False, True, False, True]
    assert all(isinstance(result.error, InvalidRequestError) for result in results if result.error)
    assert caplog.messages == [f"3 of 6 prompts failed, the first at index 1: {results[1].error}"]
    assert [results[place].outputs[0].text for place in (0, 2, 4)] == [result.outputs[0].text for result in good]
    assert [result.prompt for result in results] == ["Hi", None, "A" * 10, None, "Bye", "Hello"]
    again = llm.generate(["Bye", "Hi", [2**40], b"Hi"], params[0], use_tqdm=False)  # type: ignore[list-item]
    assert [result.outputs[0].text for result in again] == [good[2].outputs[0].text, good[0].outputs[0].text, "", ""]
    assert len({result.request_id for result in [*good, *results, *again]}) == 13


def test_outputs_equal_transformers(llm: LLM, reference: list[Reference]) -> None:
    wanted = reference[:6]
    params = SamplingParams(temperature=0.0, max_tokens=8)
    results = llm.generate([{"prompt_token_ids": list(each.prompt_ids)} for each in wanted], params, use_tqdm=False)
    assert [result.prompt_token_ids for result in results] == [list(each.prompt_ids) for each in wanted]
    assert [result.outputs[0].finish_reason for result in results] == ["length"] * 6
    assert [tuple(result.outputs[0].token_ids) for result in results] == [tuple(each.output_ids[:8]) for each in wanted]


def test_chats_seeds_and_several_outputs(llm: LLM) -> None:
    talk = [{"role": "user", "content": [{"type": "text", "text": "Say hello."}]}]
    params = SamplingParams(temperature=0.0, max_tokens=5)
    one = llm.chat(talk, params, use_tqdm=False)
    two = llm.chat([talk, [{"role": "user", "content": "Say hello."}]], params, use_tqdm=False)
    assert len({result.outputs[0].text for result in [*one, *two]}) == 1
    results = llm.generate("Once", SamplingParams(n=3, temperature=1.0, max_tokens=8), use_tqdm=False)
    assert [output.index for output in results[0].outputs] == [0, 1, 2]
    assert llm.generate([], params) == []
    with pytest.raises(ValueError, match="1 sampling_params for 2 prompts"):
        llm.generate(["a", "b"], [params])


def test_a_seed_makes_a_program_reproducible(tmp_path: Path) -> None:
    tiny = make_model(tmp_path)
    texts = []
    for _ in range(2):
        with LLM(str(tiny.path), seed=11, **SMALL) as llm:
            hot = llm.generate(["abc", "abc"], SamplingParams(max_tokens=6, ignore_eos=True), use_tqdm=False)
            cold = llm.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=6), use_tqdm=False)
        texts.append([result.outputs[0].token_ids for result in hot])
        assert (
            cold[0].outputs[0].token_ids[:6]
            == greedy(tiny.reference, [1, 2, 3], 6)[: len(cold[0].outputs[0].token_ids)]
        )
    with pytest.raises(ValueError, match="this LLM is closed"):
        llm.generate("abc")
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]


def test_what_the_worker_cannot_load_is_told(tmp_path: Path) -> None:
    tiny = make_model(tmp_path)
    with pytest.raises(StackError, match="--quantization nonsense"):
        LLM(str(tiny.path), quantization="nonsense", **SMALL)


def test_par_01_a_seed_gives_outputs_that_differ_and_come_again(llm: LLM) -> None:
    def texts(**params: object) -> list[list[int]]:
        made = SamplingParams(max_tokens=20, ignore_eos=True, **params)  # type: ignore[arg-type]
        (result,) = llm.generate("Once upon a time", made, use_tqdm=False)
        assert [output.index for output in result.outputs] == list(range(made.n))
        return [output.token_ids for output in result.outputs]

    seeded = texts(n=4, seed=11)
    assert seeded == texts(n=4, seed=11)
    assert len({tuple(each) for each in seeded}) > 1
    assert texts(n=1, seed=11) == seeded[:1]
    assert len({tuple(each) for each in texts(n=4)}) > 1
    assert len({tuple(each) for each in texts(n=4, temperature=0.0)}) == 1
