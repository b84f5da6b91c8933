"""Dialogues of a local policy, token for token, and of an endpoint, message for message."""

import threading
from collections.abc import Mapping, Sequence

import pytest

from cotune.errors import BudgetError, LLMError
from cotune.experiments.baselines.chat import Ask, EndpointChat, PolicyChat, Reply, ended
from cotune.llm.client import OpenAIClient, OpenAIOptions
from cotune.run.ledger import Ledger
from cotune.testing import CharacterCodec, ScriptedSampler
from cotune.types import Completion, Limits
from tests.endpoint import endpoint

STOP = ("</search>", "</answer>")


def said(text: str, stop: tuple[str, ...] = ()) -> Ask:
    return Ask(({"role": "user", "content": text},), stop)


# ---- a local policy


def test_a_policy_answers_greedily_and_in_order() -> None:
    codec = CharacterCodec()
    sampler = ScriptedSampler(codec, lambda row, turn, context: f"to {context}")
    chat = PolicyChat(codec, sampler, Limits(turn_tokens=8), rows_per_call=2)
    asks = [said("a"), said("b", STOP), said("c"), said("d"), said("e", STOP)]
    replies = chat.ask(asks)
    assert [reply.text for reply in replies] == ["to a", "to b", "to c", "to d", "to e"]
    assert {sampling.temperature for sampling in sampler.opened} == {0.0}
    # A call has one set of stop strings and at most two rows.
    assert [(s.stop, len(r)) for s, r in zip(sampler.opened, sampler.requests, strict=True)] == [
        ((), 2),
        ((), 1),
        (STOP, 2),
    ]
    assert {request.max_tokens for call in sampler.requests for request in call} == {8}


def test_a_policy_goes_on_from_its_own_tokens() -> None:
    codec = CharacterCodec()
    sampler = ScriptedSampler(codec, [[ord("h"), ord("i"), codec.eos_id]])
    chat = PolicyChat(codec, sampler, Limits())
    ids = (104, 0x2603)
    (reply,) = chat.ask([Ask(said("q").messages, (), ((Reply("other", 2, ids), "[seen]"),))])
    assert reply.prompt_ids == (ord("q"), *ids, *codec.encode("[seen]"))
    # The EOS is the policy's own token, but none of its text.
    assert (reply.text, reply.tokens, reply.ids[-1]) == ("hi", 3, codec.eos_id)


def test_a_policy_loses_the_beginning_of_what_does_not_fit() -> None:
    codec = CharacterCodec()
    sampler = ScriptedSampler(codec, ["x"])
    limits = Limits(prompt_tokens=4, trajectory_tokens=9, turn_tokens=6)
    chat = PolicyChat(codec, sampler, limits)
    assert chat.room == 7
    assert chat.size(said("0123456789")) == 10
    (reply,) = chat.ask([said("0123456789")])
    assert codec.decode(reply.prompt_ids) == "3456789"


def test_a_turn_leaves_room_for_a_prompt_where_the_limits_are_odd() -> None:
    codec = CharacterCodec()
    limits = Limits(prompt_tokens=4, trajectory_tokens=3, turn_tokens=500)
    assert PolicyChat(codec, ScriptedSampler(codec, ["x"]), limits).room == 5


# ---- an endpoint


class Recorder:
    """A client that keeps what it is sent and answers by a function of the last message."""

    def __init__(self, completion: Completion | None = None) -> None:
        self.sent: list[tuple[Sequence[Mapping[str, str]], tuple[str, ...]]] = []
        self._completion, self._lock = completion, threading.Lock()

    def chat(self, messages: Sequence[Mapping[str, str]], stop: Sequence[str] = ()) -> Completion:
        with self._lock:
            self.sent.append((messages, tuple(stop)))
        return self._completion or Completion(f"to {messages[-1]['content']}", 7, 3)


def test_an_endpoint_is_shown_a_dialogue() -> None:
    client = Recorder()
    written = ((Reply("<search> x </search>"), "\n<information>\n(1) y\n</information>\n"),)
    (reply,) = EndpointChat(client, Limits()).ask([Ask(said("q").messages, STOP, written)])
    ((messages, stop),) = client.sent
    assert [(m["role"], m["content"]) for m in messages] == [
        ("user", "q"),
        ("assistant", "<search> x </search>"),
        ("user", "<information>\n(1) y\n</information>"),
    ]
    assert stop == STOP
    assert (reply.tokens, reply.ids) == (3, ())


def test_replies_come_in_the_order_of_the_questions() -> None:
    replies = EndpointChat(Recorder(), Limits()).ask([said(str(i)) for i in range(40)])
    assert [reply.text for reply in replies] == [f"to {i}" for i in range(40)]


def test_an_endpoint_that_fails_is_no_wrong_answer() -> None:
    class Down:
        def chat(self, messages: object, stop: object = ()) -> Completion:
            raise LLMError("no reply")

    with pytest.raises(LLMError, match="no reply"):
        EndpointChat(Down(), Limits()).ask([said("q")] * 3)


def test_a_real_endpoint_is_metered_and_kept_to_its_budget() -> None:
    options = OpenAIOptions(
        model="m", api_key_env=None, max_tokens=5, price_per_million_completion_tokens=1e6
    )
    with Ledger(":memory:") as ledger, endpoint(lambda text: f"{text} <answer> x") as url:
        ledger.begin_attempt(None)

        def chat(budget: float) -> EndpointChat:
            given = OpenAIOptions(**(vars(options) | {"base_url": url, "budget": budget}))
            return EndpointChat(OpenAIClient(given, ledger), Limits())

        replies = chat(budget=100.0).ask([said("a", STOP), said("b")])
        assert [reply.text for reply in replies] == ["a <answer> x</answer>", "b <answer> x"]
        assert [reply.tokens for reply in replies] == [5, 5]
        totals = ledger.totals()
        assert (totals.llm_calls, totals.llm_completion_tokens, totals.money) == (2, 10, 10.0)
        with pytest.raises(BudgetError):
            chat(budget=10.0).ask([said("c")])
    assert ledger.attempt == 1


@pytest.mark.parametrize(
    ("text", "truncated", "whole"),
    [
        ("<search> x", False, "<search> x</search>"),
        ("<search> x", True, "<search> x"),
        ("<think> y </think> <answer> x ", False, "<think> y </think> <answer> x </answer>"),
        ("<search> a <answer> b", False, "<search> a <answer> b</answer>"),
        ("<search> x </search> I go on", False, "<search> x </search>"),
        ("<answer> x </answer> <search> y </search>", False, "<answer> x </answer>"),
        ("nothing", False, "nothing"),
    ],
)
def test_replies_end_with_their_stop_string(text: str, truncated: bool, whole: str) -> None:
    assert ended(text, STOP, truncated) == whole


def test_without_stop_strings_a_reply_is_left_alone() -> None:
    assert ended("<search> x", ()) == "<search> x"
