"""The model's tokenizer, built from the bytes of a model card.

`encode` uses the library's batch call even for one text, because the single call holds the interpreter's lock for the
whole text (seconds for megabytes) and would freeze every stream of the process.
"""

from array import array

from tokenizers import Tokenizer

from scheduler_svc.front.errors import InternalError


class PromptTokenizer:
    """Text to token ids and back. Thread-safe."""

    def __init__(self, tokenizer_json: bytes, *, bos_token_id: int | None) -> None:
        """Raises: ValueError if the bytes are no tokenizer.json."""
        try:
            self.backend = Tokenizer.from_buffer(tokenizer_json)
            # A template of special tokens that do not exist shows only in use.
            self.backend.encode_batch_fast(["a"], add_special_tokens=True)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises plain Exception, and a panic in it is not even that
            raise ValueError(f"the model card holds no usable tokenizer.json: {error}") from None
        self.backend.no_truncation()
        self.backend.no_padding()
        self._bos_token_id = bos_token_id
        self.longest_token_bytes = max((len(piece.encode()) for piece in self.backend.get_vocab()), default=1)

    def encode(self, text: str, *, add_special_tokens: bool) -> "array[int]":
        """Token ids of a text. A text that already begins with the beginning-of-sequence token gets no second one."""
        encodings = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        if len(encodings) != 1:
            raise InternalError
        token_ids = array("i", encodings[0].ids)
        bos = self._bos_token_id
        if add_special_tokens and bos is not None and len(token_ids) > 1 and token_ids[0] == bos == token_ids[1]:
            del token_ids[0]
        return token_ids

    def decode(self, token_ids: "array[int]", *, skip_special_tokens: bool) -> str:
        """Text of token ids, as the library itself decodes them."""
        texts = self.backend.decode_batch([token_ids.tolist()], skip_special_tokens=skip_special_tokens)
        return str(texts[0])
