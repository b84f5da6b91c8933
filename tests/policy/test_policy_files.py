"""Whether the hub is asked for a policy: once, and in vain in one line."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from cotune.policy.local_policy import load_tokenizer
from cotune.policy.policy_files import only_local
from tests.helpers import raises_line
from tests.loopback import answering
from tests.policy.bigram import save
from tests.policy.tiny import CHAT_TEMPLATE

NOWHERE = "http://127.0.0.1:9"  # nothing listens there: refused at once


@pytest.fixture(autouse=True)
def _out_of_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def test_an_unreachable_hub_is_one_line_at_once(tmp_path: Path) -> None:
    with raises_line(match=r"load .org/model.: .*; name a folder"):
        load_tokenizer("org/model")
    # A folder makes no request.
    assert only_local(tmp_path)


def test_the_cache_is_used_where_the_hub_is_out_of_reach(tmp_path: Path) -> None:
    repository = tmp_path / "cache" / "models--org--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc", encoding="utf-8")
    save(repository / "snapshots" / "abc", {"a": 1.0}, CHAT_TEMPLATE)
    assert load_tokenizer("org/model").chat_template == CHAT_TEMPLATE


def test_a_hub_that_answers_is_asked_once_and_left_to_the_loader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths: list[str] = []

    def answer(path: str, _: object) -> tuple[int, object]:
        paths.append(path)
        return 503, {}

    with answering(answer, {}) as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        assert not only_local("org/model")
    assert len(paths) == 1
