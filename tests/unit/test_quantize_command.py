"""``pagewire quantize``: what cannot work is said before anything is computed; figures are those of transformers."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pagewire_kernels import load_kernels
from support.quantized_files import awq, write_quantized
from support.tiny_models import TinyModel, make_model, random_prompt

from gpu_worker import quantize, quantize_recipe
from gpu_worker.model_quality import ModelQuality
from gpu_worker.models.llama import LlamaModel
from gpu_worker.weights.load import load_weights
from gpu_worker.weights.open import open_checkpoint


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_model(tmp_path_factory.mktemp("plain"), hidden_size=64, intermediate_size=96, num_key_value_heads=2)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("Pages are named by the hash chain of all tokens before them. " * 60)
    return path


def run(
    capsys: pytest.CaptureFixture[str], model: Path, text: Path, out: Path, *options: str, method: str = "gptq"
) -> tuple[int, str, str]:
    words = [str(model), "--method", method, "--calibration", str(text), "--out", str(out), *options]
    code = quantize.main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--group-size", "128"), "--group-size 128: does not divide hidden_size 64; allowed for this model: -1, 32"),
        (
            ("--group-size", "64"),
            "--group-size 64: does not divide intermediate_size 96; allowed for this model: -1, 32",
        ),
        (("--bits", "5"), "argument --bits: invalid choice"),
        (("--group-size", "32", "--held", "nowhere.txt"), "--held nowhere.txt: not readable as text"),
    ],
)
def test_what_cannot_work_is_said_first(
    capsys: pytest.CaptureFixture[str], tiny: TinyModel, text: Path, tmp_path: Path, options: Any, named: str
) -> None:
    code, _, error = run(capsys, tiny.path, text, tmp_path / "out", *options)
    assert (code, named in error) == (2, True), error
    assert not (tmp_path / "out").exists()


def test_models_and_places_that_do_not_do_are_named(
    capsys: pytest.CaptureFixture[str], tiny: TinyModel, text: Path, tmp_path: Path
) -> None:
    quantized = write_quantized(tmp_path / "quantized", awq()).path
    for model, out, named in (
        (quantized, tmp_path / "out", "is quantised already (awq 4-bit, group 32)"),
        (tmp_path / "nothing", tmp_path / "out", "a Hugging Face directory with safetensors is needed"),
        (tiny.path, tmp_path, "exists already"),
    ):
        code, _, error = run(capsys, model, text, out, "--group-size", "32")
        assert (code, named in error) == (2, True), error
    (tmp_path / "short.txt").write_text("few words")
    code, _, error = run(capsys, tiny.path, tmp_path / "short.txt", tmp_path / "out", "--group-size", "32")
    assert (code, "too short to hold text back" in error) == (2, True), error


def test_a_missing_extra_is_named(
    capsys: pytest.CaptureFixture[str],
    tiny: TinyModel,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "llmcompressor", None)
    code, _, error = run(capsys, tiny.path, text, tmp_path / "out", "--group-size", "32")
    assert code == 2
    assert error.startswith("pagewire quantize: llm-compressor is needed (")
    assert error.endswith('pip install ".[worker,quantize]" in a checkout, in an environment of its own\n')
    assert error.count("\n") == 1


def test_the_text_side_is_copied_as_it_is(tiny: TinyModel, tmp_path: Path) -> None:
    quantize_recipe.copy_text_files(tiny.path, tmp_path)
    copied = sorted(path.name for path in tmp_path.iterdir())
    assert copied == ["generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    assert [(tmp_path / name).read_bytes() for name in copied] == [(tiny.path / name).read_bytes() for name in copied]


def test_the_report_compares_both_sides(
    capsys: pytest.CaptureFixture[str],
    tiny: TinyModel,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library is replaced by one that writes another quantised model; the text is split, samples are limited, the
    group is the largest that fits.

    What the library prints is no part of the report.
    """
    given: list[Sequence[list[int]]] = []

    def write(model: Path, out: Path, *, samples: Sequence[list[int]], **options: Any) -> None:
        assert options == {"method": "awq", "bits": 4, "group_size": 32}
        given.append(samples)
        print("noise of the library")
        out.mkdir()
        write_quantized(out, awq())

    monkeypatch.setattr(quantize, "quantize", write)
    monkeypatch.setattr(quantize, "check_library", lambda: None)
    code, output, error = run(capsys, tiny.path, text, tmp_path / "out", "--samples", "3", "--json", method="awq")
    assert code == 0, error
    assert output.count("\n") == 1
    assert [len(sample) for sample in given[0]] == [quantize.WINDOW] * 3
    report = json.loads(output)
    assert report["group_size"] == 32
    assert report["after"]["size_bytes"] < report["before"]["size_bytes"]
    for side in ("before", "after"):
        assert report[side]["perplexity"] > 1
        assert report[side]["tokens_per_second"] > 0


def test_perplexity_is_that_of_transformers(tiny: TinyModel) -> None:
    checkpoint, kernels = open_checkpoint(tiny.path), load_kernels("cpu")
    model = LlamaModel(checkpoint.config, kernels, max_model_len=64, dtype=torch.float32, device=torch.device("cpu"))
    load_weights(checkpoint, model.weight_slots(), pytest.fail)
    model.finish(checkpoint.config.vocab_size)
    ids = random_prompt(80)
    losses = []
    with torch.inference_mode():
        for part in (ids[:40], ids[40:]):
            logits = tiny.reference(torch.tensor([part])).logits[0, :-1]
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(part[1:]), reduction="none"))
    expected = float(torch.cat(losses).mean().exp())
    quality = ModelQuality(model, kernels, 64)
    assert quality.perplexity(ids, 40) == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match="two tokens"):
        quality.perplexity([5], 40)
