"""Chat templates: the same text as transformers renders, and bounded."""

import functools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from jinja2 import TemplateError
from support import toy_tokenizer as toy
from support.chat_templates import TEMPLATES as FAMILIES
from tokenizers import Tokenizer

from scheduler_svc.front import chat_template
from scheduler_svc.front.chat_template import ChatError, ChatTemplate
from scheduler_svc.front.template_pool import TemplatePool
from scheduler_svc.front.tokenizer import PromptTokenizer

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = """{% if messages[0]['role'] == 'system' %}
    {% set loop_messages = messages[1:] %}
    {% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}
{% else %}
    {% set loop_messages = messages %}
    {% set system = '' %}
{% endif %}
{% for message in loop_messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {% if message['role'] == 'user' %}
        {{ bos_token + '[INST] ' + (system if loop.index0 == 0 else '') + message['content'].strip() + ' [/INST]' }}
    {% elif message['role'] == 'assistant' %}
        {% generation %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endgeneration %}
    {% endif %}
{% endfor %}
"""
NAMESPACES = """{%- set ns = namespace(count=0, last='') -%}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{% continue %}{% endif %}
    {%- set ns.count = ns.count + 1 %}
    {%- set ns.last = message.content %}
    {%- if ns.count > 2 %}{% break %}{% endif %}
    {{- message | tojson(indent=2) }}
{%- endfor %}
{{- "<" ~ ns.count ~ ns.last ~ ">" }}{{ tools is none }}{{ dict(a=1) | tojson }}{{ mood | default('calm') }}
{%- if add_generation_prompt %}GO{% endif %}
"""
TEMPLATES = {"chatml": CHATML, "llama 2": LLAMA2, "namespaces": NAMESPACES, "toy": toy.CHAT_TEMPLATE}
CHATS = {
    "one": [{"role": "user", "content": "hello"}],
    "system": [{"role": "system", "content": "Be <brief> & 'kind'"}, {"role": "user", "content": "你好 😀\n"}],
    "turns": [
        {"role": "user", "content": " a "},
        {"role": "assistant", "content": "b\n\n"},
        {"role": "user", "content": ""},
    ],
}


@pytest.fixture(scope="module")
def transformers_tokenizer() -> Any:
    transformers = pytest.importorskip("transformers", reason="the reference renderer")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_buffer(toy.tokenizer_json()), bos_token="<s>", eos_token="</s>"
    )


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@pytest.mark.parametrize("chat", sorted(CHATS))
@pytest.mark.parametrize("generation_prompt", [True, False])
def test_tpl_02_equals_transformers(transformers_tokenizer: Any, name: str, chat: str, generation_prompt: bool) -> None:
    rendered = ChatTemplate(TEMPLATES[name], SPECIAL).render(
        CHATS[chat], add_generation_prompt=generation_prompt, variables={"mood": "cheerful"}
    )
    expected = transformers_tokenizer.apply_chat_template(
        CHATS[chat],
        chat_template=TEMPLATES[name],
        tokenize=False,
        add_generation_prompt=generation_prompt,
        mood="cheerful",
    )
    assert rendered == expected


@pytest.mark.parametrize("final", ["Once upon", "Once upon ", " a", "x\n"])
@pytest.mark.parametrize("name", ["chatml", "toy"])
def test_continued_message_equals_transformers(transformers_tokenizer: Any, name: str, final: str) -> None:
    chat = [{"role": "user", "content": "tell"}, {"role": "assistant", "content": final}]
    rendered = ChatTemplate(TEMPLATES[name], SPECIAL).render(
        chat, add_generation_prompt=False, continue_final_message=True
    )
    assert rendered == transformers_tokenizer.apply_chat_template(
        chat, chat_template=TEMPLATES[name], tokenize=False, continue_final_message=True
    )


