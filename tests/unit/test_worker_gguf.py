"""GGUF files: weights, configuration and tokenizer as they were written, and damage named."""

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from pagewire_kernels import load_kernels
from support.tiny_gguf import write_gguf
from support.tiny_models import make_config
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from gpu_worker.errors import ModelLoadError
from gpu_worker.model_card import make_model_card
from gpu_worker.models.llama import LlamaModel
from gpu_worker.weights.gguf import GgufCheckpoint
from gpu_worker.weights.load import load_weights
from gpu_worker.weights.open import open_checkpoint


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(1)
    shapes = {"hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2}
    return LlamaForCausalLM(make_config(**shapes, attention_bias=True)).eval()


@pytest.fixture(scope="module")
def whole(model: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, model)
    return path


def load(path: Path) -> LlamaModel:
    checkpoint = open_checkpoint(path)
    model = LlamaModel(
        checkpoint.config, load_kernels("reference"), max_model_len=64, dtype=torch.float32, device=torch.device("cpu")
    )
    load_weights(checkpoint, model.weight_slots(), pytest.fail)
    return model


def test_floats_come_back_as_they_were(model: LlamaForCausalLM, whole: Path) -> None:
    checkpoint = GgufCheckpoint(whole)
    assert checkpoint.quantization == ""
    stored = model.state_dict()
    assert set(checkpoint.names()) == set(stored)
    for name in checkpoint.names():
        assert torch.equal(checkpoint.read(name), stored[name]), name
    load(whole)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantized_matrices_are_what_the_format_says(model: LlamaForCausalLM, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, model, kind)
    checkpoint = GgufCheckpoint(path)
    assert checkpoint.quantization == ("" if kind.endswith("F16") else f"gguf {kind}")
    quant = gguf.GGMLQuantizationType[kind]
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight", "lm_head.weight"):
        original = model.state_dict()[name]  # rows quantise one by one, so their order does not matter
        expected = gguf.quants.dequantize(gguf.quants.quantize(original.numpy(), quant), quant)
        assert torch.equal(checkpoint.read(name).float(), torch.from_numpy(expected)), name
    load(path)


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_super_blocks_are_read(tmp_path: Path, kind: str) -> None:
    """The writer cannot make them; any bytes are valid blocks."""
    quant = gguf.GGMLQuantizationType[kind]
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[quant]
    raw = bytes(block_bytes * 4)
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("output.weight", gguf.np.frombuffer(raw, dtype="u1").reshape(2, -1), raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    from gpu_worker.weights.gguf_file import read_gguf

    file = read_gguf(path)
    tensor = file.tensors["output.weight"]
    assert tensor.shape == (2, 2 * block_elements)
    assert gguf.quants.dequantize(file.raw(tensor), tensor.kind).shape == tensor.shape


def test_the_configuration_comes_from_the_metadata(model: LlamaForCausalLM, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    changes = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0, "llama.rope.freq_base": 5000.0}
    write_gguf(path, model, **changes)
    config = GgufCheckpoint(path).config
    assert (config.hidden_size, config.head_dim, config.num_kv_heads, config.vocab_size) == (64, 16, 2, 300)
    assert (config.rope.kind, config.rope.factor, config.rope.theta) == ("linear", 4.0, 5000.0)
    assert config.rms_norm_eps == pytest.approx(model.config.rms_norm_eps)
    assert (config.attention_bias, config.mlp_bias, config.tie_word_embeddings) == (True, False, False)


def test_a_tied_model_has_no_head_of_its_own(tmp_path: Path) -> None:
    shapes = {"hidden_size": 64, "intermediate_size": 96, "tie_word_embeddings": True}
    write_gguf(tmp_path / "tied.gguf", LlamaForCausalLM(make_config(**shapes)))
    assert load(tmp_path / "tied.gguf").config.tie_word_embeddings


def tokenizer_of(path: Path) -> Tokenizer:
    card = make_model_card(
        open_checkpoint(path), name="tiny", max_model_len=64, dtype="float32", kv_cache_dtype="float32"
    )
    return Tokenizer.from_buffer(card.tokenizer_json)


def test_the_tokenizer_splits_as_the_file_says(model: LlamaForCausalLM, whole: Path, tmp_path: Path) -> None:
    single_digits = tokenizer_of(whole)
    assert single_digits.encode("hi hi12</s>").tokens == ["hi", "Ġhi", "1", "2", "</s>"]
    assert single_digits.decode([293, 294]) == "hi hi"
    write_gguf(tmp_path / "x.gguf", model, **{"tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.add_bos_token": True})
    assert tokenizer_of(tmp_path / "x.gguf").encode("hi12").tokens == ["<s>", "hi", "12"]


@pytest.mark.parametrize(
    ("adds_blank", "tokens", "text"),
    [(None, ["<s>", "▁hi", "<0xC3>", "<0xA9>"], "hié"), (False, ["<s>", "hi", "<0xC3>", "<0xA9>"], "hié")],
)
def test_a_sentencepiece_vocabulary_puts_a_blank_before_texts_unless_the_file_says_no(
    model: LlamaForCausalLM, tmp_path: Path, adds_blank: bool | None, tokens: list[str], text: str
) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "hi", "▁hi"]
    pieces += [f"t{number}" for number in range(300 - len(pieces))]
    metadata = {
        "model": "llama",
        "pre": "default",
        "tokens": pieces,
        "merges": None,
        "scores": [-float(number) for number in range(300)],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * 41,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_space_prefix": adds_blank,
    }
    write_gguf(tmp_path / "x.gguf", model, **{f"tokenizer.ggml.{name}": value for name, value in metadata.items()})
    tokenizer = tokenizer_of(tmp_path / "x.gguf")
    encoded = tokenizer.encode("hié")
    assert (encoded.tokens, tokenizer.decode(encoded.ids)) == (tokens, text)
    assert tokenizer.decode([263]) == ("hi" if adds_blank is None else " hi")


def test_the_card_names_the_special_tokens(whole: Path) -> None:
    text = open_checkpoint(whole).text_assets()
    assert text.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (list(text.eos_token_ids), text.bos_token_id, text.chat_template) == ([299], 298, "{{ messages }}")


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"llama.block_count": None}, "'llama.block_count' is missing"),
        ({"llama.block_count": 3}, "'model.layers.2.*' is missing"),
        ({"llama.block_count": 1}, "'model.layers.1.*has no place"),
        ({"llama.block_count": "two"}, "'llama.block_count' is not a number"),
        ({"llama.embedding_length": 32}, "shape"),
        ({"llama.attention.head_count": 5}, "divide"),
        ({"llama.attention.head_count": 0}, "num_heads is 0"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8; 16"),
        ({"llama.rope.scaling.type": "yarn"}, "rope.scaling.type 'yarn'"),
        ({"llama.expert_count": 8}, "'llama.expert_count' is 8; 0 is needed"),
        ({"llama.rope.scaling.attn_factor": 1.5}, "'llama.rope.scaling.attn_factor' is 1.5; 1 is needed"),
        ({"llama.attention.causal": False}, "'llama.attention.causal' is False"),
        ({"llama.attention.sliding_window": 16}, "'llama.attention.sliding_window' is 16"),
        ({"llama.logit_scale": 0.5}, "'llama.logit_scale' is 0.5"),
        ({"llama.block_count": float("nan")}, "'llama.block_count' is not a number"),
        ({"llama.block_count": 2.5}, "'llama.block_count' is 2.5; an integer is needed"),
        ({"llama.rope.freq_base": float("inf")}, "'llama.rope.freq_base' is not a number"),
        ({"llama.rope.freq_base": 0.0}, "rope theta is 0.0"),
        ({"llama.rope.scaling.factor": -2.0}, "rope factor is -2.0"),
        ({"split.count": 3}, "split.count is 3; one whole file is supported"),
    ],
)
def test_metadata_that_does_not_fit_is_named(
    model: LlamaForCausalLM, tmp_path: Path, metadata: dict[str, Any], named: str
) -> None:
    write_gguf(tmp_path / "x.gguf", model, **metadata)
    with pytest.raises(ModelLoadError, match=named):
        load(tmp_path / "x.gguf")


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"tokenizer.ggml.tokens": None}, "'tokenizer.ggml.tokens' is missing"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model 'bert'"),
        ({"tokenizer.ggml.pre": "unheard-of"}, "tokenizer.ggml.pre 'unheard-of'"),
        ({"tokenizer.ggml.merges": ["h"]}, "no pair"),
        ({"tokenizer.ggml.merges": [1]}, "'tokenizer.ggml.merges' is no list of texts"),
        ({"tokenizer.ggml.merges": 5}, "'tokenizer.ggml.merges' is no list of texts"),
        ({"tokenizer.ggml.token_type": 1}, "'tokenizer.ggml.token_type' is no list of integers"),
        ({"tokenizer.ggml.token_type": [1]}, "'tokenizer.ggml.token_type' has 1 entries; there are 300 tokens"),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.5]}, "'tokenizer.ggml.scores' has 1 entries"),
        ({"tokenizer.chat_template": 5}, "'tokenizer.chat_template' is no text"),
        ({"tokenizer.ggml.merges": ["h nothing"]}, "do not fit together"),
        ({"tokenizer.ggml.bos_token_id": 300}, "'tokenizer.ggml.bos_token_id' is 300; there are 300 tokens"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_named(
    model: LlamaForCausalLM, tmp_path: Path, metadata: dict[str, Any], named: str
) -> None:
    write_gguf(tmp_path / "x.gguf", model, **metadata)
    with pytest.raises(ModelLoadError, match=named):
        tokenizer_of(tmp_path / "x.gguf")


@pytest.mark.parametrize(
    ("metadata", "factor"),
    [
        ({"llama.rope.scaling.factor": 4.0}, 4.0),
        ({"llama.rope.scale_linear": 4.0}, 4.0),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, 4.0),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, 1.0),
        ({"llama.rope.scaling.factor": 0.0}, 1.0),
    ],
)
def test_positions_are_scaled_as_llama_cpp_scales_them(
    model: LlamaForCausalLM, tmp_path: Path, metadata: dict[str, Any], factor: float
) -> None:
    """A factor without a type is a linear one; older files have it by another name."""
    write_gguf(tmp_path / "x.gguf", model, **metadata)
    rope = open_checkpoint(tmp_path / "x.gguf").config.rope
    assert (rope.kind, rope.factor if rope.kind == "linear" else 1.0) == ("linear" if factor > 1 else "default", factor)


