"""What holds for the repository as a whole: layout, words, documents and commands."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pagewire_client
import pytest

from gpu_worker.config import WorkerConfig
from scheduler_svc.config import SchedulerConfig

ROOT = Path(__file__).parents[2]
PACKAGES = ("scheduler_svc", "gpu_worker", "kernels/pagewire_kernels", "clients/python/pagewire_client")
PLAIN_FOLDERS = ("kernels", "protos", "clients", "clients/python", "deploy", "docs")
TARGETS = ("setup", "demo", "serve", "check", "test", "test-gpu", "bench", "soak", "protos", "clean")


def own_files() -> list[Path]:
    """Files of the project: what git knows or would add, else all but hidden folders."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if listed.returncode == 0:
        paths = [ROOT / line for line in listed.stdout.splitlines()]
    else:
        hidden = re.compile(r"(^|/)(\.[^/]+|__pycache__)(/|$)")
        paths = [path for path in ROOT.rglob("*") if not hidden.search(str(path.relative_to(ROOT)))]
    return sorted(path for path in paths if path.is_file())


def python_files() -> list[Path]:
    return [path for path in own_files() if path.suffix == ".py" and not path.stem.endswith(("_pb2", "_pb2_grpc"))]


def package_files() -> list[Path]:
    return [path for path in python_files() if str(path.relative_to(ROOT)).startswith(PACKAGES)]


def names_defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_nothing_unpickles_or_evaluates_what_it_was_sent() -> None:
    modules = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}
    wrong = []
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            imported: list[str] = []
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                imported = [node.module or ""]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
                wrong.append((path.name, node.func.id))
            wrong += [(path.name, name) for name in imported if name.split(".")[0] in modules]
    assert wrong == []


def test_tests_and_the_outer_folders_are_not_packages() -> None:
    # A package named `kernels` would shadow the one transformers looks for when it loads a model.
    assert [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("__init__.py")] == []
    assert [folder for folder in PLAIN_FOLDERS if (ROOT / folder / "__init__.py").exists()] == []


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_no_file_tells_of_the_machine_it_was_written_on() -> None:
    here = str(ROOT)
    home = re.compile(r"/(?:home|Users)/[a-z]\w*/|/root/\.")
    wrong = []
    for path in own_files():
        if path.suffix in (".gguf", ".safetensors", ".png", ".bin", ".svg"):
            continue
        text = path.read_text(errors="replace")
        if (len(ROOT.parts) > 2 and here + "/" in text) or home.search(text):
            wrong.append(str(path.relative_to(ROOT)))
    assert wrong == []


def test_no_file_waits_to_be_finished() -> None:
    words = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b|NotImpl" + "ementedError")
    written = (".proto", ".md", ".toml", ".yml", ".yaml")
    texts = python_files() + [path for path in own_files() if path.suffix in written]
    assert [str(path.relative_to(ROOT)) for path in texts if words.search(path.read_text(errors="replace"))] == []


def test_packages_use_the_words_of_the_glossary() -> None:
    vague = re.compile(r"(?:Manager|Helper|Utils?|Base|Info|Data)$")
    block = re.compile(r"(?:^|_)block_(?:tables?|ids?|pool|hash(?:es)?)$|^num_blocks$")
    wrong = []
    for path in package_files():
        tree = ast.parse(path.read_text())
        classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        wrong += [(path.name, name) for name in classes if vague.search(name)]
        wrong += [(path.name, name) for name in names_defined(tree) if block.search(name)]
        if re.search(r"(?:^|_)(?:utils?|helpers?|manager|misc|common)$", path.stem):
            wrong.append((path.name, path.stem))
    assert wrong == []


def test_every_module_says_what_it_is_for() -> None:
    files = [path for path in package_files() if path.read_text().strip()]
    assert [path.name for path in files if ast.get_docstring(ast.parse(path.read_text())) is None] == []


@pytest.mark.parametrize("target", TARGETS)
def test_the_makefile_has_the_target(target: str) -> None:
    assert re.search(rf"^{target}:.*## \w", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_ci_runs_the_two_commands_of_the_readme() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    readme = (ROOT / "README.md").read_text()
    assert "set -euo pipefail" in ci
    for command in ("make check", "make test"):
        assert re.search(rf"^{command}\b", ci, re.MULTILINE)
        assert command in readme
    assert "make demo" in readme
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_constraints_are_exact_and_name_no_host() -> None:
    lines = [line.strip() for line in (ROOT / "constraints-cpu.txt").read_text().splitlines()]
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", pin)] == []


def test_every_direct_dependency_is_constrained() -> None:
    pins = {
        re.sub(r"[-_.]+", "-", line.split("==")[0]).lower()
        for line in (ROOT / "constraints-cpu.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    text = (ROOT / "pyproject.toml").read_text().split("[project.scripts]")[0]
    names = re.findall(r'"([A-Za-z][A-Za-z0-9._-]*)(?:[<>=!~;][^"]*)?"', text.split("dependencies = ", 1)[1])
    wanted = {re.sub(r"[-_.]+", "-", name).lower() for name in names} - {"pagewire"}
    wanted -= {"llmcompressor"}  # the extra "quantize" has an environment of its own
    assert sorted(wanted - pins) == []


def test_links_in_the_documents_lead_somewhere() -> None:
    wrong = []
    for path in own_files():
        if path.suffix != ".md":
            continue
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text):
            target = link.split("#")[0]
            if target and "://" not in target and not (path.parent / target).exists():
                wrong.append((str(path.relative_to(ROOT)), link))
    assert wrong == []


def test_adrs_have_numbers_of_their_own_and_are_listed_in_order() -> None:
    names = sorted(path.name for path in (ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert len({name[:4] for name in names}) == len(names)
    assert re.findall(r"^\| \[\d{4}\]\((.+?)\)", (ROOT / "docs" / "adr" / "README.md").read_text(), re.M) == names


def test_the_readmes_quick_start_is_short() -> None:
    section = (ROOT / "README.md").read_text().split("## Quick start", 1)[1].split("\n## ", 1)[0]
    assert len([line for line in section.splitlines() if line.strip()]) <= 20


def test_every_reason_of_an_error_is_documented() -> None:
    tree = ast.parse((ROOT / "scheduler_svc" / "front" / "errors.py").read_text())
    (reasons,) = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "Reason"]
    names = [node.targets[0].id for node in reasons.body if isinstance(node, ast.Assign)]  # type: ignore[attr-defined]
    text = (ROOT / "docs" / "api.md").read_text()
    assert names
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_method_of_the_contract_is_listed_as_built_or_not() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    for service in ("generation", "model"):
        proto = (ROOT / "protos" / "pagewire" / "v1" / f"{service}.proto").read_text()
        assert [name for name in re.findall(r"rpc (\w+)\(", proto) if f"`{name}`" not in text] == []


def test_every_public_name_of_the_client_is_listed() -> None:
    listed = set(re.findall(r"`([A-Za-z]+)`", (ROOT / "docs" / "api.md").read_text()))
    assert set(pagewire_client.__all__) - listed == set()


def test_every_flag_is_documented() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    flags = {
        name.replace("_", "-")
        for settings in (SchedulerConfig, WorkerConfig)
        for name in settings.model_fields
        if name != "model"
    }
    assert sorted(flag for flag in flags if f"--{flag}`" not in text and f"--[no-]{flag}`" not in text) == []
