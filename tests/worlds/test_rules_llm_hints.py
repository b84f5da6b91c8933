import random
import re
from collections.abc import Sequence

import pytest
from gepa.strategies.instruction_proposal import InstructionProposalSignature
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import LLMError
from cotune.methods.inspo.proposers import paraphrase_prompt
from cotune.methods.instruction_rules import is_near_copy
from cotune.methods.p2o.hint_evolution import read_hint
from cotune.methods.p2o.hint_rules import HintRules
from cotune.methods.text_evolution import View, example
from cotune.types import Assignment, Completion, Prompt, Task, Trajectory
from cotune.worlds.arithmetic import KINDS, SIZES, problem
from cotune.worlds.arithmetic_rules import ADVICE, GENERAL, kind_of
from cotune.worlds.rules_llm import (
    REMEDIES,
    Mode,
    RulesLLM,
    Shown,
    current_text,
    is_gepa_prompt,
    read_shown,
)
from recipes.arithmetic import phrases
from recipes.geo import phrases as geo_phrases
from tests.helpers import INITIAL, make_trajectory

OWN = [*(s for sentences in ADVICE.values() for s in sentences), *GENERAL]


def task(kind: str, n: int = 0, size: str = "long") -> Task:
    made = problem(random.Random(f"{kind}/{n}"), kind, size)
    return Task(f"{kind}/{n}", made.text, (str(made.answer),), made.stratum, made.procedure)


def missed(kind: str, n: int = 0) -> Trajectory:
    return rollout(task(kind, n), 0.0)


def rollout(asked: Task, reward: float, text: str = "\\boxed{7}") -> Trajectory:
    prompt = Prompt("Solve it.")
    return make_trajectory(Assignment(asked, prompt, prompt, "", 0), reward, text)


def reflection(
    trajectories: Sequence[Trajectory], parent: str = "", show_answers: bool = False
) -> str:
    """What gepa asks, in its own words."""
    view = View(show_answers=show_answers)
    prompt = InstructionProposalSignature.prompt_renderer(
        {
            "current_instruction_doc": parent,
            "dataset_with_feedback": [dict(example(t, view, 6000)) for t in trajectories],
        }
    )
    assert isinstance(prompt, str)
    return prompt


def hint(trajectories: Sequence[Trajectory], parent: str = "", seed: int = 0) -> str:
    return read_hint(RulesLLM(seed).complete(reflection(trajectories, parent)).text)


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.])\s+", text)


def topics_of(text: str) -> set[str]:
    return {kind for kind, own in ADVICE.items() if set(own) & set(sentences(text))}


# ---- the sentences


def test_no_sentence_is_one_of_the_recipes():
    taught = phrases.all_sentences() | geo_phrases.all_sentences()
    assert set(OWN) & taught == set()
    assert len(set(OWN)) == len(OWN)


def test_every_word_is_one_of_the_recipes():
    def words(text: str) -> set[str]:
        return set(re.findall(r"[a-z']+", text.lower()))

    known = set().union(*map(words, phrases.all_sentences()))
    assert {word for sentence in OWN for word in words(sentence)} - known == set()


def test_every_kind_has_wordings_enough_none_a_copy_of_another():
    assert tuple(ADVICE) == KINDS
    assert min(map(len, ADVICE.values())) >= 6
    assert not any(is_near_copy(a, b) for i, a in enumerate(OWN) for b in OWN[:i])


# ---- reading


@pytest.mark.parametrize("show_answers", [False, True])
def test_examples_are_read_from_gepas_prompt(show_answers: bool):
    rows = [
        missed("addition"),
        rollout(
            task("word problem"), 1.0, "First 1+1: 1+1+0=2 2;\n\n# So\n```\nx\n```\n\\boxed{2}"
        ),
        rollout(task("subtraction"), 0.0, ""),
    ]
    prompt = reflection(rows, "Go by\n\ncolumns.", show_answers)
    assert is_gepa_prompt(prompt)
    records = [example(t, View(show_answers=show_answers), 6000) for t in rows]
    assert read_shown(prompt) == [
        Shown(r["Inputs"], r["Generated Outputs"], r["Feedback"]) for r in records
    ]
    assert [shown.failed for shown in read_shown(prompt)] == [True, False, True]
    assert current_text(prompt) == "Go by\n\ncolumns."
    assert current_text(reflection(rows)) == ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_each_kind_is_recognised(kind: str, size: str):
    assert {kind_of(task(kind, n, size).question) for n in range(50)} == {kind}


def test_other_questions_are_of_no_kind():
    assert kind_of("What is the currency of the country where Zinder is?") is None
    assert kind_of("") is None


# ---- writing


@pytest.mark.parametrize("kind", KINDS)
def test_a_hint_is_about_what_failed(kind: str):
    solved = [rollout(task(other), 1.0) for other in KINDS if other != kind]
    for n in range(10):
        reply = RulesLLM().complete(reflection([*solved, missed(kind, n)])).text
        assert reply.startswith(f"It fails at: {kind}.")
        written = sentences(read_hint(reply))
        assert written[0] in ADVICE[kind]
        assert set(written[1:]) <= set(GENERAL)
        assert len(written) <= 2


