"""Who may import whom, where contracts on the import graph cannot say it, and where each file is: exact lists."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PURE = {
    *("__future__", "abc", "array", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "heapq"),
    *("itertools", "math", "operator", "struct", "sys", "types", "typing"),
}

# Package -> what it may import beside itself and the standard library.
ALLOWED = {
    "scheduler_svc": {
        *("pagewire", "grpc", "grpc_health", "grpc_reflection", "grpc_channelz", "google", "zmq"),
        *("tokenizers", "jinja2", "llguidance", "jwt", "cryptography", "pydantic", "pydantic_settings", "yaml"),
        *("structlog", "opentelemetry", "uvloop", "xds", "smg_grpc_proto"),
    },
    "gpu_worker": {
        *("pagewire", "pagewire_kernels", "google", "torch", "transformers", "safetensors", "gguf", "tokenizers"),
        *("llguidance", "zmq", "numpy", "pydantic", "pydantic_settings", "yaml", "structlog"),
        *("llmcompressor", "datasets"),
    },
    "pagewire_kernels": {"torch", "triton"},
    "pagewire_client": {"pagewire", "grpc", "google", "typing_extensions"},
}

FOLDERS = {
    "scheduler_svc": ROOT / "scheduler_svc",
    "gpu_worker": ROOT / "gpu_worker",
    "pagewire_kernels": ROOT / "kernels" / "pagewire_kernels",
    "pagewire_client": ROOT / "clients" / "python" / "pagewire_client",
}

CLIENT_EXTRAS = {"typer", "rich", "tqdm", "huggingface_hub", "yaml"}
CLIENT_EXTRAS |= {"fastapi", "starlette", "uvicorn", "pydantic", "pydantic_core"}

MESSAGES_ONLY_IN = {
    "scheduler_svc": ("worker_codec.py", "front_codec.py", "replies.py", "front/"),
    "gpu_worker": ("codec.py",),
}


def absolute(path: Path, node: ast.ImportFrom) -> str:
    """The dotted name that ``from ... import`` names, relative ones resolved from the file's place."""
    if not node.level:
        return node.module or ""
    package, folder = next((name, folder) for name, folder in FOLDERS.items() if path.is_relative_to(folder))
    parts = [package, *path.relative_to(folder).with_suffix("").parts][: -node.level]
    return ".".join([*parts, *([node.module] if node.module else [])])


def imports(path: Path, *, at_load: bool = False) -> Iterator[str]:
    """Dotted names that a module imports; ``at_load``: only those outside functions and type-checking blocks."""
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield absolute(path, node)
        elif at_load and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        elif at_load and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending.extend(node.orelse)
        else:
            pending.extend(ast.iter_child_nodes(node))


def modules(package: str) -> list[Path]:
    """Without what a compilation has copied, which stays there if it is interrupted."""
    return sorted(path for path in FOLDERS[package].rglob("*.py") if "__compiled__" not in path.parts)


def foreign(names: Iterator[str], allowed: set[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] not in allowed | sys.stdlib_module_names}


def test_the_core_imports_itself_and_pure_standard_library_only() -> None:
    paths = sorted((FOLDERS["scheduler_svc"] / "core").rglob("*.py"))
    assert paths
    wrong = {
        (path.name, name)
        for path in paths
        for name in imports(path)
        if name.split(".")[0] not in PURE and not name.startswith("scheduler_svc.core")
    }
    assert wrong == set()


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_only_what_its_line_allows(package: str) -> None:
    extras = CLIENT_EXTRAS if package == "pagewire_client" else set()
    wrong = {
        (str(path.relative_to(FOLDERS[package])), name)
        for path in modules(package)
        for name in foreign(imports(path), ALLOWED[package] | extras | {package})
    }
    assert wrong == set()


def test_the_client_loads_without_its_extras() -> None:
    inside = FOLDERS["pagewire_client"]
    library = [
        path
        for path in modules("pagewire_client")
        if path.relative_to(inside).parts[0] not in ("cli", "bench", "gateway")
    ]
    wrong = {
        (path.name, name)
        for path in library
        for name in foreign(imports(path, at_load=True), ALLOWED["pagewire_client"] | {"pagewire_client"})
    }
    assert wrong == set()


@pytest.mark.parametrize("package", sorted(MESSAGES_ONLY_IN))
def test_messages_are_imported_in_codecs_and_fronts_only(package: str) -> None:
    inside = FOLDERS[package]
    wrong = {
        (path.name, name)
        for path in modules(package)
        for name in imports(path)
        if name.split(".")[0] == "pagewire" and not str(path.relative_to(inside)).startswith(MESSAGES_ONLY_IN[package])
    }
    assert wrong == set()


def test_a_front_shares_only_hashes_and_columns_with_the_scheduler_process() -> None:
    shared = {
        f"scheduler_svc.{name}" for name in ("core.page_hash", "columns", "histogram", "log", "messages", "output_key")
    }
    wrong = {
        (path.name, name)
        for path in sorted((FOLDERS["scheduler_svc"] / "front").rglob("*.py"))
        for name in imports(path)
        if name.startswith("scheduler_svc") and not name.startswith("scheduler_svc.front") and name not in shared
    }
    assert wrong == set()


def load_all(package: str, skip: tuple[str, ...] = ()) -> str:
    """Source of a program that imports every module of a package and prints what was loaded."""
    return (
        "import importlib, pkgutil, sys\n"
        f"package = importlib.import_module({package!r})\n"
        "for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        f"    if not found.name.endswith('.__main__') and not found.name.startswith({skip!r}):\n"
        "        importlib.import_module(found.name)\n"
        "print('\\n'.join(name for name in sys.modules if '.' not in name))\n"
    )


def loaded(program: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_loading_the_whole_scheduler_loads_no_torch() -> None:
    names = loaded(load_all("scheduler_svc"))
    assert "scheduler_svc" in names
    heavy = {
        "torch",
        "triton",
        "transformers",
        "safetensors",
        "numpy",
        "gpu_worker",
        "pagewire_kernels",
        "pagewire_client",
    }
    assert names & heavy == set()


def test_loading_the_client_loads_no_service_and_no_extra() -> None:
    names = loaded(load_all("pagewire_client", skip=("pagewire_client.cli", "pagewire_client.gateway")))
    assert "pagewire_client" in names
    assert names & {"torch", "triton", "transformers", "scheduler_svc", "gpu_worker", "zmq", "typer", "rich"} == set()


@pytest.mark.parametrize("package", ["scheduler_svc/core", "scheduler_svc", "scheduler_svc/front", "gpu_worker"])
def test_the_map_of_files_names_each_once(package: str) -> None:
    table = (ROOT / "docs" / "architecture.md").read_text().split(f"| `{package}` | |\n", 1)[1].split("\n\n", 1)[0]
    files = [path.stem for path in (ROOT / package).glob("*.py") if not path.stem.startswith("__")]
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(files), "docs/architecture.md, Where things are"