def test_tpl_01_tokens_equal_transformers(transformers_tokenizer: Any) -> None:
    template = "{{ bos_token }}" + toy.CHAT_TEMPLATE
    text = ChatTemplate(template, SPECIAL).render(CHATS["system"])
    tokenizer = PromptTokenizer(toy.tokenizer_json(), bos_token_id=toy.BOS)
    ids = tokenizer.encode(text, add_special_tokens=False).tolist()
    expected = transformers_tokenizer.apply_chat_template(
        CHATS["system"], chat_template=template, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert ids == list(expected)
    assert ids.count(toy.BOS) == 1


def test_tpl_01_one_beginning_of_sequence() -> None:
    tokenizer = PromptTokenizer(toy.tokenizer_json(), bos_token_id=toy.BOS)
    assert tokenizer.encode("hi", add_special_tokens=True).tolist() == [toy.BOS, 104, 105]
    assert tokenizer.encode("<s>hi", add_special_tokens=True).tolist() == [toy.BOS, 104, 105]
    assert tokenizer.encode("<s>hi", add_special_tokens=False).tolist() == [toy.BOS, 104, 105]
    assert tokenizer.encode("hi", add_special_tokens=False).tolist() == [104, 105]


def test_tpl_02_template_message_is_told() -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(ChatError, match="roles must alternate"):
        ChatTemplate(LLAMA2, SPECIAL).render(chat)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.missing.more }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ 1 // 0 }}",
        "{{ 'xx' | truncate(0) }}",
        "{{ messages + 1 }}",
        "{{ namespace(_x=1) }}",
        "{{ 'x' * 100000000 }}",
        "{{ 10 ** 100000 }}",
        "{{ undefined_function() }}",
        "{{ 'x'.zfill(4000000000) }}",
        "{{ 'x' | center(width=4000000000) }}",
        "{{ '%4000000000d' % 1 }}",
        "{{ '%*d' % (4000000000, 1) }}",
        "{{ '{:4000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 4000000000) }}",
        "{{ '%4000000000d' | format(1) }}",
        "{% set s = 'x' * 100000 %}{{ s | replace('x', s) }}",
        "{% set s = 'x' * 100000 %}{{ s.replace('x', s) }}",
        "{% set s = 'x' * 100000 %}{{ range(99999) | map('string') | join(s) }}",
        "{% set s = 'x' * 100000 %}{{ 'x'.translate({120: s}) }}",
        "{% set n = namespace(s='x') %}{% for _ in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='x') %}{% for _ in range(60) %}{% set n.s %}{{ n.s }}{{ n.s }}{% endset %}{% endfor %}",
        "{% set n = namespace(s=9) %}{% for _ in range(60) %}{% set n.s = n.s * n.s %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_hostile_templates_are_refused(source: str) -> None:
    with pytest.raises(ChatError):
        ChatTemplate(source, SPECIAL).render(CHATS["one"])


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(ChatError, match="UnicodeEncodeError"):
        ChatTemplate("{{ bos_token }}", SPECIAL).render(CHATS["one"], variables={"bos_token": json.loads('"\\ud800"')})


@pytest.mark.parametrize("items", ["range(99999)", "'x' * 99999", "messages * 99999"])
def test_loops_that_do_nothing_are_stopped(monkeypatch: pytest.MonkeyPatch, items: str) -> None:
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.05)
    source = "{% set s = " + items + " %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}"
    with pytest.raises(ChatError, match="took longer"):
        ChatTemplate(source, SPECIAL).render(CHATS["one"])


def test_ordinary_functions_are_not_hindered() -> None:
    source = (
        "{% set s %}{{ messages[0].content }}!{% endset %}{{ s.replace('l', 'L') | upper }}{{ '%5.1f' % 12345.67 }}"
        "{{ '{:>7}'.format(s) }}{{ [1, 2] | join(', ') }}{{ [1, 2] | sum }}{% for k, v in {'a': 1}.items() %}{{ k }}"
        "{{ loop.length }}{{ loop.last }}{% endfor %}{% for x in missing %}{{ x }}{% else %}none{% endfor %}"
    )
    assert ChatTemplate(source, SPECIAL).render(CHATS["one"]) == "HELLO!12345.7 hello!1, 23a1Truenone"


def test_long_rendering_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.05)
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{{ messages[0].role }}{% endfor %}{% endfor %}"
    with pytest.raises(ChatError, match="took longer"):
        ChatTemplate(source, SPECIAL).render(CHATS["one"])
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 60.0)
    monkeypatch.setattr(chat_template, "MAX_CHARS", 1000)
    with pytest.raises(ChatError, match="too long"):
        ChatTemplate(source, SPECIAL).render(CHATS["one"])


def test_time_of_the_template_is_now() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}", {}).render(CHATS["one"]).startswith("20")


def test_broken_template_and_tokenizer_are_refused() -> None:
    deep = ("{{ " + "-" * 3000 + "1 }}", "{% if 1 %}" * 200 + "{% endif %}" * 200)
    for source in ("{% for %}", *deep):
        with pytest.raises(ValueError, match="does not compile"):
            ChatTemplate(source, {})
    for content in (b"", b"{", json.dumps({"model": {"type": "nothing"}}).encode()):
        with pytest.raises(ValueError, match=r"no usable tokenizer\.json"):
            PromptTokenizer(content, bos_token_id=None)