def test_scales_that_are_no_numbers_are_refused_where_blocks_are_dequantised(
    model: LlamaForCausalLM, tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    write_gguf(path, model, "Q5_0")
    tensor = GgufCheckpoint(path)._tensors["model.layers.0.mlp.down_proj.weight"]
    content = bytearray(path.read_bytes())
    content[tensor.start : tensor.start + 2] = struct.pack("<e", float("nan"))
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"'blk\.0\.ffn_down\.weight' holds scales that are NaN or infinite"):
        load(path)


def test_a_file_cut_anywhere_is_refused(whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in (0, 3, 4, 20, 24, 100, 1000, 5000, len(content) // 2, len(content) - 32, len(content) - 1):
        cut.write_bytes(content[:length])
        with pytest.raises(ModelLoadError, match=r"cut\.gguf: (truncated|cannot be read)"):
            open_checkpoint(cut)


def overwrite(offset: int, value: bytes) -> Callable[[bytearray], None]:
    def apply(content: bytearray) -> None:
        content[offset : offset + len(value)] = value

    return apply


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (overwrite(0, b"GGML"), "does not begin with GGUF"),
        (overwrite(4, struct.pack("<I", 1)), "version 1"),
        (overwrite(4, struct.pack(">I", 3)), "version 50331648"),
        (overwrite(8, struct.pack("<Q", 2**63)), "truncated, corrupt"),
        (overwrite(16, struct.pack("<Q", 2**63)), "truncated, corrupt"),
        (overwrite(24, struct.pack("<Q", 2**62)), "run past the end"),
    ],
)
def test_a_corrupt_header_is_refused_at_once(
    whole: Path, tmp_path: Path, damage: Callable[[bytearray], None], named: str
) -> None:
    content = bytearray(whole.read_bytes())
    damage(content)
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelLoadError, match=named):
        open_checkpoint(tmp_path / "x.gguf")


def test_random_damage_never_breaks_out(whole: Path, tmp_path: Path) -> None:
    """Whatever a header says: it loads, or it is refused with the one error there is."""
    content = whole.read_bytes()
    header = GgufCheckpoint(whole)._file.data_start
    chance = random.Random(5)
    path = tmp_path / "x.gguf"
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(chance.choice((1, 1, 4))):
            damaged[chance.randrange(8, header)] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        path.write_bytes(damaged)
        try:
            checkpoint = open_checkpoint(path)
            checkpoint.text_assets()
            for name in checkpoint.names():
                checkpoint.read(name)
        except ModelLoadError:
            continue
