"""Strict loading of Hugging Face directories: all is used, all is filled, or a message names the culprit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pagewire_kernels import load_kernels
from safetensors.torch import load_file, save_file
from support.quantized_files import edit_json, edit_tensors
from support.tiny_models import BOS_ID, CHAT_TEMPLATE, EOS_ID, VOCAB_SIZE, make_model

from gpu_worker.errors import ModelLoadError
from gpu_worker.model_card import ModelCard, cache_fingerprint, make_model_card
from gpu_worker.models.llama import LlamaModel
from gpu_worker.weights import checkpoint as checkpoint_module
from gpu_worker.weights.load import load_weights
from gpu_worker.weights.open import open_checkpoint

INDEX = "model.safetensors.index.json"


def load(path: Path, dtype: torch.dtype = torch.float32) -> tuple[LlamaModel, list[str]]:
    checkpoint = open_checkpoint(path)
    model = LlamaModel(
        checkpoint.config, load_kernels("reference"), max_model_len=64, dtype=dtype, device=torch.device("cpu")
    )
    warnings: list[str] = []
    load_weights(checkpoint, model.weight_slots(), warnings.append)
    return model, warnings


def card(path: Path) -> ModelCard:
    return make_model_card(
        open_checkpoint(path), name="tiny", max_model_len=64, dtype="float32", kv_cache_dtype="float32"
    )


def test_a_tokenizer_that_is_not_there_is_called_by_its_flag(single: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=f"^--tokenizer {tmp_path / 'none'}: .*tokenizer.json"):
        make_model_card(
            open_checkpoint(single),
            name="tiny",
            max_model_len=64,
            dtype="float32",
            kv_cache_dtype="float32",
            tokenizer=tmp_path / "none",
        )


@pytest.fixture
def single(tmp_path: Path) -> Path:
    make_model(tmp_path, num_key_value_heads=2)
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    make_model(tmp_path, num_key_value_heads=2, max_shard_size="60KB")
    assert (tmp_path / INDEX).exists()
    return tmp_path


def test_projections_lie_below_one_another(single: Path) -> None:
    stored = load_file(single / "model.safetensors")
    model, warnings = load(single)
    assert warnings == []
    layer = model._layers[1]
    parts = [stored[f"model.layers.1.self_attn.{name}_proj.weight"] for name in "qkv"]
    assert torch.equal(layer.qkv.weight, torch.cat(parts))
    assert torch.equal(layer.gate_up.weight[80:], stored["model.layers.1.mlp.up_proj.weight"])
    assert model.num_weight_bytes == sum(tensor.nbytes for tensor in stored.values())


def test_mod_05_shards_are_read_by_the_index_alone(sharded: Path) -> None:
    """A stale tensor in another shard, an old file beside them and foreign weights do not matter."""
    expected = {name: slot.clone() for name, slot in load(sharded)[0].weight_slots().items()}
    mapping = json.loads((sharded / INDEX).read_text())["weight_map"]
    shards = sorted(set(mapping.values()))
    assert len(shards) >= 3
    norm_home = mapping["model.norm.weight"]
    other = next(shard for shard in shards if shard != norm_home)
    save_file({**load_file(sharded / other), "model.norm.weight": torch.zeros(48)}, sharded / other)
    save_file({"model.norm.weight": torch.zeros(48)}, sharded / "model.safetensors")
    save_file({"norm": torch.zeros(48)}, sharded / "consolidated.safetensors")
    for name, slot in load(sharded)[0].weight_slots().items():
        assert torch.equal(slot, expected[name])


def remove_shard(path: Path) -> None:
    sorted(path.glob("model-*.safetensors"))[1].unlink()


def truncate_shard(path: Path) -> None:
    shard = sorted(path.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-1])


def empty_shard(path: Path) -> None:
    sorted(path.glob("model-*.safetensors"))[1].write_bytes(b"")


def promise_a_tensor(path: Path) -> None:
    mapping = json.loads((path / INDEX).read_text())["weight_map"]
    edit_json(path / INDEX, weight_map={**mapping, "model.extra": sorted(mapping.values())[0]})


def point_outside(path: Path) -> None:
    mapping = json.loads((path / INDEX).read_text())["weight_map"]
    edit_json(path / INDEX, weight_map={**mapping, "model.norm.weight": "../model.safetensors"})


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (remove_shard, "model-00002.*no such file"),
        (truncate_shard, "model-00002.*truncated"),
        (empty_shard, "model-00002.*truncated"),
        (promise_a_tensor, "'model.extra' is missing; the index says"),
        (point_outside, "files beside the index alone"),
        (lambda path: (path / INDEX).write_text("{}"), "weight_map is missing"),
        (lambda path: (path / INDEX).write_text("{"), "not readable as JSON"),
    ],
)
def test_mod_05_damaged_shards_are_named(sharded: Path, damage: Callable[[Path], Any], named: str) -> None:
    damage(sharded)
    with pytest.raises(ModelLoadError, match=named):
        load(sharded)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda weights: weights.pop("lm_head.weight"), "'lm_head.weight' is missing"),
        (
            lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"),
            "'model.layers.1.mlp.up_proj.weight' is missing",
        ),
        (lambda weights: weights.update(stranger=torch.zeros(2)), "'stranger' has no place"),
        (lambda weights: weights.update({"model.layers.2.x": torch.zeros(2)}), "'model.layers.2.x' has no place"),
        (
            lambda weights: weights.update({"model.norm.weight": torch.zeros(47)}),
            r"shape \[47\]; the config asks for \[48\]",
        ),
        (lambda weights: weights.update({"model.norm.weight": torch.zeros(48, dtype=torch.int32)}), "plain float type"),
    ],
)
def test_mod_03_missing_strange_and_misshapen_tensors_are_named(
    single: Path, change: Callable[[dict[str, torch.Tensor]], Any], named: str
) -> None:
    edit_tensors(single, change)
    with pytest.raises(ModelLoadError, match=named):
        load(single)


@pytest.mark.parametrize(
    ("value", "dtype"), [("nan", "float32"), ("-inf", "float32"), ("nan", "bfloat16"), ("1e6", "float16")]
)
def test_a_weight_that_is_no_number_is_told(single: Path, value: str, dtype: str) -> None:
    """Also one that is none in the type it is served in."""

    def damage(weights: dict[str, torch.Tensor]) -> None:
        weights["model.layers.1.mlp.up_proj.weight"][5, 7] = float(value)

    edit_tensors(single, damage)
    name = "model.layers.1.mlp.up_proj.weight"
    told = f"tensor '{name}' holds NaN or infinity in {dtype}: requests that meet it fail"
    assert load(single, getattr(torch, dtype))[1] == [told]


def test_computed_frequencies_of_old_checkpoints_are_ignored(single: Path) -> None:
    edit_tensors(
        single, lambda weights: weights.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)})
    )
    assert load(single)[1] == []


@pytest.mark.parametrize(("stored", "warns"), [("none", False), ("copy", False), ("other", True)])
def test_mod_03_a_tied_head_is_the_embedding_whatever_is_stored(tmp_path: Path, stored: str, warns: bool) -> None:
    make_model(tmp_path, tie_word_embeddings=True)
    if stored != "none":
        head = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"].clone()
        head += float(stored == "other")
        edit_tensors(tmp_path, lambda weights: weights.update({"lm_head.weight": head}))
    model, warnings = load(tmp_path)
    assert bool(warnings) is warns
    assert model._head.weight.data_ptr() == model._embedding.data_ptr()


def remove_weights(path: Path) -> None:
    (path / "model.safetensors").unlink()


def leave_a_pickle(path: Path) -> None:
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def leave_two_files(path: Path) -> None:
    content = (path / "model.safetensors").read_bytes()
    for name in ("a.safetensors", "b.safetensors"):
        (path / name).write_bytes(content)
    remove_weights(path)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (remove_weights, "no safetensors file"),
        (leave_a_pickle, "pickled weights .pytorch_model.bin."),
        (leave_two_files, "several safetensors files .a.safetensors, b.safetensors."),
        (lambda path: (path / "config.json").unlink(), "config.json: no such file"),
        (lambda path: (path / "config.json").write_text("[]"), "a JSON object is needed"),
        (lambda path: (path / "config.json").write_text("[" * 100_000), "not readable as JSON"),
        (lambda path: (path / "model.safetensors").write_bytes(b"\xff" * 100), "not a safetensors file"),
    ],
)
def test_directories_that_are_no_checkpoint_are_refused(
    single: Path, damage: Callable[[Path], Any], named: str
) -> None:
    damage(single)
    with pytest.raises(ModelLoadError, match=named):
        load(single)


def test_paths_that_are_no_checkpoint_are_refused(tmp_path: Path) -> None:
    for name, named in (
        ("x.bin", "pickled"),
        ("x.pt", "pickled"),
        ("x.txt", "a directory with safetensors or a .gguf"),
    ):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(ModelLoadError, match=named):
            open_checkpoint(tmp_path / name)
    with pytest.raises(ModelLoadError, match="nowhere: no such file or directory"):
        open_checkpoint(tmp_path / "nowhere")


def test_a_lone_file_of_another_name_is_taken(single: Path) -> None:
    (single / "model.safetensors").rename(single / "weights.safetensors")
    load(single)


def test_the_card_says_what_the_directory_says(single: Path) -> None:
    made = card(single)
    assert (made.vocab_size, made.bos_token_id, list(made.eos_token_ids)) == (VOCAB_SIZE, BOS_ID, [EOS_ID])
    assert made.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert made.chat_template == CHAT_TEMPLATE
    assert made.generation_defaults["temperature"] == 0.75
    (single / "chat_template.jinja").write_text("newer")
    edit_json(single / "generation_config.json", eos_token_id=[EOS_ID, 5], top_p=7.0, top_k=-1, temperature=1e400)
    made = card(single)
    assert (made.chat_template, list(made.eos_token_ids)) == ("newer", [EOS_ID, 5])
    assert "top_p" not in made.generation_defaults
    assert "top_k" not in made.generation_defaults
    assert "temperature" not in made.generation_defaults


def test_tpl_02_every_form_a_template_is_kept_in_is_found(single: Path) -> None:
    """From the one that counts least to the one that counts most."""
    edit_json(single / "tokenizer_config.json", chat_template=...)
    assert card(single).chat_template == ""
    (single / "chat_template.json").write_text('{"chat_template": "processor\'s"}')
    assert card(single).chat_template == "processor's"
    edit_json(single / "tokenizer_config.json", chat_template=[{"name": "rag", "template": "another"}])
    assert card(single).chat_template == ""
    for named in ({"default": "named"}, [{"name": "rag", "template": "x"}, {"name": "default", "template": "named"}]):
        edit_json(single / "tokenizer_config.json", chat_template=named)
        assert card(single).chat_template == "named"
    edit_json(single / "tokenizer_config.json", chat_template="one")
    assert card(single).chat_template == "one"
    (single / "chat_template.jinja").write_text("file's")
    assert card(single).chat_template == "file's"


def test_special_tokens_of_older_checkpoints_have_a_file_of_their_own(single: Path) -> None:
    edit_json(single / "tokenizer_config.json", bos_token=None, sep_token="<extra_0>")
    tokens = {"bos_token": {"content": "<s>"}, "eos_token": "<extra_1>", "additional_special_tokens": ["<extra_2>"]}
    (single / "special_tokens_map.json").write_text(json.dumps(tokens))
    assert card(single).special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "<extra_0>"}


def test_a_checkpoint_that_names_no_ids_has_those_of_its_tokenizers_tokens(single: Path) -> None:
    """An output that nothing ends runs into the model's limit."""
    edit_json(single / "generation_config.json", eos_token_id=None, bos_token_id=...)
    edit_json(single / "config.json", eos_token_id=5)
    assert list(card(single).eos_token_ids) == [5]
    edit_json(single / "config.json", eos_token_id=..., bos_token_id=None)
    made = card(single)
    assert (made.bos_token_id, list(made.eos_token_ids)) == (BOS_ID, [EOS_ID])
    (single / "tokenizer_config.json").unlink()
    assert (card(single).bos_token_id, list(card(single).eos_token_ids)) == (None, [])


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda path: (path / "tokenizer.json").unlink(), "a tokenizer.json is needed"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "the tokenizer is not readable"),
        (lambda path: edit_json(path / "generation_config.json", eos_token_id=5000), "eos_token_id 5000 is outside"),
        (
            lambda path: edit_json(path / "generation_config.json", eos_token_id="</s>"),
            r"generation_config.json: eos_token_id is '</s>'; an integer or a list of them is needed",
        ),
        (
            lambda path: edit_json(path / "generation_config.json", eos_token_id=[1, True]),
            "eos_token_id is",
        ),
        (
            lambda path: edit_json(path / "generation_config.json", top_p="high"),
            "top_p is 'high'",
        ),
        (lambda path: edit_json(path / "generation_config.json", top_k=True), "top_k is 'True'; a number is needed"),
        (lambda path: (path / "generation_config.json").write_text("[]"), "generation_config.json: a JSON object"),
        (lambda path: (path / "tokenizer_config.json").write_text("[1]"), "tokenizer_config.json: a JSON object"),
        (
            lambda path: edit_json(path / "tokenizer_config.json", chat_template=7),
            "tokenizer_config.json: chat_template is '7'; a text is needed",
        ),
        (
            lambda path: edit_json(path / "tokenizer_config.json", chat_template=[{"name": "default", "template": 7}]),
            "chat_template is '7'",
        ),
        (
            lambda path: edit_json(path / "tokenizer_config.json", eos_token={"content": 2}),
            "tokenizer_config.json: eos_token is",
        ),
        (
            lambda path: edit_json(path / "generation_config.json", bos_token_id=-1),
            "bos_token_id -1 is outside the vocabulary of 300",
        ),
        (
            lambda path: (path / "chat_template.jinja").write_bytes(b"\xff"),
            "chat_template.jinja: not UTF-8",
        ),
        (
            lambda path: (path / "tokenizer.json").unlink() or (path / "tokenizer.json").mkdir(),
            "tokenizer.json: cannot be read .Is a directory.",
        ),
        (
            lambda path: edit_json(path / "config.json", torch_dtype="complex64", dtype=...),
            "config.json: torch_dtype 'complex64' is not supported; supported: float32, float16, bfloat16",
        ),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(single: Path, damage: Callable[[Path], Any], named: str) -> None:
    damage(single)
    with pytest.raises(ModelLoadError, match=named):
        card(single)


@pytest.mark.parametrize("limit", [1 << 40, 0], ids=["whole", "windows"])
def test_the_digest_follows_content_not_place(
    single: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(checkpoint_module, "FULL_DIGEST_BYTES", limit)
    first = card(single)
    copy = tmp_path_factory.mktemp("copy")
    for file in single.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert card(copy).digest == first.digest
    edit_tensors(copy, lambda weights: weights["model.norm.weight"].add_(1))
    assert card(copy).digest != first.digest
    edit_json(single / "config.json", rms_norm_eps=1e-3)
    assert card(single).digest != first.digest


def test_the_fingerprint_names_what_a_page_depends_on(single: Path) -> None:
    made = card(single)
    fingerprints = {
        cache_fingerprint(made, 16, "cpu"),
        cache_fingerprint(made, 32, "cpu"),
        cache_fingerprint(made, 16, "triton"),
    }
    assert len(fingerprints) == 3
