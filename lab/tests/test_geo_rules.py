import random
from dataclasses import replace

import pytest
from gepa.strategies.instruction_proposal import InstructionProposalSignature
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import LLMError
from cotune.methods.contract import TextRules, protocol_tags
from cotune.methods.inspo.proposers import read_tagged
from cotune.methods.inspo.replay import Experience
from cotune.methods.text_evolution import example, read_fenced
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory
from cotune.worlds.rules_llm import Example, read_examples, sentences_of
from cotune_lab.worlds.geo_rules import (
    CAUTION,
    MAX_SENTENCES,
    REMEDIES,
    REWORDINGS,
    STYLE,
    Mode,
    failure_modes,
    is_style,
)
from tests.helpers import INITIAL, make_trajectory, paraphrase_prompt, reflection_prompt, rules_llm

QUESTION = "What is the currency of the country where Zinder is?"
BROAD = "<search> currency of the country where Zinder is </search>"
INFORMATION = "\n<information>\n(1) Zinder is a city in Niger.\n</information>\n"
THOUGHT = "<think> Zinder first. </think>\n"
NAME = "<search> Zinder </search>" + INFORMATION
OWN = [
    *(s for sentences in REMEDIES.values() for s in sentences),
    *STYLE,
    *(s for sentences in REWORDINGS.values() for s in sentences),
]


def failure(text: str, stop: StopReason = StopReason.ANSWERED) -> Experience:
    return Experience("i0", Task("q", QUESTION, ("Franc",)), text, 0.0, 1, stop)


# ---- the sentences


def test_style_asks_for_nothing():
    assert len(set(OWN)) == len(OWN)
    assert all(is_style(s) for s in STYLE)
    assert not any(is_style(s) for options in REMEDIES.values() for s in options)


# ---- reading


@pytest.mark.parametrize(
    ("response", "modes"),
    [
        (BROAD + INFORMATION + "<answer> Dollar </answer>", {Mode.WHOLE_QUESTION, Mode.ONE_SEARCH, Mode.NO_REASONING, Mode.NOT_IN_EVIDENCE}),
        (THOUGHT + NAME + NAME + "<answer> Niger </answer>", set()),
        (THOUGHT + NAME + "<answer> Niger </answer>", {Mode.ONE_SEARCH}),
        (THOUGHT + "<answer> Niger </answer>", {Mode.NEVER_SEARCHED}),
        (THOUGHT + NAME + NAME + "The answer is Niger.", {Mode.NO_ANSWER_TAG}),
        (THOUGHT + NAME + NAME + "<answer> Zinder is a city in Niger </answer>", {Mode.TOO_LONG}),
        (THOUGHT + NAME + NAME + "[stopped: turn limit]", {Mode.OUT_OF_TURNS}),
        (
            THOUGHT
            + "<search> Zinder\nMy previous action is invalid: unclosed <search>. To search, I "
            "write one query between <search> and </search>. To finish, I write the answer between "
            "<answer> and </answer>. One of the two in a turn. Let me try again.\n"
            + NAME
            + NAME
            + "<answer> Niger </answer>",
            {Mode.MALFORMED},
        ),
        (
            THOUGHT + NAME + "<search> Niger </search>\n<information>\nThe search failed; nothing "
            "was retrieved.\n</information>\n<answer> Niger </answer>",
            {Mode.MALFORMED},
        ),
    ],
)  # fmt: skip
def test_failure_modes(response, modes):
    assert failure_modes(Example(QUESTION, response, ("Franc",))) == modes


def test_a_single_hop_needs_one_search_only():
    example = Example("What is the population of Zinder?", THOUGHT + NAME, ("235605",))
    assert Mode.ONE_SEARCH not in failure_modes(example)
    assert Mode.WHOLE_QUESTION not in failure_modes(example)


def test_examples_are_read_from_the_proposers_prompt():
    prompt = reflection_prompt(INITIAL, [failure(BROAD), failure("x", StopReason.TURN_LIMIT)], 6)
    assert read_examples(prompt) == [
        Example(QUESTION, BROAD, ("Franc",)),
        Example(QUESTION, "x\n[stopped: turn limit]", ("Franc",)),
    ]
    failed = replace(failure(BROAD), feedback="Too broad.\nAsk for less.")
    assert read_examples(reflection_prompt(INITIAL, [failed], 6)) == read_examples(prompt)[:1]


# ---- writing

FAILURES = [failure(THOUGHT + BROAD + INFORMATION + "<answer> Niger </answer>")] * 3
FAILURES += [failure(THOUGHT + NAME + NAME + "The answer is Niger.")]


def added_modes(candidate: str) -> set[Mode]:
    return {mode for mode, options in REMEDIES.items() if any(s in candidate for s in options)}


