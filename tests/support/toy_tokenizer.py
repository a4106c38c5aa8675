"""The toy vocabulary of scripted runs, as a real tokenizer.json.

Ids 0..255 are the raw bytes, 256 begins a sequence, 257 ends one, 258 and 259 are special, 260..265 are whole words.
There are 300 ids.
"""

import json
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, processors

BOS = 256
EOS = 257
SPECIAL_1 = 258
SPECIAL_2 = 259
VOCAB_SIZE = 300

SPECIAL_TOKENS = {BOS: "<s>", EOS: "</s>", SPECIAL_1: "<|sp|>", SPECIAL_2: "<|end|>"}
WORDS = {260: "KLM", 261: "N", 262: "OP", 263: "Q", 264: " world", 265: "Hello"}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|sp|>{{ message['role'] }}\n{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|sp|>assistant\n{% endif %}"
)


@cache
def tokenizer_json(extra: tuple[tuple[int, str], ...] = ()) -> bytes:
    """A tokenizer.json of the toy vocabulary; ``extra`` gives texts to further ids, 266..299."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary |= {text: token_id for token_id, text in SPECIAL_TOKENS.items()}
    texts = WORDS | {token_id: f"[{token_id}]" for token_id in range(266, VOCAB_SIZE)} | dict(extra)
    vocabulary |= {text: token_id for token_id, text in texts.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token=None))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS.values()])
    tokenizer.add_tokens(
        [AddedToken(WORDS[token_id], special=False, normalized=False) for token_id in (260, 262, 264, 265)]
    )
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False).encode()


def encode(text: str) -> list[int]:
    """Token ids of ``text`` as raw bytes, without a beginning-of-sequence token."""
    return list(text.encode())
