"""Episodes: token in, token out, and every way one can end."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.environments.base import TaskEnvironment
from cotune.errors import ConfigError
from cotune.rollout.drivers import run_episodes
from cotune.rollout.episode import new_episodes, responses, score_all
from cotune.types import (
    Action,
    Assignment,
    Limits,
    Prompt,
    Response,
    Sampling,
    StopReason,
    Task,
    Trajectory,
    Turn,
)
from tests.helpers import raises_line
from tests.scripted import CharacterCodec, Reply, ScriptedSampler, shown

CODEC = CharacterCodec()
EOS = CODEC.eos_id
TASK = Task("t", "q?", ("yes",))
PLAIN = Assignment(TASK, Prompt("do "), Prompt("do "), "i0", 0)
HINTED = Assignment(TASK, Prompt("do ", hint="hint "), Prompt("do "), "i0", 0)


class Echo(TaskEnvironment):
    """Answers a turn by what it says: "say X" is shown X, "end X" ends with the action X."""

    stop = (".",)

    def __init__(self) -> None:
        super().__init__({}, "do ")
        self.actions: list[Action] = []

    def messages(self, task: Task, prompt: Prompt) -> list[dict[str, str]]:
        return [{"role": "user", "content": prompt.hint + prompt.instruction + task.question}]

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        self.actions += actions
        return [self._response(action.text) for action in actions]

    def _response(self, text: str) -> Response:
        verb, _, argument = text.partition(" ")
        if verb == "end":
            return Response("never shown", done=True, action=argument)
        if verb == "break":
            return Response(failed=True, error="down")
        return Response(argument, action=verb, error="" if verb == "say" else "not understood")

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        return float(len(trajectory.own_text)), trajectory.turns[-1].text


def run(
    replies: Sequence[Reply],
    limits: Limits | None = None,
    assignment: Assignment = PLAIN,
    context_tokens: int | None = None,
) -> Trajectory:
    environment = Echo()
    episodes = new_episodes(
        [assignment], environment, CODEC, limits or Limits(), context_tokens=context_tokens
    )
    session = ScriptedSampler(CODEC, replies, logprob=-0.25).open(Sampling())
    return run_episodes(episodes, environment, session)[0]


def test_a_completion_is_what_was_emitted_and_what_was_observed_token_by_token() -> None:
    first, second = [*CODEC.encode("say <b>"), 7, EOS], CODEC.encode("end answer")
    result = run([first, second], assignment=HINTED)
    observation = CODEC.encode("<b>\x07")
    assert result.completion_ids == (*first, *observation, *second, EOS)
    assert result.mask == (1,) * len(first) + (0,) * len(observation) + (1,) * len(second) + (0,)
    assert result.logprobs == tuple(-0.25 * bit for bit in result.mask)
    assert result.turns == (Turn("say <b>\x07", "<b>\x07", "say"), Turn("end answer", "", "answer"))
    assert result.sampled_prompt_ids == tuple(CODEC.encode("hint do q?"))
    assert result.prompt_ids == tuple(CODEC.encode("do q?"))
    assert (result.stop, result.reward, result.answer) == (StopReason.ANSWERED, 18.0, "end answer")


def test_turns_that_are_empty_or_closed_or_cut() -> None:
    # An EOS of the policy's own is trained on and not doubled.
    rollout = run([[*CODEC.encode("end answer"), EOS]])
    assert rollout.completion_ids.count(EOS) == 1
    assert rollout.mask == (1,) * 11
    assert rollout.turns[0].text == "end answer"
    rollout = run([[], [EOS], "end answer"])
    assert [turn.text for turn in rollout.turns] == ["", "", "end answer"]
    assert rollout.turns[0].error == "not understood"
    assert sum(rollout.mask) == 1 + len("end answer")
    # Limits of a turn and of an observation are separate.
    rollout = run(["say abcdefgh", "end answer"], Limits(turn_tokens=8, observation_tokens=3))
    assert rollout.turns[0] == Turn("say abcd", "abc", "say")
    assert rollout.turns[1].text == "end answ"
    # An observation is cut to the room that is left.
    rollout = run(["say 4567"], Limits(trajectory_tokens=10))
    assert shown(rollout, 1) == "say 4567"
    assert rollout.turns[0].observation == "4"
    assert len(rollout.completion_ids) == 10


def test_what_policy_and_environment_are_told() -> None:
    # The policy sees prompt and completion so far as they were.
    environment = Echo()
    sampler = ScriptedSampler(CODEC, ["say abc", "end answer"])
    episodes = new_episodes([HINTED], environment, CODEC, Limits())
    run_episodes(episodes, environment, sampler.open(Sampling()))
    contexts = [CODEC.decode(requests[0].context_ids) for requests in sampler.requests]
    assert contexts == ["hint do q?", "hint do q?say abcabc"]
    assert environment.actions[1].turns == (Turn("say abc", "abc", "say"),)
    # The environment is told which turn is the last.
    for limits, context, last in (
        (Limits(turns=2), None, [False, True]),
        (Limits(trajectory_tokens=6), None, [True]),
        (Limits(), 5 + 6, [True]),
    ):
        environment = Echo()
        episodes = new_episodes([PLAIN], environment, CODEC, limits, context_tokens=context)
        sampler = ScriptedSampler(CODEC, ["say a", "say b"])
        run_episodes(episodes, environment, sampler.open(Sampling()))
        assert [action.last for action in environment.actions] == last
    # Episodes that are over leave the batch, and keep their places.
    environment = Echo()
    lengths = [3, 1, 2]

    def reply(row: int, turn: int, context: str) -> str:
        return "end answer" if turn + 1 == lengths[row - 10] else f"say {row}"

    sampler = ScriptedSampler(CODEC, reply)
    episodes = new_episodes([PLAIN] * 3, environment, CODEC, Limits(), first_row=10)
    rollouts = run_episodes(episodes, environment, sampler.open(Sampling()))
    assert [[r.row for r in requests] for requests in sampler.requests] == [
        [10, 11, 12],
        [10, 12],
        [10],
    ]
    assert [len(t.turns) for t in rollouts] == lengths
    assert [t.turns[0].observation for t in rollouts] == ["10", "", "12"]


@pytest.mark.parametrize(
    ("replies", "limits", "stop"),
    [
        (["end answer"], Limits(), StopReason.ANSWERED),
        (["say a", "end answer"], Limits(turns=2), StopReason.ANSWERED),
        (["say a", "say b"], Limits(turns=2), StopReason.TURN_LIMIT),
        (["say a", "end invalid"], Limits(turns=2), StopReason.TURN_LIMIT),
        # 9 tokens of room beside the closing EOS: own tokens fill it, or an observation does.
        (["say 45678 and more"], Limits(trajectory_tokens=10), StopReason.TOKEN_LIMIT),
        (["say 4567"], Limits(trajectory_tokens=10), StopReason.TOKEN_LIMIT),
        (["end what"], Limits(trajectory_tokens=9), StopReason.TOKEN_LIMIT),
        (["break"], Limits(), StopReason.ENVIRONMENT_ERROR),
        # A turn of 10 tokens that is full without EOS or a stop string was cut off.
        (["end answer and more"], Limits(turn_tokens=10), StopReason.TURN_TOKENS),
        (["say a", "say bcdefghij"], Limits(turns=2, turn_tokens=10), StopReason.TURN_TOKENS),
        (["say bcdefghij", "end answer."], Limits(turn_tokens=11), StopReason.ANSWERED),
        (["end it now."], Limits(turn_tokens=11), StopReason.ANSWERED),
        ([[*CODEC.encode("end x"), EOS]], Limits(turn_tokens=6), StopReason.ANSWERED),
    ],
)
def test_why_an_episode_ends(replies: list[Reply], limits: Limits, stop: StopReason) -> None:
    rollout = run(replies, limits)
    assert rollout.stop == stop
    assert len(rollout.completion_ids) <= limits.trajectory_tokens
    assert rollout.completion_ids[-1] == EOS


@pytest.mark.parametrize(("assignment", "prompt"), [(PLAIN, 5), (HINTED, 10)])
def test_the_policys_context_ends_an_episode(assignment: Assignment, prompt: int) -> None:
    rollout = run(["say 45678 and more"], assignment=assignment, context_tokens=prompt + 8)
    assert rollout.stop == StopReason.CONTEXT_LIMIT
    assert len(rollout.sampled_prompt_ids) + len(rollout.completion_ids) == prompt + 8
    tighter = Limits(trajectory_tokens=6)
    rollout = run(["say 4567"], tighter, assignment, context_tokens=prompt + 8)
    assert rollout.stop == StopReason.TOKEN_LIMIT


@pytest.mark.parametrize(
    ("limits", "context", "parts"),
    [
        (Limits(prompt_tokens=9), None, ("task t", "10 tokens", "limits.prompt_tokens is 9")),
        (Limits(), 11, ("task t", "10 tokens", "context holds 11")),
    ],
)
def test_a_prompt_without_room_is_refused(
    limits: Limits, context: int | None, parts: tuple[str, ...]
) -> None:
    with raises_line(*parts):
        run(["end answer"], limits, HINTED, context)


def test_nothing_is_rendered_twice_or_encoded_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    # Equal prompts are rendered once.
    prompts: list[str] = []

    class Rendering(CharacterCodec):
        def render(
            self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
        ) -> list[int]:
            prompts.append(messages[0]["content"])
            return super().render(messages)

    new_episodes([PLAIN, PLAIN, HINTED], Echo(), Rendering(), Limits())
    assert prompts == ["do q?", "hint do q?"]
    # A huge observation is not encoded whole.
    lengths: list[int] = []

    class Counting(CharacterCodec):
        def encode(self, text: str) -> list[int]:
            lengths.append(len(text))
            return super().encode(text)

    monkeypatch.setattr(Echo, "_response", lambda self, text: Response("x" * 10**6, action="say"))
    episodes = new_episodes([PLAIN], Echo(), Counting(), Limits(turns=1, observation_tokens=3))
    session = ScriptedSampler(CODEC, ["say a"]).open(Sampling())
    (rollout,) = run_episodes(episodes, Echo(), session)
    assert rollout.turns[0].observation == "xxx"
    assert max(lengths) == 3 * 256


turn = st.one_of(
    st.lists(st.sampled_from([EOS, *CODEC.encode("say end anwr")]), max_size=12),
    st.sampled_from(["say abc", "say", "end answer", "end x", "break"]),
)
limits = st.builds(
    Limits,
    turns=st.integers(1, 4),
    turn_tokens=st.integers(1, 12),
    observation_tokens=st.integers(1, 12),
    trajectory_tokens=st.integers(2, 30),
)


@given(st.lists(turn, min_size=4, max_size=4), limits, st.one_of(st.none(), st.integers(7, 40)))
def test_any_episode_is_consistent(
    replies: list[Reply], limits: Limits, context: int | None
) -> None:
    environment, sampler = Echo(), ScriptedSampler(CODEC, replies)
    emitted: list[int] = []
    episode = new_episodes([PLAIN], environment, CODEC, limits, context_tokens=context)[0]
    session = sampler.open(Sampling())
    while not episode.done:
        request = episode.request()
        assert 1 <= request.max_tokens <= limits.turn_tokens
        (sample,) = session.generate([request])
        emitted += sample.ids
        episode.observe(environment.respond([episode.advance(sample.ids, sample.logprobs)])[0])
    rollout = episode.trajectory()
    assert len(rollout.completion_ids) == len(rollout.mask) == len(rollout.logprobs)
    assert sum(rollout.mask) == rollout.generated_tokens == len(emitted)
    own_ids = [t for t, m in zip(rollout.completion_ids, rollout.mask, strict=True) if m]
    assert own_ids == emitted
    assert all(logp == 0.0 for logp, m in zip(rollout.logprobs, rollout.mask, strict=True) if not m)
    assert rollout.completion_ids[-1] == EOS
    assert 1 <= len(rollout.completion_ids) <= limits.trajectory_tokens
    assert context is None or len(rollout.prompt_ids) + len(rollout.completion_ids) <= context
    assert len(rollout.turns) <= limits.turns


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ((float("nan"), None), r"gave \(nan, None\) for task t\w*; .* a finite number"),
        ((None, None), r"gave \(None, None\) for task t"),
        (0.5, r"gave 0.5 for task t\w*; expected \(reward, answer\)"),
        ((1.0, ["7"]), r"gave \(1.0, \['7'\]\) for task t\w*; .*text or None"),
    ],
)
def test_a_score_that_is_no_finite_number_names_environment_and_task(value: Any, part: str) -> None:
    class Broken(Echo):
        def score(self, trajectory: Trajectory) -> Any:
            return value

    class BrokenBatch(Echo):
        def scores(self, trajectories: Sequence[Trajectory]) -> list[Any]:
            return [value for _ in trajectories]

    rollout = run(["end answer."])
    for environment, name in ((Broken(), "Broken.score"), (BrokenBatch(), "BrokenBatch.scores")):
        with pytest.raises(ConfigError, match=f"{name} {part}.*fix `{name.split('.')[1]}`"):
            score_all([rollout], environment)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "returned None for 1 actions; expected a list with a cotune.Response for each"),
        ([], r"returned \[\] for 1 actions"),
        (Response("x"), "returned Response.* for 1 actions"),
        ([Response("good"), "x"], "returned 'x' for 1 actions"),
    ],
)  # fmt: skip
def test_a_response_that_cannot_be_used_names_the_environment(result: Any, message: str) -> None:
    class Broken(Echo):
        def respond(self, actions: Sequence[Action]) -> Any:
            return result

    with raises_line(match=f"environment: Broken.respond {message}"):
        responses(Broken(), [Action(TASK, (Turn("x"),), "", False, 0)])