def test_reflection_remedies_what_went_wrong():
    prompt = reflection_prompt(INITIAL, FAILURES, 6)
    text = rules_llm(0).complete(prompt).text
    candidates = read_tagged(text)[1]
    assert len(candidates) == 6
    modes = {Mode.WHOLE_QUESTION, Mode.ONE_SEARCH, Mode.NO_ANSWER_TAG}
    assert all(added_modes(c) and added_modes(c) <= modes for c in candidates)
    critique = read_tagged(text)[0]
    assert "- searched the whole question (3 of 4)" in critique
    assert "- no answer tag (1 of 4)" in critique


def test_an_old_remedy_is_replaced_by_a_new_wording():
    old = REMEDIES[Mode.NO_ANSWER_TAG][0]
    prompt = reflection_prompt(f"{INITIAL} {old}", FAILURES[3:], 6)
    for candidate in read_tagged(rules_llm(1).complete(prompt).text)[1]:
        remedies = [s for s in REMEDIES[Mode.NO_ANSWER_TAG] if s in sentences_of(candidate)]
        assert len(remedies) == 1
        assert remedies != [old]


def test_paraphrases_are_diverse_and_remedy_nothing():
    candidates = read_tagged(rules_llm(0).complete(paraphrase_prompt(INITIAL, 6)).text)[1]
    assert len(candidates) == 6
    assert all(added_modes(c) == set() for c in candidates)
    rules, valid = TextRules(INITIAL), [INITIAL]
    for candidate in candidates:
        if rules.check(candidate, INITIAL, valid, []) is None:
            valid.append(candidate)
    assert len(valid) >= 6


def test_replies_are_keyed_by_seed_and_prompt():
    prompt = reflection_prompt(INITIAL, FAILURES, 6)
    assert rules_llm(4).complete(prompt) == rules_llm(4).complete(prompt)
    assert rules_llm(4).complete(prompt) != rules_llm(5).complete(prompt)
    assert rules_llm(4).complete(prompt) != rules_llm(4).complete(prompt + " ")


@given(st.integers(0, 10_000), st.lists(st.sampled_from(OWN), max_size=25))
def test_tags_are_kept_and_length_is_bounded(seed, extra):
    parent = " ".join([INITIAL, *dict.fromkeys(extra)])
    rng = random.Random(seed)
    failures = rng.choices([*FAILURES, failure(""), failure(NAME)], k=4)
    limit = max(MAX_SENTENCES, len(sentences_of(INITIAL)))
    for prompt in (reflection_prompt(parent, failures, 4), paraphrase_prompt(parent, 4)):
        for candidate in read_tagged(rules_llm(seed).complete(prompt).text)[1]:
            assert set(protocol_tags(candidate)) >= set(protocol_tags(parent))
            assert len(sentences_of(candidate)) <= limit + 2


@given(st.text())
def test_any_response_can_be_read(text):
    failure_modes(Example(text, text, (text,)))


def test_other_prompts_are_refused():
    with pytest.raises(LLMError, match="proposers' prompts"):
        rules_llm().complete("What is the capital of Niger?")


# ---- hints, which GEPA asks for


def gepas_prompt(rows: list[Trajectory], parent: str = "") -> str:
    """What gepa asks, in its own words."""
    examples = [dict(example(row, False, 6000)) for row in rows]
    prompt = InstructionProposalSignature.prompt_renderer(
        {"current_instruction_doc": parent, "dataset_with_feedback": examples}
    )
    assert isinstance(prompt, str)
    return prompt


def rollout(text: str, reward: float = 0.0) -> Trajectory:
    prompt = Prompt("Search.")
    task = Task("z", QUESTION, ("Franc",))
    return make_trajectory(Assignment(task, prompt, prompt, "", 0), reward, text)


def test_hints_are_remedies_of_what_failed():
    failed = rollout(THOUGHT + BROAD + INFORMATION + "<answer> none </answer>")
    expected = {*REMEDIES[Mode.WHOLE_QUESTION], *REMEDIES[Mode.ONE_SEARCH]}
    replies = [rules_llm(seed).complete(gepas_prompt([failed])).text for seed in range(30)]
    written = [sentences_of(read_fenced(reply)[1][0]) for reply in replies]
    assert all(w[0] in expected | set(REMEDIES[Mode.NOT_IN_EVIDENCE]) for w in written)
    assert all(set(w[1:]) <= set(CAUTION) for w in written)
    for mode in (Mode.WHOLE_QUESTION, Mode.ONE_SEARCH):
        assert len({w[0] for w in written} & set(REMEDIES[mode])) > 1


def test_success_calls_for_no_hint():
    with pytest.raises(LLMError, match="no failed example"):
        rules_llm(0).complete(gepas_prompt([rollout("<answer> Franc </answer>", 1.0)]))
