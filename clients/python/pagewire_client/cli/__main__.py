"""Entry point of ``pagewire`` and ``python -m pagewire_client.cli``."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line and exits."""
    try:
        from .app import app
    except ImportError as error:
        missing = error.name or "a package"
        print(f'error: {missing} is not installed: pip install ".[cli]" in a checkout', file=sys.stderr)
        sys.exit(1)
    app(prog_name="pagewire")


if __name__ == "__main__":
    main()
