"""Checks every field of a request, without looking at the service: all violations at once.

A field that the contract has and this server does not serve yet is refused, never ignored; its neutral value is
accepted. Paths are relative to GenerateRequest (for Tokenize and others, to their own request). Ranges are those of
the proto's comments. NaN fails every range, because each check asks whether the value lies inside.
"""

import json
from array import array
from typing import Any

from scheduler_svc.columns import ids_are_below
from scheduler_svc.front.errors import MAX_VIOLATIONS, Violation
from scheduler_svc.front.logprobs import MAX_LOGPROBS
from scheduler_svc.front.sent_ids import fault_of_form, kept_ids
from scheduler_svc.front.served_model import ServedModel
from scheduler_svc.front.structured_output import structured_faults

MAX_ID_BYTES = 256
MAX_OUTPUTS = 16
MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_STOP_TOKEN_IDS = 64
MAX_BIASES = 1024
MAX_BAD_WORDS = 64
MAX_BAD_WORD_BYTES = 60
"""With a blank before it, and a token for each byte, it has no more tokens than a worker takes."""
MAX_DELAY_MS = 10_000
MAX_SALT_BYTES = 256
MAX_GRACE_MS = 3_600_000
MAX_VARIABLES = 64
MAX_VARIABLE_BYTES = 65_536
MAX_ROLE_BYTES = 64
MAX_ONCE_TOKENS = 1_048_576
"""Most tokens of all outputs of a GenerateOnce, entries of log probabilities included, so that its answer stays below
16 MiB; also most entries of a prompt's log probabilities."""
LONGEST_MS = 2**53
UNSUPPORTED = "not supported by this server yet"
RESERVED_VARIABLES = frozenset({"messages", "add_generation_prompt", "self", "raise_exception", "strftime_now"})


class Violations:
    """Collects what is wrong; keeps the first few and counts on."""

    def __init__(self) -> None:
        self.found: list[Violation] = []

    def add(self, field: str, description: str) -> None:
        """One field is at fault. More than can be told are not kept."""
        if len(self.found) < 2 * MAX_VIOLATIONS:
            self.found.append(Violation(field, description))

    def unless(self, ok: bool, field: str, description: str) -> None:
        """Adds a violation unless `ok`."""
        if not ok:
            self.add(field, description)


def check_request(request: Any, model: ServedModel) -> list[Violation]:
    """What is wrong with the fields of a GenerateRequest."""
    bad = Violations()
    _check_request_id(request.request_id, bad)
    kind = request.WhichOneof("prompt")
    check_prompt(request, kind, model, bad)
    # What is not there is at its defaults, which are right.
    if request.HasField("prompt_options"):
        _check_options(request.prompt_options, kind, request, bad)
    if request.HasField("sampling"):
        _check_sampling(request.sampling, model, bad)
    if request.HasField("stop"):
        _check_stop(request.stop, model, bad)
    if request.HasField("output"):
        _check_output(request.output, bad)
    if request.HasField("scheduling"):
        _check_scheduling(request.scheduling, request.output, bad)
    if request.HasField("structured"):
        for field, description in structured_faults(request.structured):
            bad.add(field, description)
    bad.unless(not request.adapter, "adapter", UNSUPPORTED)
    return bad.found


def check_resume(request: Any) -> list[Violation]:
    """What is wrong with the fields of a ResumeGenerateRequest; its positions' indices lie in the request's outputs or
    mean nothing."""
    bad = Violations()
    bad.unless(bool(request.request_id), "request_id", "must not be empty")
    _check_request_id(request.request_id, bad)
    indices = [position.index for position in request.positions]
    bad.unless(len(set(indices)) == len(indices), "positions", "an output has one position")
    bad.unless(max(indices, default=0) < MAX_OUTPUTS, "positions", f"an index is below {MAX_OUTPUTS}")
    return bad.found


def check_tokenize(request: Any, model: ServedModel) -> list[Violation]:
    """What is wrong with the fields of a TokenizeRequest."""
    bad = Violations()
    kind = request.WhichOneof("prompt")
    check_prompt(request, kind, model, bad)
    _check_options(request.prompt_options, kind, request, bad)
    return bad.found


def check_prompt(request: Any, kind: str | None, model: ServedModel, bad: Violations) -> None:
    """The prompt as far as it can be judged before tokenizing."""
    if kind is None:
        bad.add("prompt", "one of text, token_ids and chat must be set")
    elif kind == "chat":
        _check_chat(request.chat, model, bad)
    elif kind == "token_ids":
        _check_token_ids(request, model, bad)


