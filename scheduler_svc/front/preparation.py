"""Makes a checked, tokenized, ready-to-submit request out of what a caller sent.

The order: the service must be able to serve; the model must be the served one; every field is checked; the form asked
for becomes a grammar; the prompt becomes token ids, off the loop if it is long; defaults are filled in (the
checkpoint's, then the API's); a seed is drawn if none was given; pages are hashed, by default for the caller's tenant
alone, so that nobody can learn from the time a prompt takes what another tenant has sent.
"""

import asyncio
import hashlib
import secrets
import uuid
from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pagewire.internal.v1 import front_pb2
from pagewire.v1 import generation_pb2

from scheduler_svc.columns import ints, pack, read_ints
from scheduler_svc.core.page_hash import root_hash
from scheduler_svc.front.caller import CALLER
from scheduler_svc.front.errors import FrontError, InternalError, InvalidRequestError, NotFoundError, Reason
from scheduler_svc.front.figures import Figures
from scheduler_svc.front.form_reader import FormReader
from scheduler_svc.front.page_names import PageNames
from scheduler_svc.front.prepared_request import PreparedRequest
from scheduler_svc.front.prompt import PromptReader, check_fits
from scheduler_svc.front.row_options import row_options
from scheduler_svc.front.served_model import ServedModel
from scheduler_svc.front.service_state import ServiceState, Serving
from scheduler_svc.front.stop_strings import StopStrings
from scheduler_svc.front.validation import MAX_ONCE_TOKENS, check_request

if TYPE_CHECKING:
    from scheduler_svc.front.tracing import RequestSpan, Tracing


_root_of = lru_cache(maxsize=256)(root_hash)


class Preparation:
    """Prepares requests; one a process."""

    def __init__(
        self,
        state: ServiceState,
        prompts: PromptReader,
        forms: FormReader,
        figures: Figures,
        tracing: "Tracing | None" = None,
        *,
        tenants_share_pages: bool = False,
    ) -> None:
        self._state = state
        self._tenants_share_pages = tenants_share_pages
        self.reader = prompts
        self._forms = forms
        self._figures = figures
        self._tracing = tracing
        self._page_names = PageNames()

    async def prepare(self, request: Any, *, deadline: float | None = None, once: bool = False) -> PreparedRequest:
        """The request, ready to be submitted before `deadline` (on the loop's clock).

        `once`: all its outputs go into one answer.

        Raises: FrontError.
        """
        span = None if self._tracing is None else self._tracing.start(request)
        try:
            prepared = await self._prepare(request, deadline=deadline, once=once)
        except (Exception, asyncio.CancelledError) as error:
            self._note_end(error, span)
            raise
        return prepared if span is None else prepared.traced(span)

    def prepare_at_once(self, request: Any, *, deadline: float | None = None) -> PreparedRequest | None:
        """The same for a request that waits for nobody; None for one that may: a thread or a process has work with it.

        Raises: FrontError.
        """
        if not self.reader.is_short(request) or request.HasField("structured"):
            return None
        span = None if self._tracing is None else self._tracing.start(request)
        try:
            serving = self._checked(request)
            prompt = self.reader.read_short(request, serving.model, deadline=deadline)
            prepared = self._finished(request, serving, prompt, "", once=False)
        except Exception as error:
            self._note_end(error, span)
            raise
        return prepared if span is None else prepared.traced(span)

    def _note_end(self, error: BaseException, span: "RequestSpan | None") -> None:
        """A request ends before the scheduler hears of it: by an error, or with its caller."""
        if isinstance(error, asyncio.CancelledError):
            self._figures.leave()
            if span is not None:
                span.left()
            return
        told = error if isinstance(error, FrontError) else InternalError()
        self._figures.refuse(told)
        if span is not None:
            span.failed(told)

    async def _prepare(self, request: Any, *, deadline: float | None, once: bool) -> PreparedRequest:
        serving = self._checked(request)
        grammar = await self._forms.read(request.structured, serving.model, deadline=deadline)
        prompt = await self.reader.read(request, serving.model, deadline=deadline)
        return self._finished(request, serving, prompt, grammar, once=once)

    def _checked(self, request: Any) -> Serving:
        """What the request is to run with; all that can be judged without its tokens is right."""
        serving = self._state.require()
        check_model(request.model, serving.model)
        violations = check_request(request, serving.model)
        if violations:
            raise InvalidRequestError(violations)
        return serving

    def _finished(
        self, request: Any, serving: Serving, prompt: "array[int]", grammar: str, *, once: bool
    ) -> PreparedRequest:
        kind = str(request.WhichOneof("prompt"))
        check_fits(prompt, kind, serving.max_request_tokens)
        prepared = _prepared(request, prompt, kind, serving, grammar)
        _check_answer(request.output, prepared, once=once)
        self._charge(prepared.submit, request, prompt, serving)
        return prepared

    def _charge(self, submit: Any, request: Any, prompt: "array[int]", serving: Serving) -> None:
        """Says whose request it is, and names its pages for this tenant alone."""
        caller = CALLER.get()
        submit.tenant = caller.tenant
        submit.max_tenant_requests = caller.limits.max_concurrent_requests
        submit.tenant_requests_per_minute = caller.limits.requests_per_minute
        # Cached positions have no logits, so a prompt whose log probabilities are wanted is computed whole.
        if request.scheduling.bypass_prefix_cache or request.output.HasField("prompt_logprobs"):
            return
        submit.root_hash = self._root(request, serving)
        submit.page_hashes = self._page_names.of(submit.root_hash, prompt, serving.page_size)

    def _root(self, request: Any, serving: Serving) -> bytes:
        """The root of the request's chain of pages, this tenant's own."""
        model = serving.model.card.digest or serving.model.name
        tenant = "" if self._tenants_share_pages else CALLER.get().tenant
        return _root_of(serving.hash_key, request.scheduling.cache_salt, model, request.adapter, tenant)

    async def ask_quote(self, request: Any, *, deadline: float | None = None) -> Any:
        """The request as it would be submitted; it is not counted.

        Raises: FrontError.
        """
        return (await self._prepare(request, deadline=deadline, once=False)).submit

    async def ask_prefix(self, prefix: Any, *, deadline: float | None = None) -> Any:
        """The scheduler's question about a pagewire.v1.Prefix: the pages that a request with this prompt would ask for.

        Raises: FrontError.
        """
        request = request_of(prefix)
        kind = request.WhichOneof("prompt")
        serving = self._state.require()
        violations = check_request(request, serving.model)
        if violations:
            raise InvalidRequestError(violations)
        prompt = await self.reader.read(request, serving.model, deadline=deadline)
        check_fits(prompt, str(kind), serving.max_request_tokens)
        root = self._root(request, serving)
        request.scheduling.cache_salt = ""
        return front_pb2.PrefixQuestion(
            prompt_token_ids=ints(prompt),
            page_hashes=self._page_names.of(root, prompt, serving.page_size),
            root_hash=root,
            unsalted_root=self._root(request, serving),
        )