def test_each_failed_kind_is_chosen_at_times_the_frequent_ones_more_often():
    chosen: list[str] = []
    for n in range(60):
        rows = [missed("addition", n), missed("addition", n + 100), missed("word problem", n)]
        chosen += topics_of(hint(rows))
    assert set(chosen) == {"addition", "word problem"}
    assert chosen.count("addition") > chosen.count("word problem")


def test_a_new_wording_takes_the_place_of_an_old_one_and_other_topics_stay_at_times():
    old, other = ADVICE["addition"][0], ADVICE["subtraction"][0]
    kept = 0
    for n in range(60):
        written = sentences(hint([missed("addition", n)], f"{old}\n{other} Read it twice."))
        assert old not in written
        assert len(set(written) & set(ADVICE["addition"])) == 1
        assert len(set(written)) == len(written)
        assert (other in written) <= ("Read it twice." in written)
        kept += other in written
    assert 0 < kept < 40


def test_the_control_arm_reads_no_failure():
    llm, drawn = RulesLLM(0, "random"), set[str]()
    for n in range(60):
        drawn |= topics_of(read_hint(llm.complete(reflection([missed("addition", n)])).text))
    assert drawn == set(ADVICE)


def test_hints_for_the_search_world_are_its_remedies():
    question = "What is the currency of the country where Zinder is?"
    search = "<search> currency of the country where Zinder is </search>\n<information>\nnone\n"
    text = f"<think> Hm. </think>{search}</information>\n<answer> none </answer>"
    failed = rollout(Task("z", question, ("Franc",)), 0.0, text)
    expected = {*REMEDIES[Mode.WHOLE_QUESTION], *REMEDIES[Mode.ONE_SEARCH]}
    written = [sentences(hint([failed], seed=seed)) for seed in range(30)]
    assert all(own[0] in expected and set(own[1:]) <= set(GENERAL) for own in written)
    assert len({own[0] for own in written} & set(REMEDIES[Mode.ONE_SEARCH])) > 1
    assert len({own[0] for own in written} & set(REMEDIES[Mode.WHOLE_QUESTION])) > 1


@pytest.mark.parametrize("remedies", ["reflected", "random"])
def test_hints_keep_to_the_contract_also_as_parents_of_hints(remedies: str):
    tasks = [task(kind, n) for kind in KINDS for n in range(20)]
    llm, rng = RulesLLM(3, remedies), random.Random(0)  # type: ignore[arg-type]
    parents = [""]
    for _ in range(80):
        parent = rng.choice(parents)
        rows = [rollout(t, 0.0) for t in rng.sample(tasks, 3)]
        new = read_hint(llm.complete(reflection(rows, parent)).text)
        assert HintRules().check(new, parent, [], tasks, phrases.INITIAL) is None
        parents.append(new)
    assert max(map(len, parents)) < 400
    assert {len(topics_of(text)) for text in parents} >= {0, 1, 2}


def test_replies_are_keyed_by_seed_and_prompt_and_cost_no_tokens():
    prompt = reflection([missed(kind) for kind in KINDS])
    reply = RulesLLM(4).complete(prompt)
    assert reply == RulesLLM(4).complete(prompt) == Completion(reply.text)
    assert len({RulesLLM(seed).complete(prompt).text for seed in range(9)}) > 3
    others = [reflection([missed(kind, n) for kind in KINDS]) for n in range(9)]
    assert len({RulesLLM(4).complete(other).text for other in others}) > 3


# ---- what it refuses, and what goes to the proposers' rules


def test_nothing_failed_that_it_knows():
    for rows in ([rollout(task("addition"), 1.0)], [rollout(Task("q", "Why?", ("x",)), 1.0)]):
        for remedies in ("reflected", "random"):
            with pytest.raises(LLMError, match="no failed example of a bundled world"):
                RulesLLM(0, remedies).complete(reflection(rows))


def test_other_prompts_go_to_the_proposers_rules():
    prompt = paraphrase_prompt(INITIAL, 3)
    for seed in (0, 1):
        assert RulesLLM(seed).complete(prompt) == RulesLLM(seed).complete(prompt)
    with pytest.raises(LLMError, match="proposers' prompts"):
        RulesLLM().complete("What is 2 + 2?")
    with pytest.raises(ValueError, match="remedies is 'none'"):
        RulesLLM(0, remedies="none")  # type: ignore[arg-type]


@given(st.text(), st.text(), st.text(), st.sampled_from(KINDS))
def test_any_question_response_and_hint_can_be_read(
    question: str, response: str, parent: str, kind: str
):
    rows = [rollout(Task("q", question, ("x",)), 0.0, response), missed(kind)]
    reply = RulesLLM().complete(reflection(rows, parent))
    assert read_hint(reply.text)
