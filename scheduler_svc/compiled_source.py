"""How a source is written for mypyc: what it would find out slowly is spelt out, in the copy that is compiled.

mypyc leaves the constructor of a dataclass to ``dataclasses``: a function of Python that sets each field through a
descriptor, slower than the source's. So each class under ``@value`` gets the constructor that ``dataclass`` would make,
as source; it is compared and shown as any other dataclass. It looks a module's constants up in each use unless they are
final, as names in capitals are; and a class that may have subclasses outside has to say so. Every line keeps its
number: what is added stands where an empty line was.
"""

import ast
from collections.abc import Iterator

_DATACLASS = "@dataclass(kw_only=True, unsafe_hash=True)"
_FINAL = "from typing import TYPE_CHECKING, Final"
_OPEN = ("Placement", "Scheduler")
"""Classes with subclasses that are not compiled: traced cores, rules to compare with."""
_OPENING = (
    "if TYPE_CHECKING: from mypy_extensions import mypyc_attr",
    "@mypyc_attr(allow_interpreted_subclasses=True)",
)


def for_compiler(source: str) -> str:
    """The source as mypyc shall see it. It begins with a docstring, an empty line behind it."""
    lines, tree = [*source.splitlines(), ""], ast.parse(source)
    lines[tree.body[0].end_lineno or 0] = _FINAL
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and (at := _decoration(node)) is not None:
            lines[at - 1] = _DATACLASS
            lines[node.end_lineno or 0] = _constructor(node)
        elif isinstance(node, ast.ClassDef) and node.name in _OPEN:
            lines[node.lineno - 3 : node.lineno - 1] = _OPENING
        elif isinstance(node, ast.Assign) and (name := _constant(node)) is not None:
            lines[node.lineno - 1] = lines[node.lineno - 1].replace(name, f"{name}: Final", 1)
    return "\n".join(lines) + "\n"


def _constant(node: ast.Assign) -> str | None:
    """The name of a constant. Tuples are left alone: mypyc mistakes some of floats for values that were never set."""
    target = node.targets[0]
    if isinstance(target, ast.Name) and target.id.isupper() and not isinstance(node.value, ast.Tuple):
        return target.id
    return None


def _decoration(node: ast.ClassDef) -> int | None:
    """The line of ``@value(...)``."""
    calls = (each for each in node.decorator_list if isinstance(each, ast.Call))
    return next((call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "value"), None)


def _constructor(node: ast.ClassDef) -> str:
    required_first = sorted(_fields(node), key=lambda field: field[2] is not None)
    parameters, settings = zip(*map(_parts, required_first), strict=True)
    return f"    def __init__(self, *, {', '.join(parameters)}) -> None: {'; '.join(settings)}"


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str, ast.expr | None]]:
    """Name, type and default of each."""
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            quoted = isinstance(each.annotation, ast.Constant) and isinstance(each.annotation.value, str)
            kind = each.annotation.value if quoted else ast.unparse(each.annotation)  # type: ignore[attr-defined]
            yield each.target.id, kind, each.value


def _parts(field: tuple[str, str, ast.expr | None]) -> tuple[str, str]:
    """The parameter of a field, and the statement that sets it."""
    name, kind, default = field
    if default is None:
        return f'{name}: "{kind}"', f"self.{name} = {name}"
    if isinstance(default, ast.Call) and default.keywords:  # field(default_factory=...)
        made = ast.unparse(default.keywords[0].value)
        return f'{name}: "{kind} | None" = None', f"self.{name} = ({made})() if {name} is None else {name}"
    return f'{name}: "{kind}" = {ast.unparse(default)}', f"self.{name} = {name}"