def check_ids(field: str, token_ids: Any, vocab_size: int, bad: Violations) -> None:
    """Each id lies in the vocabulary; the first that does not is named."""
    if len(token_ids) and (max(token_ids) >= vocab_size or min(token_ids) < 0):
        place = next(place for place, token_id in enumerate(token_ids) if not 0 <= token_id < vocab_size)
        bad.add(f"{field}[{place}]", f"{token_ids[place]} is no token id; they are below {vocab_size}")


def _check_request_id(request_id: str, bad: Violations) -> None:
    bad.unless(
        len(request_id) <= MAX_ID_BYTES and request_id.isascii() and request_id.isprintable(),
        "request_id",
        f"must be printable ASCII of at most {MAX_ID_BYTES} bytes",
    )


def _check_token_ids(request: Any, model: ServedModel, bad: Violations) -> None:
    """What truncation drops is not looked at, nor what cannot fit anyway."""
    fault = fault_of_form(request.token_ids)
    bad.unless(not fault, "token_ids.packed_ids", fault)
    kept = kept_ids(request, model.max_model_len)
    if not ids_are_below(kept, model.vocab_size):
        is_packed = len(request.token_ids.packed_ids) > 0  # packed ones are int32
        check_ids("token_ids.ids", array("i", kept.tobytes()) if is_packed else kept, model.vocab_size, bad)


def _check_chat(chat: Any, model: ServedModel, bad: Violations) -> None:
    if model.chat_template is None:
        bad.add("chat", f"the model {model.name} has no chat template; send text or token_ids")
    bad.unless(len(chat.messages) > 0, "chat.messages", "must hold at least one message")
    if len(chat.messages) > model.max_model_len:
        bad.add(
            "chat.messages", f"{len(chat.messages)} messages are more than the limit of {model.max_model_len} tokens"
        )
    else:
        for place, message in enumerate(chat.messages):
            if not 0 < len(message.role.encode()) <= MAX_ROLE_BYTES:
                bad.add(f"chat.messages[{place}].role", f"must have 1 to {MAX_ROLE_BYTES} bytes")
    _check_variables(chat.template_variables, bad)


def _check_variables(variables: Any, bad: Violations) -> None:
    field = "chat.template_variables"
    if len(variables) > MAX_VARIABLES or sum(map(len, variables.values())) > MAX_VARIABLE_BYTES:
        bad.add(field, f"at most {MAX_VARIABLES} variables of {MAX_VARIABLE_BYTES} characters in all")
        return
    for name, content in sorted(variables.items()):
        path = f"{field}[{name[:64]}]"
        if not name.isidentifier() or name.startswith("_") or name in RESERVED_VARIABLES:
            bad.add(path, "must be an identifier that is not reserved and does not begin with an underscore")
        try:
            json.loads(content)
        except (ValueError, RecursionError):
            bad.add(path, "the value must be JSON")


def _check_options(options: Any, kind: str | None, request: Any, bad: Violations) -> None:
    if options.HasField("truncate_prompt_tokens"):
        bad.unless(options.truncate_prompt_tokens >= 1, "prompt_options.truncate_prompt_tokens", "must be at least 1")
    if options.continue_final_message:
        field = "prompt_options.continue_final_message"
        bad.unless(kind == "chat", field, "needs a chat")
        if kind == "chat" and request.chat.add_generation_prompt:
            bad.add(field, "excludes chat.add_generation_prompt")


def _check_sampling(sampling: Any, model: ServedModel, bad: Violations) -> None:
    if sampling.HasField("temperature"):
        bad.unless(0.0 <= sampling.temperature <= 100.0, "sampling.temperature", "must lie in [0, 100]")
    if sampling.HasField("top_p"):
        bad.unless(0.0 < sampling.top_p <= 1.0, "sampling.top_p", "must lie in (0, 1]")
    if sampling.HasField("top_k"):
        bad.unless(sampling.top_k < 2**31, "sampling.top_k", "must be below 2147483648")
    if sampling.HasField("min_p"):
        bad.unless(0.0 <= sampling.min_p <= 1.0, "sampling.min_p", "must lie in [0, 1]")
    for name, low, high in (
        ("frequency_penalty", -2.0, 2.0),
        ("presence_penalty", -2.0, 2.0),
    ):
        if sampling.HasField(name):
            inside = low <= getattr(sampling, name) <= high
            bad.unless(inside, f"sampling.{name}", f"must lie in [{low:g}, {high:g}]")
    if sampling.HasField("repetition_penalty"):
        bad.unless(
            0.001 <= sampling.repetition_penalty <= 10.0, "sampling.repetition_penalty", "must lie in [0.001, 10]"
        )
    if sampling.logit_bias or sampling.allowed_token_ids or sampling.bad_words:
        _check_choices(sampling, model, bad)


