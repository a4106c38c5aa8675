"""``python -m scheduler_svc.compilation``: compiles the hot modules with mypyc, for ``compiled.py`` to find.

``make setup`` and the image run it; it takes a minute, and no time if it has been done. mypyc comes with mypy, of the
extra ``dev`` or ``compiled``, and runs in a process of its own: nothing of it is loaded while the service runs.
Without mypyc or a C compiler there is nothing to do, and the service runs from its source. The folder gets its name
when it is complete, so whoever looks for it meanwhile finds nothing.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from scheduler_svc.compiled import KEPT, PACKAGE, SOURCES, folder
from scheduler_svc.compiled_source import for_compiler

_COMPILE_SECONDS = 900
# Of gcc: a third less time than mypyc's own choice, and nothing slower.
_LEVELS = {"MYPYC_OPT_LEVEL": "1", "MYPYC_DEBUG_LEVEL": "0"}
# What is imported but not compiled is looked at for its types only, and may be missing.
_FLAGS = ("--config-file=", "--follow-imports=silent", "--ignore-missing-imports", "--explicit-package-bases")


class CompilationError(Exception):
    """mypyc or the C compiler found a fault; the message is what it said."""


def missing() -> str | None:
    """What is not there to compile with."""
    if find_spec("mypyc") is None or find_spec("setuptools") is None:
        return "there is no mypyc"
    if shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is None:
        return "there is no C compiler"
    return None


def compile_modules() -> Path:
    """The folder of the compiled modules, made if it is not there or was made by another mypyc; the others go.

    Raises: CompilationError.
    """
    kept, by = folder(), _version()
    if not (kept / by).exists():
        KEPT.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT, prefix="making-") as scratch:
            made = _compile(Path(scratch))
            (made / by).touch()
            shutil.rmtree(kept, ignore_errors=True)
            made.rename(kept)
    for other in KEPT.iterdir():
        if other != kept and not other.name.startswith("making-"):
            shutil.rmtree(other)
    return kept


def _version() -> str:
    try:
        return f"mypy-{version('mypy')}"
    except PackageNotFoundError:
        return "mypy"


def _compile(scratch: Path) -> Path:
    """A folder with the modules alone. The sources are copied, so that nothing is left beside them."""
    source, made = scratch / "source", scratch / "made"
    shutil.copytree(PACKAGE, source / PACKAGE.name, ignore=shutil.ignore_patterns("__compiled__", "__pycache__"))
    paths = [f"{PACKAGE.name}/{name}" for name in SOURCES]
    for each in paths:
        (source / each).write_text(for_compiler((source / each).read_text()))
    done = subprocess.run(
        [sys.executable, "-m", "mypyc", *_FLAGS, *paths],
        cwd=source,
        env={**os.environ, **_LEVELS},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_COMPILE_SECONDS,
    )
    if done.returncode:
        raise CompilationError(done.stdout)
    for path in (*source.glob("*.so"), *source.glob(f"{PACKAGE.name}/**/*.so")):
        target = made / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    return made


def main() -> int:
    reason = missing()
    if reason is not None:
        print(f"the scheduler runs from its source: {reason}")
        return 0
    try:
        print(f"the scheduler's hot modules are compiled in {compile_modules()}")
    except CompilationError as error:
        print(f"the scheduler runs from its source: it cannot be compiled\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
