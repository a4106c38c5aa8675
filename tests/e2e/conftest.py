"""The real model and what transformers makes of it, once a session."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pagewire_client.fetch import fetch_embedded
from support.e2e_prompts import CASES, LONG_CASES
from support.reference_outputs import COMPUTE_SECONDS, Reference, references
from support.stack import FLOAT32, Stack


@pytest.fixture(scope="session")
def gguf() -> Path:
    """The embedded model, from the user's cache or fetched."""
    return fetch_embedded()


@pytest.fixture(scope="session")
def all_references(gguf: Path) -> list[Reference]:
    """References of all cases; computed by transformers when they are not in the cache."""
    return references(gguf, CASES + LONG_CASES)


@pytest.fixture(scope="session")
def reference(all_references: list[Reference]) -> list[Reference]:
    """References of the 32 cases."""
    return all_references[: len(CASES)]


@pytest.fixture(scope="session")
def long_reference(all_references: list[Reference]) -> list[Reference]:
    """References of the long cases."""
    return all_references[len(CASES) :]


@pytest.fixture(scope="session")
def roomy(gguf: Path) -> Iterator[Stack]:
    """A stack with every default, in float32; tests that use it leave it as it was."""
    with Stack(gguf, worker=FLOAT32) as stack:
        yield stack


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test to run may have to wait for transformers as well."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(120 + COMPUTE_SECONDS))
