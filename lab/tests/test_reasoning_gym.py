"""Questions and verifiers of reasoning-gym, and the audit of which of its tasks may be trained on."""

import ast
import inspect
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.config.run_file import parse_config
from cotune.errors import ConfigError
from cotune.rollout.drivers import run_episodes
from cotune.rollout.episode import new_episodes
from cotune.types import Assignment, Limits, Prompt, Sampling, Task, Trajectory
from cotune_lab.worlds.reasoning_gym import (
    REFUSED,
    RUN_ANSWERS,
    ReasoningGymEnvironment,
    ReasoningGymOptions,
    last_answer,
)
from tests.scripted import CharacterCodec, ScriptedSampler

SMALL = {"train": 12, "validation": 6, "test": 9}
CODEC = CharacterCodec()


@pytest.fixture(scope="module", autouse=True)
def factory() -> Any:
    return pytest.importorskip("reasoning_gym.factory")


def options(*tasks: Any, **fields: Any) -> ReasoningGymOptions:
    return ReasoningGymOptions.model_validate({"tasks": tasks, **SMALL, **fields})


def environment(*tasks: Any, **fields: Any) -> ReasoningGymEnvironment:
    return ReasoningGymEnvironment(options(*tasks, **fields))


def rolled_out(env: ReasoningGymEnvironment, task: Task, reply: str) -> Trajectory:
    """The scored episode of a policy that writes `reply`."""
    prompt = Prompt(env.initial_instruction)
    limits = Limits(turns=1, turn_tokens=400, prompt_tokens=4000, trajectory_tokens=402)
    episodes = new_episodes([Assignment(task, prompt, prompt, "i0", 0)], env, CODEC, limits, 0)
    session = ScriptedSampler(CODEC, lambda row, turn, text: reply).open(Sampling())
    return run_episodes(episodes, env, session)[0]


# ---- questions


def test_splits_have_their_sizes_and_share_no_question() -> None:
    names = ("chain_sum", "leg_counting")
    env = environment(*({"name": n, "difficulty": level} for n in names for level in (0, 2)))
    splits = {split: env.tasks(split) for split in SMALL}
    assert {split: len(tasks) for split, tasks in splits.items()} == SMALL
    texts = [task.question for tasks in splits.values() for task in tasks]
    assert len(set(texts)) == len(texts)
    assert len({task.id for tasks in splits.values() for task in tasks}) == len(texts)
    assert Counter(task.stratum for task in splits["train"]) == dict.fromkeys(
        ("chain_sum level 0", "chain_sum level 2", "leg_counting level 0", "leg_counting level 2"),
        3,
    )


def test_a_question_is_in_one_split_where_there_are_few_of_them() -> None:
    few = {"train": 120, "validation": 40, "test": 40}
    env = environment("string_splitting", **few)  # its seeds repeat texts
    texts = [task.question for split in few for task in env.tasks(split)]
    assert len(set(texts)) == len(texts) == 200
    with pytest.raises(
        ConfigError,
        match=r"^environment.train asks for 99 questions, and after \d+ there is none of tower_of",
    ):
        environment({"name": "tower_of_hanoi", "difficulty": 1}, train=99, validation=4, test=4)


def test_held_out_questions_depend_on_the_seed_and_not_on_the_training_questions() -> None:
    random.seed(5)
    first, more = environment("chain_sum"), environment("chain_sum", train=30)
    environment("arc_1d", "rearc", train=4, validation=2, test=2)
    assert random.random() == random.Random(5).random()  # what the process draws stays
    assert first.tasks("test") == more.tasks("test")
    assert first.tasks("validation") == more.tasks("validation")
    assert list(first.tasks("train")) == list(more.tasks("train"))[:12]
    other = environment("chain_sum", seed=1)
    assert {t.id for t in first.tasks("train")}.isdisjoint(t.id for t in other.tasks("train"))


def test_questions_are_the_same_in_another_process() -> None:
    code = (
        "from cotune_lab.worlds.reasoning_gym import *\n"
        "o = ReasoningGymOptions(tasks=['family_relationships', 'letter_jumble'], train=12, "
        "validation=6, test=9)\n"
        "print([t.id for t in ReasoningGymEnvironment(o).tasks('train')])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": "77"},
    )  # fmt: skip
    env = environment("family_relationships", "letter_jumble")
    assert process.stdout.strip() == str([task.id for task in env.tasks("train")])


def test_a_level_leaves_out_the_easier_ones_and_config_replaces_its_fields() -> None:
    def terms(env: ReasoningGymEnvironment) -> set[int]:
        return {task.columns["metadata"]["num_terms"] for task in env.tasks("train")}

    assert min(terms(environment({"name": "chain_sum", "difficulty": 5}))) > 4
    fixed = {"name": "chain_sum", "config": {"min_terms": 3, "max_terms": 3}, "difficulty": 5}
    assert terms(environment(fixed)) == {3}


# ---- scores


@pytest.mark.parametrize(
    ("form", "reply", "expected"),
    [
        ("tags", "<answer>1234567</answer> no: <answer> {} </answer>", 1),
        ("tags", "<answer>{}</answer> no: <answer>1234567</answer>", 0),
        ("tags", "<think><answer>{}</answer></think> I do not know", 0),
        ("tags", "{}", 0),
        ("last_number", "First 3, then it is {}.", 1),
        ("last_number", "{}, which is more than 1234567", 0),
        ("last_number", "no idea", 0),
    ],
)
def test_the_last_answer_counts(form: str, reply: str, expected: int) -> None:
    env = environment("chain_sum", answer=form)
    task = env.tasks("train")[0]
    trajectory = rolled_out(env, task, reply.format(task.answers[0]))
    assert trajectory.reward == expected
    assert env.required == (("<answer>", "</answer>") if form == "tags" else ())
    assert ("<answer>" in env.initial_instruction) == (form == "tags")


