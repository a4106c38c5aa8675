"""The 32 prompts of the end-to-end tests: plain and chat, English, Chinese, emoji, code, digits, short and long."""

from support.reference_outputs import Case

_STORY = (
    "The lighthouse keeper had counted ships for thirty years. Every evening he wrote the names of those that "
    "passed, the weather they met and the colour of their sails in a book bound in green leather. One autumn "
    "night a ship went by that carried no light at all, and the keeper, who had never left a line empty, held his "
    "pen over the page. "
)
_RULES = (
    "You are a careful assistant. Answer in one short sentence. Do not repeat the question. If you are not sure, "
    "say so. Use plain words and no lists. Keep every answer polite, correct and to the point, whatever the "
    "language of the user."
)

PLAIN = (
    "The capital of France is",
    "Once upon a time, in a small village,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "1, 2, 3, 5, 8, 13, 21,",
    "今天天气很好，我们",
    "北京是中国的首都，",
    "春天来了，花儿开了。小鸟在树上唱歌，孩子们在草地上",
    "I love pizza 🍕🍕 and",
    "🙂🙃😀 Emoji are",
    "naïve café 数字 12345 🙂 means",
    "x",
    _STORY,
    _STORY + "In the morning",
    _STORY + "He wrote:",
    _STORY * 3 + "At last",
    "The quick brown fox jumps over the lazy dog. " * 8,
)

_QUESTIONS = (
    "What is the capital of France?",
    "Write two sentences about the ocean.",
    "Say only the word yes.",
    "What is 2 + 2?",
    "你好！你是谁？",
    "用一句话介绍北京。",
    "What does 🍕 mean?",
    "😀😀😀",
)

CHAT = tuple((("user", question),) for question in _QUESTIONS) + tuple(
    (("system", _RULES), ("user", question)) for question in _QUESTIONS[:5]
)
TURNS = (
    (("user", "My name is Ada."), ("assistant", "Nice to meet you, Ada."), ("user", "What is my name?")),
    (("user", "请用中文回答。"), ("assistant", "好的。"), ("user", "一加一等于几？")),
    (("system", _RULES), ("user", "Hi"), ("assistant", "Hello!"), ("user", _STORY + "Who counts the ships?")),
)

CASES = tuple(Case(text=text) for text in PLAIN) + tuple(Case(chat=chat) for chat in CHAT + TURNS)
"""All 32; the first 16 are plain."""

LONG_CASES = (
    Case(text="The history of the railway began", max_tokens=40),
    Case(chat=(("user", "Tell me a long story about a dragon."),), max_tokens=40),
)
"""For tests that break something while a stream runs."""
