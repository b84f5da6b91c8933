import pytest

from cotune.errors import LLMError
from cotune.testing import CharacterCodec, ScriptedLLM, ScriptedSampler
from cotune.types import Completion, Sample, SampleRequest, Sampling


def test_scripted_llm_replies_in_order_and_keeps_the_prompts() -> None:
    llm = ScriptedLLM(["first", LLMError("down"), Completion("third", 3, 1)])
    assert llm.complete("a") == Completion("first")
    with pytest.raises(LLMError, match="down"):
        llm.complete("b")
    assert llm.complete("c") == Completion("third", 3, 1)
    with pytest.raises(AssertionError, match="asked 4 times, expected at most 3"):
        llm.complete("d")
    assert llm.prompts == ["a", "b", "c", "d"]


def test_a_scripted_sampler_writes_its_replies_turn_by_turn_within_the_room_left() -> None:
    codec = CharacterCodec()
    sampler = ScriptedSampler(codec, ["abc", [*codec.encode("d"), codec.eos_id]], logprob=-0.5)
    session = sampler.open(Sampling(seed=3))
    first = session.generate([SampleRequest(0, (), 2), SampleRequest(1, (), 9)])
    assert [codec.decode(sample.ids) for sample in first] == ["ab", "abc"]
    assert session.generate([SampleRequest(1, (), 9)]) == [Sample((100, 0), (-0.5, -0.5))]
    with pytest.raises(AssertionError, match=r"asked for turn 3, expected at most 2"):
        session.generate([SampleRequest(1, (), 9)])
    again = sampler.open(Sampling(seed=4)).generate([SampleRequest(1, (), 9)])  # starts anew
    assert codec.decode(again[0].ids) == "abc"
    assert [sampling.seed for sampling in sampler.opened] == [3, 4]


def test_a_scripted_sampler_may_decide_by_row_turn_and_context() -> None:
    sampler = ScriptedSampler(CharacterCodec(), lambda row, turn, context: f"{row}{turn}{context}")
    session = sampler.open(Sampling())
    (sample,) = session.generate([SampleRequest(7, (120, 121), 9)])
    assert CharacterCodec().decode(sample.ids) == "70xy"
