"""What a front knows of the model it serves, built once from a model card: tokenizer, chat template, limits, defaults.

Immutable once built; building takes up to seconds for a large vocabulary and happens off the loop.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from scheduler_svc.front.detokenizer import Detokenizer, TableDetokenizer, WindowDetokenizer
from scheduler_svc.front.grammar_pool import GrammarPool
from scheduler_svc.front.template_pool import TemplatePool
from scheduler_svc.front.token_bytes import TokenBytes, build_token_bytes
from scheduler_svc.front.tokenizer import PromptTokenizer


@dataclass(frozen=True)
class ServedModel:
    """One model; `card` is a pagewire.internal.v1.ModelCard."""

    card: Any
    tokenizer: PromptTokenizer
    token_bytes: TokenBytes | None
    chat_template: TemplatePool | None
    grammars: GrammarPool
    eos_token_ids: frozenset[int]

    @cached_property
    def name(self) -> str:
        return str(self.card.name)

    @cached_property
    def vocab_size(self) -> int:
        return int(self.card.vocab_size)

    @cached_property
    def max_model_len(self) -> int:
        return int(self.card.max_model_len)

    @cached_property
    def max_prompt_bytes(self) -> int:
        """No text of more bytes can fit: each token stands for at most `longest_token_bytes`."""
        return self.max_model_len * self.tokenizer.longest_token_bytes

    def close(self) -> None:
        """Ends what it runs beside itself; it can still be used."""
        self.grammars.close()
        if self.chat_template is not None:
            self.chat_template.close()

    def detokenizer(self, prompt: "Any", *, skip_special_tokens: bool) -> Detokenizer:
        """A fresh detokenizer for an output behind `prompt` (token ids)."""
        if self.token_bytes is None:
            return WindowDetokenizer(self.tokenizer.backend, prompt, skip_special_tokens=skip_special_tokens)
        return TableDetokenizer(self.token_bytes, prompt, skip_special_tokens=skip_special_tokens)


def build_served_model(card: Any) -> ServedModel:
    """The model of a card.

    Raises: ValueError if its tokenizer or chat template is unusable.
    """
    bos = card.bos_token_id if card.HasField("bos_token_id") else None
    tokenizer = PromptTokenizer(card.tokenizer_json, bos_token_id=bos)
    template = TemplatePool(card.chat_template, dict(card.special_tokens)) if card.chat_template else None
    return ServedModel(
        card=card,
        tokenizer=tokenizer,
        token_bytes=build_token_bytes(tokenizer.backend, card.tokenizer_json, card.vocab_size),
        chat_template=template,
        grammars=GrammarPool(card),
        eos_token_ids=frozenset(card.eos_token_ids),
    )
