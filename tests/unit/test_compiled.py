"""Which code is chosen, and how values are written for the compiler."""

import dataclasses
import importlib
import shutil
import sys
from pathlib import Path

import pytest

from scheduler_svc import compilation, compiled
from scheduler_svc.compiled_source import for_compiler

VALUES = '''\
"""A value and a constant."""

from dataclasses import dataclass, field

from scheduler_svc.core.value import value


@value(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two."""

    first: int = 1
    second: "list[int]"
    third: list[int] = field(default_factory=lambda: [3])
    """The third."""


LINE = 18
'''


def test_the_source_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWIRE_PURE_PYTHON", "1")
    before = sys.meta_path[:]
    assert compiled.choose() == "source, by PAGEWIRE_PURE_PYTHON"
    assert sys.meta_path == before


def test_modules_of_another_source_are_never_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PAGEWIRE_PURE_PYTHON", raising=False)
    package = tmp_path / "scheduler_svc"
    shutil.copytree(compiled.PACKAGE, package, ignore=shutil.ignore_patterns("__compiled__", "__pycache__"))
    monkeypatch.setattr(compiled, "PACKAGE", package)
    monkeypatch.setattr(compiled, "KEPT", package / "__compiled__")
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    compiled.folder().mkdir(parents=True)
    assert compiled.choose() == "compiled"
    for name in ("core/worker.py", "core/value.py", "worker_codec.py"):
        changed = package / name
        content = changed.read_bytes()
        changed.write_bytes(content + b"\n")
        assert compiled.choose() == "source, it is not compiled"
        changed.write_bytes(content)
        assert compiled.choose() == "compiled"


@pytest.mark.parametrize("gone", ["compiler", "mypyc"])
def test_without_the_tools_nothing_is_compiled(
    gone: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where, name = (compilation.shutil, "which") if gone == "compiler" else (compilation, "find_spec")
    monkeypatch.setattr(where, name, lambda _: None)
    assert compilation.main() == 0
    assert "runs from its source: there is no" in capsys.readouterr().out


def test_values_get_their_constructors_and_keep_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = for_compiler(VALUES)
    assert source.splitlines()[17] == "LINE: Final = 18"
    path = tmp_path / "compiled_pair.py"
    path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    pair = importlib.import_module("compiled_pair").Pair
    assert repr(pair(second=[2])) == "Pair(first=1, second=[2], third=[3])"
    assert pair(second=[2]) == pair(first=1, second=[2], third=[3]) != pair(first=2, second=[2])
    assert [field.name for field in dataclasses.fields(pair)] == ["first", "second", "third"]