def _check_choices(sampling: Any, model: ServedModel, bad: Violations) -> None:
    """What names single tokens or words."""
    biases = sampling.logit_bias
    if len(biases) > MAX_BIASES:
        bad.add("sampling.logit_bias", f"at most {MAX_BIASES} ids")
    else:
        for token_id, bias in sorted(biases.items()):
            field = f"sampling.logit_bias[{token_id}]"
            bad.unless(token_id < model.vocab_size, field, f"is no token id; they are below {model.vocab_size}")
            bad.unless(-100.0 <= bias <= 100.0, field, "must lie in [-100, 100]")
    if len(sampling.allowed_token_ids) > model.vocab_size:
        bad.add("sampling.allowed_token_ids", f"at most {model.vocab_size} ids")
    else:
        check_ids("sampling.allowed_token_ids", sampling.allowed_token_ids, model.vocab_size, bad)
    if len(sampling.bad_words) > MAX_BAD_WORDS:
        bad.add("sampling.bad_words", f"at most {MAX_BAD_WORDS} words")
    else:
        for place, word in enumerate(sampling.bad_words):
            if len(word.encode()) > MAX_BAD_WORD_BYTES or not word.strip():
                description = f"must have 1 to {MAX_BAD_WORD_BYTES} bytes, not only blanks"
                bad.add(f"sampling.bad_words[{place}]", description)


def _check_stop(stop: Any, model: ServedModel, bad: Violations) -> None:
    if stop.HasField("max_tokens"):
        bad.unless(stop.max_tokens >= 1, "stop.max_tokens", "must be at least 1")
    limit = model.card.generation_defaults.max_tokens or model.max_model_len
    most = stop.max_tokens if stop.HasField("max_tokens") else limit
    bad.unless(stop.min_tokens <= most, "stop.min_tokens", f"must be at most {most}, as the output may be no longer")
    if len(stop.stop) > MAX_STOPS:
        bad.add("stop.stop", f"at most {MAX_STOPS} stop strings")
    else:
        for place, text in enumerate(stop.stop):
            if not 0 < len(text.encode()) <= MAX_STOP_BYTES:
                bad.add(f"stop.stop[{place}]", f"must have 1 to {MAX_STOP_BYTES} bytes")
    if len(stop.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        bad.add("stop.stop_token_ids", f"at most {MAX_STOP_TOKEN_IDS} ids")
    else:
        check_ids("stop.stop_token_ids", stop.stop_token_ids, model.vocab_size, bad)


def _check_output(output: Any, bad: Violations) -> None:
    if output.HasField("n"):
        bad.unless(1 <= output.n <= MAX_OUTPUTS, "output.n", f"must lie in [1, {MAX_OUTPUTS}]")
    for name in ("logprobs", "prompt_logprobs"):
        bad.unless(getattr(output, name) <= MAX_LOGPROBS, f"output.{name}", f"must be at most {MAX_LOGPROBS}")
    bad.unless(output.max_delay_ms <= MAX_DELAY_MS, "output.max_delay_ms", f"must be at most {MAX_DELAY_MS}")


def _check_scheduling(scheduling: Any, output: Any, bad: Violations) -> None:
    bad.unless(
        len(scheduling.cache_salt.encode()) <= MAX_SALT_BYTES,
        "scheduling.cache_salt",
        f"must have at most {MAX_SALT_BYTES} bytes",
    )
    if scheduling.HasField("time_limit_ms"):
        inside = 1 <= scheduling.time_limit_ms <= LONGEST_MS
        bad.unless(inside, "scheduling.time_limit_ms", f"must lie in [1, {LONGEST_MS}]")
    grace = scheduling.resume_grace_ms
    bad.unless(grace <= MAX_GRACE_MS, "scheduling.resume_grace_ms", f"must be at most {MAX_GRACE_MS}")
    if grace and (output.HasField("logprobs") or output.HasField("prompt_logprobs")):
        bad.add("scheduling.resume_grace_ms", "a request with log probabilities cannot be resumed")
