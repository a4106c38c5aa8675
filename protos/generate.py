"""Generates the Python stubs beside the protos; run by `make protos`, and by the checks that look for drift.

usage: python protos/generate.py [--check | OUT]     (default: beside the protos)

Beside the stubs stands `pagewire.binpb`, the public API as a descriptor set with all it imports: for Envoy.

--check writes nothing: it generates into a temporary folder, names every committed file that differs, is missing or has
no proto any more, and exits with 1 if there is one.
"""

import sys
import tempfile
from pathlib import Path

import google.rpc.status_pb2
import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).parent
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", ".binpb")
DESCRIPTORS = "pagewire/v1/pagewire.binpb"


def generate(out: Path) -> None:
    """Writes ``*_pb2.py``, ``*_pb2.pyi``, ``*_pb2_grpc.py`` for services, and the descriptors under ``out``."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    googleapis = Path(google.rpc.status_pb2.__file__).parents[2]
    includes = [f"-I{ROOT}", f"-I{googleapis}", f"-I{well_known}"]
    for path in sorted((ROOT / "pagewire").rglob("*.proto")):
        name = str(path.relative_to(ROOT))
        args = ["protoc", *includes, f"--python_out={out}", f"--pyi_out={out}"]
        if "\nservice " in path.read_text():
            args.append(f"--grpc_python_out={out}")
        if protoc.main([*args, name]) != 0:
            raise SystemExit(f"protoc failed on {name}")
    public = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "pagewire/v1").glob("*.proto"))
    public.append("google/rpc/error_details.proto")  # Envoy turns details of errors into JSON only if it knows them
    output = ["--include_imports", f"--descriptor_set_out={out / DESCRIPTORS}"]
    if protoc.main(["protoc", *includes, *output, *public]) != 0:
        raise SystemExit("protoc failed on the descriptor set")


def stubs(root: Path) -> dict[str, bytes]:
    """Every stub under ``root`` by its path relative to it."""
    files = (path for path in (root / "pagewire").rglob("*") if path.name.endswith(SUFFIXES))
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def drifted() -> list[str]:
    """Stubs that are not byte for byte what the protos give, missing and left-over ones included."""
    with tempfile.TemporaryDirectory() as out:
        generate(Path(out))
        fresh = stubs(Path(out))
    committed = stubs(ROOT)
    return sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))


def main(args: list[str]) -> None:
    if args != ["--check"]:
        generate(Path(args[0]) if args else ROOT)
    elif names := drifted():
        raise SystemExit("not what the protos give (run `make protos`):\n  " + "\n  ".join(names))


if __name__ == "__main__":
    main(sys.argv[1:])
