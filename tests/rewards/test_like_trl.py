"""Reward functions get from cotune what TRL's own trainer gives them, for the same replies of a policy."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer

from cotune.data.trl_data import tasks_of
from cotune.environments.base import SingleTurnEnvironment, TaskEnvironment
from cotune.environments.prompt_in_data import PromptInData
from cotune.environments.tools import ToolEnvironment
from cotune.environments.trl_factory import from_trl
from cotune.policy.codec import HFCodec, PlainCodec, check_turns
from cotune.rewards.functions import WeightedReward
from cotune.rewards.reward_model import rewards_of_trainer
from cotune.rollout.drivers import run_episodes
from cotune.rollout.episode import new_episodes
from cotune.types import Assignment, Limits, Prompt, Sampling, Task
from tests.examples.three_tools import FOLDER
from tests.helpers import raises_line, tool_call
from tests.scripted import ScriptedSampler

POLICY = FOLDER / "policy"
SYSTEM = "Use a tool."
DONE = "<|im_end|>"


def add(a: int, b: int) -> Any:
    """Adds.

    Args:
        a: one.
        b: another.
    """
    if a == 0:
        raise KeyError("zero")
    return {"sum": a + b, "of": [a, b], "note": None}


async def later(word: str) -> str:
    """Says it later.

    Args:
        word: what.
    """
    return f"{word}, later"


class Counter:
    """An environment as TRL's documentation has them."""

    def reset(self, **columns: Any) -> str:
        self.count = 0
        return f"Count to {columns['answer']}."

    def step(self, by: int) -> int:
        """Counts.

        Args:
            by: how far.
        """
        self.count += by
        return self.count

    def get_reward(self) -> float | None:
        return float(self.count) if self.count else None


ADD = tool_call("add", a=1, b=2)
LATER = tool_call("later", word="oak")
TOOL_REPLIES: list[list[str]] = [
    ["It is 7." + DONE],
    [f"I add.{ADD}{DONE}", "3" + DONE],
    [f"{LATER}{ADD}{DONE}", "both" + DONE],
    [tool_call("add", a="1") + DONE, "none" + DONE],
    [tool_call("add", a=0, b=2) + DONE, ADD + DONE, "3" + DONE],
    [tool_call("nothing") + DONE, "sorry" + DONE],
    ['<tool_call>\n{"name": "add", "arg\n</tool_call>' + DONE],
    [f"<think>Hm.</think>\n\n{ADD}{DONE}", "<think>So.</think> 3 " + DONE],
    [ADD + DONE, ADD + DONE, ADD + DONE],
    ["it goes on and"],
    ["oak<|endoftext|>" + DONE],
]
"""The policy's turns in each rollout."""
STEP = tool_call("step", by=2)
COUNTER_REPLIES = [
    [STEP + DONE, STEP + DONE, "4" + DONE],
    ["no" + DONE],
    [tool_call("step", by="x") + DONE, "0" + DONE],
]


@dataclass
class Recorder:
    """A reward function that keeps what it was given."""

    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self, **kwargs: Any) -> list[float | None]:
        self.kwargs = kwargs
        kwargs["log_metric"]("seen", len(kwargs["completions"]))
        return [None if i % 3 == 1 else float(i) for i in range(len(kwargs["completions"]))]


def structure(completions: Sequence[Any], **_: Any) -> list[float]:
    """Return 0.1 for a call that was answered before the last message, as TRL's example of an agent does."""
    return [
        0.1
        if any(m.get("tool_calls") for m in c) and c[-1]["role"] == "assistant" and len(c) > 2
        else 0.0
        for c in completions
    ]


async def judge(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float | None]:
    return [None if a == "1" else 1.0 for a in answer]


