"""Fetches a model by its Hugging Face hub id, through huggingface_hub (extra ``cli``) and its cache.

Takes safetensors, JSON and Jinja files only: pickled weights and code never reach this machine.
"""

from __future__ import annotations

import re
from pathlib import Path

from .errors import FetchError

ALLOWED_PATTERNS = ["*.safetensors", "*.json", "*.jinja"]
DENIED_PATTERNS = ["*.bin", "*.py", "*.pt", "*.pth", "*.pkl"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")


def is_hub_id(name: str) -> bool:
    """Whether a name has the form ``owner/name`` or ``owner/name@revision``."""
    return _HUB_ID.fullmatch(name) is not None


def fetch_from_hub(name: str) -> Path:
    """Directory with the model's files, from the hub or its local cache; shows progress bars. Raises: FetchError."""
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise FetchError('hub ids need huggingface_hub: pip install ".[cli]" in a checkout') from None
    repo_id, _, revision = name.partition("@")
    try:
        path = snapshot_download(
            repo_id, revision=revision or None, allow_patterns=ALLOWED_PATTERNS, ignore_patterns=DENIED_PATTERNS
        )
    except errors.GatedRepoError:
        raise FetchError(f"{name} is gated: accept its terms on the hub and log in with `hf auth login`") from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise FetchError(f"the hub has no model {name}, or it is private") from None
    except errors.LocalEntryNotFoundError:
        raise FetchError(
            f"{name} is not a local path and not in the hub's cache, and the hub cannot be reached; "
            "give a model directory, a .gguf file, or nothing for the embedded model"
        ) from None
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        raise FetchError(f"cannot fetch {name} from the hub: {str(error).splitlines()[0]}") from None
    if not any(Path(path).glob("*.safetensors")):
        raise FetchError(f"{name} has no safetensors weights; other formats are not loaded")
    return Path(path)