def request_of(prefix: Any) -> Any:
    """A GenerateRequest with the prompt and the salt of a pagewire.v1.Prefix."""
    request = generation_pb2.GenerateRequest(scheduling={"cache_salt": prefix.cache_salt})
    kind = prefix.WhichOneof("prompt")
    if kind == "text":
        request.text = prefix.text
    elif kind is not None:
        getattr(request, kind).CopyFrom(getattr(prefix, kind))
    return request


def _check_answer(output: Any, prepared: PreparedRequest, *, once: bool) -> None:
    """Raises: InvalidRequestError if there would be too much to tell."""
    submit = prepared.submit
    num_entries = len(prepared.prompt) * (output.prompt_logprobs + 1) if output.HasField("prompt_logprobs") else 0
    if num_entries > MAX_ONCE_TOKENS:
        raise InvalidRequestError.at(
            "output.prompt_logprobs",
            f"{num_entries} entries for a prompt of {len(prepared.prompt)} tokens; at most {MAX_ONCE_TOKENS}",
        )
    width = output.logprobs + 1 if output.HasField("logprobs") else 1
    if once and submit.n * submit.max_tokens * width + num_entries > MAX_ONCE_TOKENS:
        raise InvalidRequestError.at(
            "output.n",
            f"{submit.n} outputs of up to {submit.max_tokens} tokens are too much for one answer ({MAX_ONCE_TOKENS} "
            "tokens, each entry of log probabilities counted as one); use Generate or lower stop.max_tokens",
        )


def check_model(name: str, model: ServedModel) -> None:
    """Raises: NotFoundError unless the name is empty or the served model's."""
    if name not in ("", model.name):
        raise NotFoundError(f"the model {name[:100]!r} is not served here", reason=Reason.MODEL_NOT_FOUND.value)


def _prepared(request: Any, prompt: "array[int]", kind: str, serving: Serving, grammar: str) -> PreparedRequest:
    stop_token_ids = frozenset(request.stop.stop_token_ids)
    # Behind a complete form nothing but an end-of-sequence token can follow: that is its end, whatever else is asked.
    if grammar or not request.stop.ignore_eos:
        stop_token_ids |= serving.model.eos_token_ids
    submit = _submit(request, prompt, stop_token_ids, serving)
    if grammar:
        submit.grammar.text = grammar
    submit.request_id = request.request_id or uuid.uuid4().hex
    if request.scheduling.resume_grace_ms:
        _make_resumable(submit, request)
    return _described(request, submit, prompt, kind, serving.model, stop_token_ids)


