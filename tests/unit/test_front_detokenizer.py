"""Incremental detokenization equals the tokenizer's own decode, however the ids are cut."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import toy_tokenizer as toy
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from scheduler_svc.front.detokenizer import Detokenizer, TableDetokenizer, WindowDetokenizer
from scheduler_svc.front.output import Output
from scheduler_svc.front.stop_strings import StopMatcher, StopStrings
from scheduler_svc.front.token_bytes import build_token_bytes


def byte_level() -> Tokenizer:
    """GPT-2's kind: 256 bytes, a few longer pieces, special and other added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, "Ġthe", "Ġcat", "ing", "Ã©", "ä½ł"]
    tokenizer = Tokenizer(models.BPE(vocab={piece: place for place, piece in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool call>", special=False), AddedToken("日本", special=False)])
    return tokenizer


def llama_pieces() -> list[str]:
    words = ["▁", "▁leading", "▁x", "▁Daen", "ery", "s", "▁is", "▁the", "▁Paris", "a", "b", "▁ok", "x", ":", "▁▁", "é"]
    return ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *words, "▁Capital", "▁of", "▁France"]


def llama(strip: bool = True) -> Tokenizer:
    """Llama 2's kind: Replace, ByteFallback, Fuse and, unless it is Gemma's, Strip."""
    vocabulary = {piece: place for place, piece in enumerate(llama_pieces())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if strip else parts)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    return tokenizer


def metaspace(scheme: str) -> Tokenizer:
    """T5's and old Mistral's kind."""
    tokenizer = llama()
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT's kind: no byte table."""
    vocabulary = {piece: place for place, piece in enumerate(["[UNK]", "hello", "world", "##ly", "##s", ",", "a"])}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer


TOKENIZERS = {
    "byte level": byte_level(),
    "llama": llama(),
    "gemma": llama(strip=False),
    "metaspace": metaspace("always"),
    "metaspace first": metaspace("first"),
    "metaspace never": metaspace("never"),
}


def detokenizer(tokenizer: Tokenizer, prompt: list[int], *, hidden: bool = True) -> Detokenizer:
    table = build_token_bytes(tokenizer, tokenizer.to_str().encode(), tokenizer.get_vocab_size())
    if table is None:
        return WindowDetokenizer(tokenizer, prompt, skip_special_tokens=hidden)
    return TableDetokenizer(table, prompt, skip_special_tokens=hidden)


def join(tokenizer: Tokenizer, prompt: list[int], ids: list[int], size: int, *, hidden: bool = True) -> str:
    stream = detokenizer(tokenizer, prompt, hidden=hidden)
    text = "".join(stream.feed(ids[start : start + size]) for start in range(0, len(ids), size))
    return text + stream.flush()


def reference(tokenizer: Tokenizer, prompt: list[int], ids: list[int], *, hidden: bool = True) -> str:
    """decode(prompt + ids) minus decode(prompt)."""
    before = tokenizer.decode(prompt, skip_special_tokens=hidden)
    whole = tokenizer.decode(prompt + ids, skip_special_tokens=hidden)
    assert whole.startswith(before)
    return whole[len(before) :]


def ids_of(tokenizer: Tokenizer, pieces: list[str]) -> list[int]:
    return [tokenizer.token_to_id(piece) for piece in pieces]


@pytest.mark.parametrize("name", ["llama", "gemma", "metaspace", "metaspace first", "metaspace never"])
@pytest.mark.parametrize("prompt", [[], ["<s>"], ["▁"], ["▁Capital", "▁of", "▁France", ":"], ["<s>", "▁Capital"]])
@pytest.mark.parametrize(
    "pieces", [["▁", "▁leading", "▁x"], ["▁Daen", "ery", "s", "▁is", "▁the"], ["▁Paris"], ["</s>", "▁▁", "▁x"]]
)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_dtk_05_leading_blanks(name: str, prompt: list[str], pieces: list[str], size: int) -> None:
    tokenizer = TOKENIZERS[name]
    prompt_ids, ids = ids_of(tokenizer, prompt), ids_of(tokenizer, pieces)
    assert join(tokenizer, prompt_ids, ids, size) == reference(tokenizer, prompt_ids, ids)


def test_dtk_05_words_stay_apart() -> None:
    tokenizer = TOKENIZERS["llama"]
    prompt = ids_of(tokenizer, ["▁Capital", "▁of", "▁France", ":"])
    assert join(tokenizer, prompt, ids_of(tokenizer, ["▁Paris"]), 1) == " Paris"
    assert join(tokenizer, [], ids_of(tokenizer, ["▁Daen", "ery", "s", "▁is"]), 1) == "Daenerys is"


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["a", "<0x0A>", "b"], "a\nb"),
        (["<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁ok"], "😀 ok"),
        (["<0xE4>", "<0xBD>", "▁x"], "\ufffd\ufffd x"),
    ],
)
def test_dtk_06_byte_fallback(pieces: list[str], text: str, size: int) -> None:
    tokenizer = TOKENIZERS["llama"]
    prompt, ids = ids_of(tokenizer, ["x"]), ids_of(tokenizer, pieces)
    assert join(tokenizer, prompt, ids, size) == text == reference(tokenizer, prompt, ids)