def exact(completions: Sequence[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)


class Scripted(GRPOTrainer):
    """TRL's trainer with a scripted policy."""

    replies: list[list[str]]

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **again: Any) -> Any:
        if not again:
            self._starts = [list(ids) for ids in prompt_ids]
            self._remaining = [list(turns) for turns in self.replies]
        rows = [
            next(row for row, start in enumerate(self._starts) if ids[: len(start)] == start)
            for ids in prompt_ids
        ]
        return [encode(self.processing_class, self._remaining[row].pop(0)) for row in rows], None


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def of_trl(
    tmp_path: Path,
    replies: list[list[str]],
    rows: list[dict[str, Any]],
    functions: list[Any],
    **options: Any,
) -> list[list[float]]:
    """Return TRL's rewards per function, NaN for None."""
    args = GRPOConfig(
        str(tmp_path), per_device_train_batch_size=len(replies), num_generations=len(replies),
        max_completion_length=400, max_tool_calling_iterations=2, report_to="none", use_cpu=True, bf16=False,
    )  # fmt: skip
    trainer = Scripted(
        str(POLICY),
        reward_funcs=functions,
        args=args,
        train_dataset=Dataset.from_list(rows),
        **options,
    )
    trainer.replies = replies
    values: list[Any] = []
    calculate = trainer._calculate_rewards
    trainer._calculate_rewards = lambda *a: values.append(calculate(*a)) or values[0]  # type: ignore[method-assign]
    trainer._generate_and_score_completions(rows)
    return values[0].tolist()


def of_cotune(
    environment: TaskEnvironment, replies: list[list[str]], functions: list[Any]
) -> list[list[float | None]]:
    args = SimpleNamespace(
        reward_weights=None, trust_remote_code=False, model_init_kwargs=None, chat_template_kwargs=None,
        per_device_train_batch_size=4, steps_per_generation=1, device="cpu",
    )  # fmt: skip
    rewards = rewards_of_trainer(functions, None, args)
    chat, tokenizer = environment.tasks("train")[0].chat, tokenizer_for(environment)
    codec = HFCodec(tokenizer) if chat else PlainCodec(tokenizer)
    assert rewards is not None
    prompt = Prompt(SYSTEM)
    assignments = [Assignment(t, prompt, prompt, "i0", 0) for t in environment.tasks("train")]
    limits = Limits(turns=3, turn_tokens=400, observation_tokens=400, trajectory_tokens=400)
    episodes = new_episodes(assignments, environment, codec, limits)
    sampler = ScriptedSampler(codec, lambda row, turn, _: encode(tokenizer, replies[row][turn]))
    rollouts = run_episodes(episodes, environment, sampler.open(Sampling()), rewards)
    return [[t.parts.get(name) for name in rewards.weights(environment)] for t in rollouts]


def classifier(folder: Path) -> str:
    """Save a model that scores texts."""
    model = AutoModelForSequenceClassification.from_pretrained(POLICY, num_labels=1)
    torch.nn.init.normal_(model.score.weight, generator=torch.Generator().manual_seed(0))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(POLICY).save_pretrained(folder)
    return str(folder)


def rows_of(count: int) -> list[dict[str, Any]]:
    first = [{"role": "system", "content": SYSTEM}]
    return [
        {"prompt": [*first, {"role": "user", "content": f"q{i}?"}], "answer": str(i)}
        for i in range(count)
    ]


def tasks(rows: list[dict[str, Any]]) -> dict[str, list[Task]]:
    return {"train": tasks_of(rows, "train", SYSTEM)}


def without_nan(values: list[list[float]]) -> list[list[float | None]]:
    return [[None if value != value else pytest.approx(value) for value in row] for row in values]


def check(recorder: Recorder, trl_recorder: Recorder) -> None:
    for name in ("prompts", "completions", "completion_ids", "answer"):
        assert recorder.kwargs[name] == trl_recorder.kwargs[name]
    added = {"prompt", "ground_truths"}
    assert recorder.kwargs.keys() - added == trl_recorder.kwargs.keys()


def tokenizer_for(environment: TaskEnvironment) -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    check_turns(environment, HFCodec(tokenizer))
    return tokenizer


LAYOUT = PromptInData(text=SYSTEM)


