import pytest

from cotune.contracts import LLMError
from cotune.records import Completion
from cotune.testing import ScriptedLLM


def test_scripted_llm_replies_in_order_and_keeps_the_prompts() -> None:
    llm = ScriptedLLM(["first", LLMError("down"), Completion("third", 3, 1)])
    assert llm.complete("a") == Completion("first")
    with pytest.raises(LLMError, match="down"):
        llm.complete("b")
    assert llm.complete("c") == Completion("third", 3, 1)
    with pytest.raises(AssertionError, match="asked 4 times, expected at most 3"):
        llm.complete("d")
    assert llm.prompts == ["a", "b", "c", "d"]
