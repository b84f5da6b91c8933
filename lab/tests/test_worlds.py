"""The lab's worlds: problems and rewards by hand, splits that share nothing, run files that parse."""

import hashlib
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cotune import Action, ConfigError
from cotune.config.build import build_environment, describe_llm
from cotune.config.run_file import load_config, parse_config
from cotune.types import Turn
from cotune_lab.worlds import arith, arithmetic, extract3, scaffold
from cotune_lab.worlds.arithmetic import Operation, problem

LAB = Path(__file__).parents[1]
SMALL: dict[str, Any] = {"train": 24, "validation": 6, "test": 12}


# ---- arithmetic


@pytest.mark.parametrize(
    ("operation", "slipped", "carries"),
    [
        (Operation(47, "+", 85), 122, 1),
        (Operation(1999, "+", 1), 1990, 3),
        (Operation(12, "+", 34), 46, 0),
        (Operation(42, "-", 17), 35, 1),
        (Operation(1000, "-", 1), 1001, 3),
        (Operation(47, "*", 6), 242, 1),
        (Operation(123, "*", 3), 369, 0),
        (Operation(5, "+", 123), 128, 0),
    ],
)
def test_slips_and_carries_by_hand(operation: Operation, slipped: int, carries: int) -> None:
    assert (operation.slipped, operation.carries) == (slipped, carries)
    assert (operation.slipped == operation.result) == (carries == 0)


@pytest.mark.parametrize("kind", arithmetic.KINDS)
def test_a_procedure_ends_in_the_answer_and_long_problems_need_it(kind: str) -> None:
    rng = random.Random(kind)
    for size in arithmetic.SIZES:
        drawn = [problem(rng, kind, size) for _ in range(200)]
        assert all(int(re.findall(r"\d+", p.procedure)[-1]) == p.answer for p in drawn)
        right = sum(p.at_once == p.answer for p in drawn)
        # In a story two slips cancel out now and then.
        assert right == 200 if size == "short" else right <= 4 * (kind == "word problem")


def test_a_problem_belongs_to_one_split_for_ever() -> None:
    # Fixed values: a change here would move test problems into training.
    texts = ["What is 4711 + 815?", "What is 22 + 31?", "Compute 1824 - 247.", "Compute 1 + 1."]
    assert [arithmetic.split_of(text) for text in texts] == ["train", "validation", "test", "train"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kinds": ["division"]}, r"environment\.kinds is \['division'\]; expected some of"),
        ({"long_share": 2}, "environment.long_share is 2; expected between 0 and 1"),
        ({"train": 0}, "environment.train is 0; expected 1 or more"),
    ],
)
def test_options_of_arithmetic_are_checked(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arithmetic.ArithmeticOptions(**fields)  # pyright: ignore[reportArgumentType]


def test_more_problems_than_there_are() -> None:
    with pytest.raises(ConfigError, match=r"environment\.\w+ asks for more than the"):
        arithmetic.ArithmeticEnvironment(
            arithmetic.ArithmeticOptions(train=400, kinds=["multiplication"], long_share=0.0)
        )


# ---- scaffold


def test_an_answer_is_not_told_by_the_first_document_and_the_fifth_turn_is_the_last() -> None:
    environment = scaffold.ScaffoldEnvironment(scaffold.ScaffoldOptions(**SMALL))
    for task in environment.tasks("test"):
        assert scaffold.is_question(task.question)
        if task.stratum != "1 hop":
            assert task.answers[0] not in environment.world.document(task.question.split(":")[0])
    task, text = environment.tasks("train")[0], "Find: <search> Oslo population </search>"
    for turns in (scaffold.TURNS - 2, scaffold.TURNS - 1):
        (response,) = environment.respond([Action(task, (Turn(text),) * turns, text, False)])
        assert response.done == (turns == scaffold.TURNS - 1)
        assert response.done or "Oslo is a city" in response.observation


# ---- arith and extract3


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("42", 1), ("12 + 30 = 42", 1), ("**42**", 1), ("42.0", 1), ("0-42", 1), ("41? No: 42", 1),
        ("", 0), ("forty-two", 0), ("-42", 0), ("42,000", 0), ("42. Check: 42 - 30 = 12", 0),
    ],
)  # fmt: skip
def test_the_last_number_counts(reply: str, expected: float) -> None:
    assert arith.reward(reply, 42) == expected


PASSAGE = (
    "Nina lives in Porto and has a dog. Nina also enjoys chess. Otto lives in Lima, keeps a cat and loves "
    "golf. Vera has a home in Oslo, owns a goat and enjoys judo.\n\n"
)


@pytest.mark.parametrize(
    ("question", "right", "reply", "expected"),
    [
        ("Where does Nina live?", "Porto", "Nina lives in Porto.", 1),
        ("Where does Nina live?", "Porto", "The answer to the question is that it is in Porto", 0),
        ("Where does Nina live?", "Porto", "Porto, Lima, Oslo", 0),
        ("Where does Nina live?", "Porto", "Porto or Paris or Cairo", 0),
        ("Where does Nina live?", "Porto", "Otto lives in Porto", 0),
        ("Where does Nina live?", "Porto", "Portofino", 0),
        ("Who keeps a cat?", "Otto", "Otto, who lives in Lima", 1),
        ("Who keeps a cat?", "Otto", "Otto or Greta", 0),
        ("Who keeps a cat?", "Otto", "a cat", 0),
    ],
)
def test_a_short_reply_names_the_value_and_no_other(
    question: str, right: str, reply: str, expected: float
) -> None:
    distractors = extract3.distractors(PASSAGE + question, right)
    assert extract3.reward(reply, right, distractors) == expected


def test_names_are_in_one_split() -> None:
    environment = extract3.Extract3Environment(extract3.Extract3Options(**SMALL))
    for split in SMALL:
        for task in environment.tasks(split):
            names = set(re.findall(r"\w+", task.question)) & set(extract3.NAMES)
            assert len(names) == 3
            assert names <= set(extract3.names_of(split))
            assert extract3.type_of(task.question) == task.stratum


# ---- in run files


@pytest.mark.parametrize("kind", ["geo", "arithmetic", "scaffold", "arith", "extract3"])
def test_a_run_file_names_a_world_by_its_kind(kind: str) -> None:
    raw = {"output": "out", "environment": {"kind": kind, **SMALL}, "strategy": {"kind": "static"}}
    config = parse_config(raw, "test")
    environment = build_environment(config.environment, None, config.instruction)
    questions = {split: [t.question for t in environment.tasks(split)] for split in SMALL}
    assert {split: len(texts) for split, texts in questions.items()} == SMALL
    assert max(Counter(q for texts in questions.values() for q in texts).values()) == 1


@pytest.mark.parametrize("file", sorted((LAB / "configs").glob("*.yaml")), ids=lambda f: f.stem)
def test_run_files_parse(file: Path) -> None:
    config = load_config(file)
    assert config.name == file.stem
    if config.method.needs_llm:
        rules = "offline rules" if config.environment.kind == "geo" else "cotune_lab.rules:Rules"
        assert describe_llm(config.proposer) == rules


@pytest.mark.parametrize("world", ["geo", "arithmetic", "scaffold"])
def test_cards_are_of_the_weights(world: str) -> None:
    folder = LAB / "weights" / world
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    weights = (folder / "model.safetensors").read_bytes()
    assert card["weights_sha256"] == hashlib.sha256(weights).hexdigest()