def test_tools(tmp_path: Path) -> None:
    rows = rows_of(len(TOOL_REPLIES))
    trl_recorder, recorder = Recorder(), Recorder()
    functions = [structure, judge]
    expected = of_trl(tmp_path, TOOL_REPLIES, rows, [trl_recorder, *functions], tools=[add, later])
    environment = ToolEnvironment([add, later], tasks(rows), SYSTEM, LAYOUT)
    values = of_cotune(environment, TOOL_REPLIES, [recorder, *functions])
    check(recorder, trl_recorder)
    assert values == without_nan(expected)
    assert {row[1] for row in values} == {0.0, 0.1}


@pytest.mark.filterwarnings("ignore:You are using 'environment_factory'")
def test_environments(tmp_path: Path) -> None:
    rows = rows_of(len(COUNTER_REPLIES))
    trl_recorder, recorder = Recorder(), Recorder()
    expected = of_trl(tmp_path, COUNTER_REPLIES, rows, [trl_recorder], environment_factory=Counter)
    environment = from_trl(Counter, tasks(rows), SYSTEM, LAYOUT)
    values = of_cotune(environment, COUNTER_REPLIES, [recorder])
    counts = [[env.count for env in r.kwargs.pop("environments")] for r in (recorder, trl_recorder)]
    check(recorder, trl_recorder)
    assert counts == [[4, 0, 0]] * 2
    assert values == without_nan(expected) == [[0.0, 4.0], [None, None], [2.0, None]]


@pytest.mark.parametrize("plain", [False, True])
def test_questions_without_tools(plain: bool, tmp_path: Path) -> None:
    replies = [[text] for (text, *_) in TOOL_REPLIES]
    rows = rows_of(len(replies))
    if plain:
        rows = [row | {"prompt": f"{SYSTEM} q{i}? <|im_start|>"} for i, row in enumerate(rows)]
    trl_recorder, recorder, model = Recorder(), Recorder(), classifier(tmp_path / "judge")
    expected = of_trl(tmp_path, replies, rows, [trl_recorder, model])
    environment = SingleTurnEnvironment(tasks(rows), SYSTEM, LAYOUT)
    values = of_cotune(environment, replies, [recorder, model])
    check(recorder, trl_recorder)
    assert values == without_nan(expected)


def test_models_as_rewards(tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(POLICY, num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    functions = [model, "exact_match", exact, classifier(tmp_path / "judge")]
    args = GRPOConfig(str(tmp_path), reward_weights=[1, 2, 3, 4], use_cpu=True, bf16=False)
    rewards = rewards_of_trainer(functions, [tokenizer, None, None, None], args)
    assert rewards is not None
    weights = rewards.weights(SingleTurnEnvironment({}, ""))
    assert weights == {"policy": 1, "exact_match": 2, "exact": 3, "judge": 4}
    assert rewards_of_trainer(rewards, None, args) is rewards
    args.reward_weights = None
    alone = rewards_of_trainer(model, tokenizer, args)
    assert alone is not None
    assert alone.names == ("policy",)
    pairs = rewards_of_trainer([WeightedReward(function=exact, weight=2.0), "f1_squad"], None, args)
    assert pairs is not None
    assert pairs.weights(SingleTurnEnvironment({}, "")) == {"exact": 2, "f1_squad": 1}
    assert rewards_of_trainer(None, None, args) is rewards_of_trainer([], None, args) is None


@pytest.mark.parametrize(
    ("functions", "tokenizers", "message"),
    [
        ([structure], None, "reward_weights has 2 entries for 1 reward functions"),
        ([structure, judge], [None], "reward_processing_classes has 1 entries for 2 reward functions"),
        ([structure, "nowhere/at-all"], None, "cannot load the reward model 'nowhere/at-all'"),
    ],
)  # fmt: skip
def test_what_is_no_reward_of_a_trainer(
    functions: list[Any],
    tokenizers: Any,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    args = GRPOConfig(str(tmp_path), reward_weights=[1.0, 0.5], use_cpu=True, bf16=False)
    with raises_line(message):
        rewards_of_trainer(functions, tokenizers, args)
