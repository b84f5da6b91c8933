"""A fixture of several test files."""

from collections.abc import Iterator

import pytest

from tests.engines.trl.fake_vllm import Engine, install
from tests.engines.trl.vllm_setup import no_traces
from tests.policy.tiny import tiny_tokenizer


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The fake vLLM of the tiny policy."""
    with no_traces():
        yield install(tiny_tokenizer(), monkeypatch.setattr)