def test_dtk_06_stop_string_sees_the_text_of_byte_pieces() -> None:
    tokenizer = TOKENIZERS["llama"]
    output = Output(
        0,
        detokenizer(tokenizer, ids_of(tokenizer, ["x"])),
        StopMatcher(StopStrings(["\n"])),
        stop_token_ids=frozenset(),
        include_stop=False,
    )
    add = output.adder(lambda output: None)
    for token_id in ids_of(tokenizer, ["a", "<0x0A>", "b"]):
        add(token_id)
    text, token_ids = output.take()
    assert (text, len(token_ids), output.stop_string, output.num_to_stop) == ("a", 2, "\n", 2)


@pytest.mark.parametrize("hidden", [True, False])
@given(data=st.data())
def test_byte_level_equals_the_library(hidden: bool, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS["byte level"]
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() + 3), max_size=30))
    size = data.draw(st.integers(1, 8))
    prompt = ids_of(tokenizer, ["a", "Ġthe"])
    expected = reference(tokenizer, prompt, ids, hidden=hidden)
    got = join(tokenizer, prompt, ids, size, hidden=hidden)
    assert got == join(tokenizer, prompt, ids, 1, hidden=hidden)
    # What is incomplete at the very end is one U+FFFD in both.
    assert got == expected


@pytest.mark.parametrize("name", ["llama", "gemma", "metaspace"])
@given(data=st.data())
def test_pieces_equal_the_library(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    words = [piece for piece in llama_pieces() if not piece.startswith("<0x")]
    ids = ids_of(tokenizer, data.draw(st.lists(st.sampled_from(words), max_size=20)))
    prompt = ids_of(tokenizer, data.draw(st.lists(st.sampled_from(words), max_size=3)))
    size = data.draw(st.integers(1, 8))
    assert join(tokenizer, prompt, ids, size) == reference(tokenizer, prompt, ids)


@given(data=st.data())
def test_cutting_never_changes_the_join(data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[data.draw(st.sampled_from(sorted(TOKENIZERS)))]
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=30))
    prompt = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=10))
    stream = detokenizer(tokenizer, prompt)
    text, rest = "", ids
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        stream = stream.copy()
        text += stream.feed(rest[:size])
        rest = rest[size:]
    assert text + stream.flush() == join(tokenizer, prompt, ids, max(1, len(ids)))


@given(st.lists(st.sampled_from(["hello", "world", "##ly", "##s", ",", "a"]), max_size=200), st.integers(1, 9))
def test_window_equals_the_library(pieces: list[str], size: int) -> None:
    tokenizer = word_piece()
    prompt, ids = ids_of(tokenizer, ["hello", "##ly"]), ids_of(tokenizer, pieces)
    assert build_token_bytes(tokenizer, tokenizer.to_str().encode(), 7) is None
    assert join(tokenizer, prompt, ids, size) == reference(tokenizer, prompt, ids)


@given(data=st.data())
def test_a_prompt_may_end_anywhere(data: st.DataObject) -> None:
    """What decode(prompt) shows of an incomplete character is no part of the output, unless that completes it."""
    tokenizer = TOKENIZERS["byte level"]
    letters = ["Ã", "¤", "â", "Ĥ", "¬", "ð", "Ł", "ĺ", "Ģ", "a", "Ġthe"]  # parts of ä, € and 😀
    prompt, ids = (ids_of(tokenizer, data.draw(st.lists(st.sampled_from(letters), max_size=6))) for _ in range(2))
    before, whole = tokenizer.decode(prompt), tokenizer.decode(prompt + ids)
    begins = before if whole.startswith(before) else before.removesuffix("\ufffd")
    assert join(tokenizer, prompt, ids, data.draw(st.integers(1, 3))) == whole.removeprefix(begins)


def test_character_begun_in_the_prompt_is_completed() -> None:
    tokenizer = Tokenizer.from_buffer(toy.tokenizer_json())
    assert join(tokenizer, [72, 196], [143, 65], 1) == "ďA"
    assert join(tokenizer, [72, 196], [65], 1) == "A"
    assert join(tokenizer, [72, 196], [], 1) == ""
    assert join(tokenizer, [72, 225], [186, 65], 1) == "\ufffdA"  # of two broken bytes one is the output's
    prompt, ids = ids_of(byte_level(), ["a", "Ã"]), ids_of(byte_level(), ["¤", "a"])
    assert WindowDetokenizer(byte_level(), prompt, skip_special_tokens=True).feed(ids) == "äa"


def test_ids_without_an_entry_have_no_text() -> None:
    tokenizer = Tokenizer.from_buffer(toy.tokenizer_json())
    assert join(tokenizer, [65], [66, 319, 67], 2) == "BC"


def test_decoders_that_are_not_understood_have_no_table() -> None:
    tokenizer = llama()
    for decoder in (
        None,
        decoders.BPEDecoder(),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("▁", " ")]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
    ):
        content = json.loads(tokenizer.to_str())
        content["decoder"] = None if decoder is None else json.loads(decoder.__getstate__())
        assert build_token_bytes(tokenizer, json.dumps(content).encode(), 10) is None


def test_a_token_costs_about_a_microsecond() -> None:
    tokenizer = TOKENIZERS["byte level"]
    stream = detokenizer(tokenizer, [1])
    ids = list(range(33, 97)) * 2000
    best = min(timed(stream, ids) for _ in range(5))
    # Generous for busy machines; it takes about 0.1 us.
    assert best / len(ids) < 2e-6


def timed(stream: Detokenizer, ids: list[int]) -> float:
    start = time.perf_counter()
    for place in range(0, len(ids), 64):
        stream.feed(ids[place : place + 64])
    return time.perf_counter() - start
