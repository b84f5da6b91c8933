"""Questions on a passage about three people: the reward by hand, and disjoint splits."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.types import Assignment, Prompt
from cotune.worlds.short_answers.extract3 import (
    NAMES,
    STRATA,
    VALUES,
    Extract3Environment,
    Extract3Options,
    distractors,
    names_of,
    reward,
    type_of,
)
from tests.helpers import make_trajectory

SPLITS = ("train", "validation", "test")
ENVIRONMENT = Extract3Environment()
PASSAGE = (
    "Nina lives in Porto and has a dog. Nina also enjoys chess. Otto lives in Lima, keeps a cat and loves "
    "golf. Vera has a home in Oslo, owns a goat and enjoys judo.\n\n"
)
WHERE, WHO = f"{PASSAGE}Where does Nina live?", f"{PASSAGE}Who keeps a cat?"


@pytest.mark.parametrize(
    ("question", "right", "reply", "expected"),
    [
        (WHERE, "Porto", "Porto", 1.0),
        (WHERE, "Porto", "porto.", 1.0),
        (WHERE, "Porto", "Nina lives in Porto.", 1.0),
        (WHERE, "Porto", "**Porto**", 1.0),
        (WHERE, "Porto", "The answer to the question is that it is in Porto", 0.0),  # 11 words
        (WHERE, "Porto", "The answer to the question is that it's Porto", 1.0),  # 10, it's is two
        (WHERE, "Porto", "", 0.0),
        (WHERE, "Porto", "Lima", 0.0),
        (WHERE, "Porto", "Porto, Lima, Oslo", 0.0),
        (WHERE, "Porto", "Porto,Lima", 0.0),
        (WHERE, "Porto", "Porto_Lima_Oslo", 0.0),
        (WHERE, "Porto", "PortoLimaOslo", 0.0),
        (WHERE, "Porto", "Not Lima but Porto", 0.0),
        (WHERE, "Porto", "Porto or Paris or Cairo", 0.0),  # another city, even if of no passage
        (WHERE, "Porto", "Otto lives in Porto", 0.0),
        (WHERE, "Porto", "Portofino", 0.0),
        (WHERE, "Porto", "Nina", 0.0),
        (WHERE, "Porto", PASSAGE, 0.0),
        (WHERE, "Porto", f"Porto {'.' * 100}", 1.0),
        (WHO, "Otto", "Otto", 1.0),
        (WHO, "Otto", "Otto keeps a cat.", 1.0),
        (WHO, "Otto", "OTTO!", 1.0),
        (WHO, "Otto", "Otto, who lives in Lima", 1.0),
        (WHO, "Otto", "Nina, Otto, Vera", 0.0),
        (WHO, "Otto", "Otto or Greta", 0.0),
        (WHO, "Otto", "a cat", 0.0),
    ],
)
def test_a_short_reply_names_the_value_and_no_other(
    question: str, right: str, reply: str, expected: float
) -> None:
    assert reward(reply, right, distractors(question, right)) == expected


@given(st.lists(st.sampled_from(VALUES["city"]), min_size=1, max_size=6))
def test_a_list_of_values_is_right_only_if_all_are_the_answer(cities: list[str]) -> None:
    expected = float(set(cities) == {"Porto"})
    assert reward(" ".join(cities), "Porto", distractors(WHERE, "Porto")) == expected


def test_what_is_a_distractor() -> None:
    assert distractors(WHERE, "Porto") == {*VALUES["city"], *NAMES} - {"Porto", "Nina"}
    assert distractors(WHO, "Otto") == {*NAMES} - {"Otto"}
    assert type_of("Where does Mary live?") is None
    with pytest.raises(ValueError, match="is not a question of extract3"):
        distractors("Where does Mary live?", "Porto")


def test_values_are_single_words_of_one_kind() -> None:
    words = [*NAMES, *(value for values in VALUES.values() for value in values)]
    assert len({word.casefold() for word in words}) == len(words)
    assert all(re.fullmatch(r"[A-Za-z]+", word) for word in words)


def test_splits_have_their_sizes_and_share_no_name() -> None:
    assert [len(ENVIRONMENT.tasks(split)) for split in SPLITS] == [2000, 300, 300]
    names = {split: set(names_of(split)) for split in SPLITS}
    assert all(len(found) >= 10 for found in names.values())
    assert sum(map(len, names.values())) == len(NAMES)
    for split in SPLITS:
        for task in ENVIRONMENT.tasks(split):
            used = set(re.findall(r"\w+", task.question)) & set(NAMES)
            assert len(used) == 3
            assert used <= names[split]


def test_each_question_has_one_answer_among_three() -> None:
    for task in ENVIRONMENT.tasks("train"):
        kind, (right,) = task.stratum, task.answers
        assert type_of(task.question) == kind
        passage, _, asked = task.question.partition("\n\n")
        words = re.findall(r"\w+", passage)
        values = NAMES if kind == "who" else VALUES[kind]
        assert len(set(words) & set(values)) == 3
        assert right in words
        assert right not in re.findall(r"\w+", asked)
        assert reward(right, right, distractors(task.question, right)) == 1


def test_the_answer_is_what_the_passage_says_of_the_one_who_is_asked_about() -> None:
    checked = 0
    for task in ENVIRONMENT.tasks("train"):
        passage, _, asked = task.question.partition("\n\n")
        found = re.fullmatch(r"Who (?P<clause>.*)\?", asked)
        if found:
            # The clause of the question follows the name, with at most two other clauses between.
            before = passage[: passage.index(found["clause"])]
            last = [word for word in re.findall(r"\w+", before) if word in NAMES][-1]
            assert last == task.answers[0]
            checked += 1
    assert checked > 50


def test_values_of_the_passage_belong_to_the_name_before_them() -> None:
    for task in ENVIRONMENT.tasks("test"):
        if task.stratum == "who":
            continue
        passage, _, asked = task.question.partition("\n\n")
        (name,) = set(re.findall(r"\w+", asked)) & set(NAMES)
        owner = ""
        for word in re.findall(r"\w+", passage):
            owner = word if word in NAMES else owner
            if word == task.answers[0]:
                assert owner == name


def test_wordings_vary_and_strata_are_mixed() -> None:
    tasks = ENVIRONMENT.tasks("train")
    asked = {re.sub(r"\b[A-Z]\w+", "N", t.question.rpartition("\n")[2]) for t in tasks}
    assert len(asked) > 15
    assert [task.stratum for task in tasks[:6]] == list(STRATA)
    assert set(Counter(task.stratum for task in tasks[:1998]).values()) == {333}


def test_another_seed_asks_other_questions() -> None:
    other = Extract3Environment(Extract3Options(train=40, validation=6, test=6, seed=1))
    known = {task.id for task in ENVIRONMENT.tasks("train")}
    assert all(task.id not in known for task in other.tasks("train"))
    again = Extract3Environment(Extract3Options(train=40, validation=6, test=6))
    assert list(again.tasks("train")) == list(ENVIRONMENT.tasks("train"))[:40]


def test_an_episode_is_scored_by_its_own_text() -> None:
    task = ENVIRONMENT.tasks("train")[0]
    prompt = Prompt("Answer.")
    assignment = Assignment(task, prompt, prompt, "i0", 0)
    right = task.answers[0]
    assert ENVIRONMENT.score(make_trajectory(assignment, 0.0, f" {right}.")) == (1.0, f"{right}.")
    assert ENVIRONMENT.score(make_trajectory(assignment, 0.0, " ")) == (0.0, None)