@pytest.mark.parametrize(
    ("score", "part"),
    [(7.0, 1.0), (-1.0, 0.0), (float("nan"), 0.0), (0.3, 0.3), ("no number", 0.0)],
)
def test_scores_are_between_0_and_1_and_0_where_a_verifier_raises(score: Any, part: float) -> None:
    env = environment("chain_sum")
    task = env.tasks("train")[0]

    class Verifier:
        def score_answer(self, answer: str, entry: Any) -> Any:
            return score

    env._datasets[task.stratum] = Verifier()
    trajectory = rolled_out(env, task, "<answer>1</answer>")
    assert trajectory.reward == float(part == 1)
    assert trajectory.parts == {"verifier": part}


@given(st.text(alphabet="<>/answer 7", max_size=60))
def test_an_answer_holds_no_closing_tag(text: str) -> None:
    answer = last_answer(text)
    assert answer is None or (answer and "</answer>" not in answer and answer in text)


# ---- the run file


@pytest.mark.parametrize(
    ("tasks", "fields", "message"),
    [
        (["chain_sums"], {}, r"refuses chain_sums \(ValueError: .*; change its name"),
        ([{"name": "chain_sum", "difficulty": -1}], {}, r"refuses chain_sum level -1 \(ValueError: Invalid level"),
        ([{"name": "caesar_cipher", "difficulty": 3}], {}, r"refuses caesar_cipher level 3 \(Asser"),
        ([{"name": "chain_sum", "config": {"min_term": 3}}], {}, r"argument 'min_term'"),
        ([{"name": "gcd", "config": {"seed": 1}}], {}, "multiple values for keyword argument 'seed'"),
    ],
)  # fmt: skip
def test_mistakes_are_said_in_one_line(tasks: list[Any], fields: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        environment(*tasks, **fields)
    assert str(caught.value).startswith("environment.")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tasks": ["n_queens"]}, "n_queens is refused: its verifier runs answers as Python"),
        ({"tasks": ["gcd", "n_primes", "gcd"]}, "environment.tasks names gcd twice"),
        ({"tasks": ["gcd"], "size": 5}, "environment.size: unknown field"),
    ],
)  # fmt: skip
def test_the_run_file_is_checked_without_the_package(fields: dict[str, Any], message: str) -> None:
    raw = {
        "output": "runs/x", "strategy": {"kind": "static"},
        "environment": {"kind": "reasoning-gym", **fields},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=message):
        parse_config(raw, "run.yaml")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotune_lab.worlds.reasoning_gym.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"not installed: pip install -e 'lab\[reasoning-gym\]'$"):
        environment("gcd")


# ---- the audit


def _called(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id
            elif isinstance(node.func, ast.Attribute):
                yield node.func.attr


def _runs_code(dataset: type) -> bool:
    """Whether a verifier can reach eval, exec or sympy's parser, which evaluates, in its module."""
    source = inspect.getsource(sys.modules[dataset.__module__])
    functions: dict[str, list[ast.AST]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            functions.setdefault(node.name, []).append(node)
    todo, visited = ["score_answer"], set[str]()
    while todo:
        name = todo.pop()
        if name in {"eval", "exec", "compile", "parse_expr", "sympify"} - functions.keys():
            return True
        if name not in visited:
            visited.add(name)
            todo += [called for f in functions.get(name, []) for called in _called(f)]
    return False


def test_tasks_whose_verifier_runs_code_are_refused(factory: Any) -> None:
    refused = {name for name, (dataset, _) in factory.DATASETS.items() if _runs_code(dataset)}
    # These two evaluate what the package itself has generated, and not the answer.
    assert refused == RUN_ANSWERS | {"number_sorting", "bitwise_arithmetic"}
    assert factory.DATASETS.keys() | {"composite"} >= REFUSED


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_other_task_is_reproducible_and_accepts_its_own_answer(
    factory: Any, tmp_path: Path
) -> None:
    names = sorted(factory.DATASETS.keys() - REFUSED)
    code = (
        "import sys, json, hashlib\n"
        "from reasoning_gym.factory import create_dataset\n"
        "print(chr(10) + json.dumps({n: hashlib.sha1(repr([(d[i]['question'], d[i]['answer']) for d in "
        "[create_dataset(n, seed=9, size=50)] for i in range(3)]).encode()).hexdigest() "
        "for n in sys.argv[1:]}))"
    )
    hashes = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", code, *names], capture_output=True, text=True, check=True,
                env={"PYTHONHASHSEED": seed, "PATH": "", "HOME": str(tmp_path)},
            ).stdout.splitlines()[-1]
        )
        for seed in ("1", "2")
    ]  # fmt: skip
    assert [name for name in names if hashes[0][name] != hashes[1][name]] == []
    wrong: list[str] = []
    for name in names:
        env = environment(name, train=2, validation=1, test=1)
        task = env.tasks("train")[0]
        if not task.answers:
            continue
        before = repr(task.columns)
        if env._verify(task, task.answers[0]) != 1:
            wrong.append(name)
        if env._verify(task, "zzz qqq") == 1 or repr(task.columns) != before:
            wrong.append(f"{name} by a wrong answer")
        several = environment(name, train=16, validation=1, test=1).tasks("train")
        for constant in ("0", "1", "nan", "[]", "-"):
            if all(env._verify(task, constant) == 1 for task in several):
                wrong.append(f"{name} by always answering {constant}")
    assert wrong == []