def resumed(submit: Any, model: ServedModel) -> PreparedRequest:
    """A request that was submitted before, maybe by another front."""
    options = generation_pb2.GenerateRequest.FromString(submit.front_options)
    prompt = read_ints(submit.prompt_token_ids, "prompt_token_ids")
    stop_token_ids = frozenset(read_ints(submit.stop_token_ids, "stop_token_ids"))
    return _described(options, submit, prompt, "prompt", model, stop_token_ids)


def _make_resumable(submit: Any, request: Any) -> None:
    """Adds what another front needs to continue it, and what tells the same request from another of its id."""
    submit.resume_grace_ms = request.scheduling.resume_grace_ms
    submit.content_digest = _digest(request)
    options = generation_pb2.GenerateRequest()
    options.stop.CopyFrom(request.stop)
    options.output.CopyFrom(request.output)
    submit.front_options = options.SerializeToString()


def _digest(request: Any) -> bytes:
    """Of all that a request says; the same whether its token ids came as numbers or packed."""
    content = request
    if len(request.token_ids.ids):
        content = generation_pb2.GenerateRequest()
        content.CopyFrom(request)
        content.token_ids.CopyFrom(generation_pb2.TokenIds(packed_ids=pack("I", request.token_ids.ids[:])))
    return hashlib.blake2b(content.SerializeToString(deterministic=True), digest_size=16).digest()


def _described(
    request: Any, submit: Any, prompt: "array[int]", kind: str, model: ServedModel, stop_token_ids: frozenset[int]
) -> PreparedRequest:
    """A submission with what its front must know; of the request only what concerns stops and output is looked at."""
    stop, output = request.stop, request.output
    return PreparedRequest(
        request_id=submit.request_id,
        submit=submit,
        model=model,
        prompt=prompt,
        prompt_field=kind,
        stops=StopStrings(list(stop.stop)) if stop.stop else None,
        include_stop=stop.include_stop,
        min_tokens=stop.min_tokens,
        stop_token_ids=stop_token_ids,
        skip_special_tokens=output.skip_special_tokens if output.HasField("skip_special_tokens") else True,
        wants_text=output.text if output.HasField("text") else True,
        wants_token_ids=output.token_ids,
        wants_logprobs=output.HasField("logprobs"),
        wants_prompt_logprobs=output.HasField("prompt_logprobs"),
        wants_prompt_token_ids=output.prompt_token_ids,
        progress_events=output.progress_events,
        max_delay_seconds=output.max_delay_ms / 1000,
    )


def _submit(request: Any, prompt: "array[int]", stop_token_ids: frozenset[int], serving: Serving) -> Any:
    """The scheduler's message, complete but for key and deadline."""
    stop, scheduling = request.stop, request.scheduling
    room = serving.max_request_tokens - len(prompt)
    sampling = _sampling(request.sampling, serving.model.card.generation_defaults)
    submit = front_pb2.Submit(
        prompt_token_ids=ints(prompt),
        n=request.output.n or 1,
        max_tokens=min(_max_tokens(stop, serving.model.card.generation_defaults) or room, room),
        stop_token_ids=ints(sorted(stop_token_ids)),
        hold_endings=bool(stop.stop),
        priority=scheduling.priority,
        progress_events=request.output.progress_events,
        **sampling,
    )
    options = row_options(request, serving.model, stop_token_ids)
    if options.ByteSize():
        submit.options.CopyFrom(options)
    if scheduling.HasField("time_limit_ms"):
        submit.time_limit_ms = scheduling.time_limit_ms
    return submit


def _sampling(sampling: Any, defaults: Any) -> dict[str, Any]:
    """Sampling fields of Submit: the caller's, else the checkpoint's, else the API's."""
    chosen: dict[str, Any] = {"seed": sampling.seed if sampling.HasField("seed") else secrets.randbits(64)}
    for name, default in (("temperature", 1.0), ("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        if sampling.HasField(name):
            chosen[name] = getattr(sampling, name)
        elif defaults.HasField(name):
            chosen[name] = getattr(defaults, name)
        else:
            chosen[name] = default
    return chosen


def _max_tokens(stop: Any, defaults: Any) -> int:
    """The caller's or the checkpoint's limit; 0 if neither gives one."""
    return int(stop.max_tokens if stop.HasField("max_tokens") else defaults.max_tokens)
