"""The committed stubs are what the protos give, byte for byte, and load beside each other."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROTOS = Path(__file__).parents[2] / "protos"


def load_generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pagewire_protos_generate", PROTOS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    return load_generate()


def test_the_committed_stubs_are_what_the_protos_give(generate: ModuleType, tmp_path: Path) -> None:
    generate.generate(tmp_path)
    fresh, committed = generate.stubs(tmp_path), generate.stubs(PROTOS)
    assert sorted(fresh) == sorted(committed)
    assert [name for name in fresh if fresh[name] != committed[name]] == []


def test_the_check_names_a_stub_that_was_edited_and_one_without_a_proto(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pagewire" / "v1"
    package.mkdir(parents=True)
    (package / "word.proto").write_text('syntax = "proto3";\npackage pagewire.v1;\nmessage Word { string text = 1; }\n')
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    generate.generate(tmp_path)
    assert generate.drifted() == []
    (package / "word_pb2.py").write_text("edited = True\n")
    (package / "gone_pb2.py").write_text("")
    assert generate.drifted() == ["pagewire/v1/gone_pb2.py", "pagewire/v1/word_pb2.py"]
    with pytest.raises(SystemExit, match="make protos"):
        generate.main(["--check"])


@pytest.mark.parametrize(
    "name", sorted(str(path.relative_to(PROTOS)) for path in (PROTOS / "pagewire").rglob("*_pb2*.py"))
)
def test_every_stub_loads(name: str) -> None:
    module = name.removesuffix(".py").replace("/", ".")
    importlib.import_module(module)
    assert module in sys.modules
