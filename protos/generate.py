"""Generates the Python stubs beside the protos; run by `make protos`, and by the test that looks for drift.

usage: python protos/generate.py [OUT]     (default: beside the protos)
"""

import sys
from pathlib import Path

import google.rpc.status_pb2
import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).parent


def generate(out: Path) -> None:
    """Writes ``*_pb2.py``, ``*_pb2.pyi`` and, for files with services, ``*_pb2_grpc.py`` under ``out``."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    googleapis = Path(google.rpc.status_pb2.__file__).parents[2]
    for path in sorted((ROOT / "pagewire").rglob("*.proto")):
        name = str(path.relative_to(ROOT))
        args = ["protoc", f"-I{ROOT}", f"-I{googleapis}", f"-I{well_known}", f"--python_out={out}", f"--pyi_out={out}"]
        if "\nservice " in path.read_text():
            args.append(f"--grpc_python_out={out}")
        if protoc.main([*args, name]) != 0:
            raise SystemExit(f"protoc failed on {name}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