def test_a_tokenizer_that_fails_in_use_is_refused() -> None:
    content = json.loads(toy.tokenizer_json())
    assert content["post_processor"]["special_tokens"]
    content["post_processor"]["special_tokens"] = {}
    with pytest.raises(ValueError, match=r"no usable tokenizer\.json"):
        PromptTokenizer(json.dumps(content).encode(), bos_token_id=None)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the 'weather' & \"sky\" <now> — ü",
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
        },
    }
]
FAMILY_CHATS = {
    **CHATS,
    "tool": [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "<think>hm</think>\n\nLet me see."},
        {"role": "tool", "content": '{"rain": false}'},
        {"role": "tool", "content": "dry"},
        {"role": "user", "content": "<tool_response>x</tool_response>"},
    ],
    "two users": [{"role": "user", "content": "a\r\n\nb"}, {"role": "user", "content": "c"}],
    "system alone": [{"role": "system", "content": "only"}],
    "unknown role": [{"role": "critic", "content": "no"}],
}


def outcome(render: Callable[[], str]) -> str | None:
    """The text, or None for a refusal."""
    try:
        return render()
    except (ChatError, TemplateError):
        return None


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_tpl_02_families_equal_transformers(transformers_tokenizer: Any, name: str) -> None:
    ours = ChatTemplate(FAMILIES[name], SPECIAL)
    texts: list[str | None] = []
    for chat in FAMILY_CHATS.values():
        for generation_prompt in (True, False):
            for more in ({}, {"tools": TOOLS}, {"enable_thinking": False, "date_string": "1 May 2031"}):
                given = functools.partial(ours.render, chat, add_generation_prompt=generation_prompt, variables=more)
                expected = functools.partial(
                    transformers_tokenizer.apply_chat_template,
                    chat,
                    chat_template=FAMILIES[name],
                    tokenize=False,
                    add_generation_prompt=generation_prompt,
                    **more,
                )
                texts.append(outcome(given))
                assert texts[-1] == outcome(expected)
    assert texts[0] is not None
    assert len(set(texts)) > 2


HOSTILE = {
    "one comparison of 64 billion": "{{ z == w }}",
    "one text of 64 billion": "{{ z }}",
    "one text of 64 billion, by a filter": "{{ z | string | length }}",
}
NESTED = """{% set x = [1] * 4000 %}{% set y = [x] * 4000 %}{% set z = [y] * 4000 %}
{% set x = [1] * 4000 %}{% set y = [x] * 4000 %}{% set w = [y] * 4000 %}"""


@pytest.fixture
def pool() -> Iterator[Callable[[str], TemplatePool]]:
    made: list[TemplatePool] = []

    def make(source: str) -> TemplatePool:
        made.append(TemplatePool(source, SPECIAL))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_one_huge_call_costs_a_process_and_nothing_else(pool: Callable[[str], TemplatePool], name: str) -> None:
    hostile = pool("{% if messages[0].content == 'evil' %}" + NESTED + HOSTILE[name] + "{% endif %}fine")
    with pytest.raises(ChatError, match=r"too much time or memory|MemoryError|longer than"):
        hostile.render([{"role": "user", "content": "evil"}])
    assert hostile.render(CHATS["one"]) == "fine"


def test_a_pool_renders_as_the_template_does(pool: Callable[[str], TemplatePool]) -> None:
    for name, source in TEMPLATES.items():
        for chat in CHATS.values():
            assert pool(source).render(chat) == ChatTemplate(source, SPECIAL).render(chat), name
    with pytest.raises(ChatError, match="Conversation roles must alternate"):
        pool(LLAMA2).render([{"role": "assistant", "content": "x"}])
    with pytest.raises(ChatError, match="fails on this chat: UnicodeEncodeError"):
        pool("{{ x }}").render(CHATS["one"], variables={"x": json.loads('"\\ud800"')})
    assert pool("{{ mood }}").render(CHATS["one"], variables={"mood": {"a": [1, None]}}) == "{'a': [1, None]}"
    with pytest.raises(ValueError, match="does not compile"):
        pool("{% if %}")


def test_a_lost_process_is_replaced_and_a_closed_pool_starts_again(pool: Callable[[str], TemplatePool]) -> None:
    small = pool("{{ messages[0].content }}")
    for _ in range(2):
        assert small.render(CHATS["one"]) == "hello"
        small.close()


def test_renderings_wait_for_a_process(pool: Callable[[str], TemplatePool]) -> None:
    small = pool("{{ messages[0].content }}")
    with ThreadPoolExecutor(6) as threads:
        texts = list(threads.map(lambda n: small.render([{"role": "user", "content": str(n)}]), range(30)))
    assert texts == [str(n) for n in range(30)]
