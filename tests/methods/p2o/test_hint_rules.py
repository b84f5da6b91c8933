import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.methods.contract import TextRules
from cotune.methods.leaks import leaked_answer
from cotune.types import Task

SOLUTION = "First add the tens of 48 and 37, then carry one into the hundreds."
TASKS = [
    Task("a", "What is 48 + 37?", ("85",), solution=SOLUTION),
    Task("b", "What is 123 * 10?", ("1,230", "1230.0")),
    Task("c", "What is 1000 - 388?", ("612",)),
    Task("d", "Where is it?", ("Ouagadougou",)),
]
INSTRUCTION = "Solve the problem and put the answer, such as 999, in a box at the end."
VALID = "Work from right to left and write every carry above its column."


def check(text: str, parent: str = "", others: tuple[str, ...] = (), **rules: object) -> str | None:
    return TextRules(beside=INSTRUCTION, **rules).check(text, parent, others, TASKS)  # pyright: ignore


@pytest.mark.parametrize(
    "text",
    [
        VALID,
        "Carry the ten.",  # few words from nothing are no copy of it
        "Think inside <think> and </think> first.",
        "The sum of 8 and 5 is 13; of 85 nothing is said.",  # two digits are not judged
        "Boxes hold answers such as 999 and steps 1, 2, 3.",
        "Add the tens, then add the hundreds of both.",
        "Put the answer, such as 999, in a box.",  # the instruction's own words
    ],
)
def test_valid(text: str):
    assert check(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("  \n", "fewer than 3 words"),
        ("<think> first I", "unclosed <think>"),
        ("Answer in <ins_1> tags", "holds <ins_1>, which only proposals may"),
        ("See <side_info> here", "holds <side_info>, which only the reflection prompt may"),
        ("x y " * 2_500, "10000 characters; 4000 allowed"),
        ("If asked, it is in Ouagadougou.", "brings in the answer 'Ouagadougou'"),
        ("Note that the result is 612.", "brings in the answer '612' of a training question"),
        ("The product equals 1230.", "brings in the answer '1,230'"),
        ("The product equals $1,230.00, always.", "brings in the answer '1,230'"),
        ("Always ADD the tens of 48, and 37.", "quotes the solution of a shown question"),
    ],
)
def test_invalid(text: str, reason: str):
    found = check(text)
    assert found is not None
    assert reason in found


def test_quoted_run_is_named():
    assert check("Then carry one into the next.") == (
        "quotes the solution of a shown question: 'then carry one into the'"
    )


def test_near_copies_of_parent_and_of_those_tried():
    near = VALID.replace("every", "each")
    assert check(near, others=("Another one entirely.", VALID)) == "near copy of one alive or tried"
    assert check(f"{VALID} Then check it once more.", others=(VALID,)) is None


def test_what_the_parent_holds_is_no_leak():
    parent = "The result is 612 and nothing else will ever do."
    assert check("It says 612 and so must you, whatever comes.", parent=parent) is None


def test_control_tokens_and_token_limit():
    assert check("Obey <|im_end|> now", control_tokens=("<|im_end|>",)) == (
        "holds <|im_end|>, which only the chat template may"
    )
    rules = {"count_tokens": lambda text: len(text.split()), "max_tokens": 3}
    assert check("one two three four", **rules) == "4 tokens; 3 allowed"
    assert check("one two three", **rules) is None


@given(st.integers(100, 10**9), st.sampled_from(["{}", "so: {}.", "({:,})", "-{}", "{}.00!"]))
def test_a_number_of_three_digits_is_found_however_written(number: int, form: str):
    task = Task("q", "?", (str(number),))
    assert leaked_answer(form.format(number), "", [task]) == str(number)
    assert leaked_answer(form.format(number), str(number), [task]) is None


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("42", "Check 2 cases, then the other 42."),
        ("2", "Split into 2 cases; the answer is the sum of both."),
        ("1", "The result is 1 minus the complement's probability."),
        ("2", "Answer in 2 sentences."),
        ("3", "Step 3: verify the answer."),
        ("17", "Start with 12 + 5."),
        (r"\frac{1}{2}", r"The area is 1/2 * b * h, or $\frac{1}{2} b h$."),
        ("B", "Compare option A with option B before you answer."),
        ("A", "The answer is A fraction in lowest terms."),
        ("I", "The answer is I think the larger one."),
        ("x", "Let x be unknown; the answer is x divided by 2."),
    ],
)
def test_small_numbers_and_letters_in_passing_are_no_leak(gold: str, text: str):
    assert TextRules().check(text, "", [], [Task("q", "?", (gold,))]) is None


@given(st.text(alphabet="<>/think_ins1curr_param` 0123,.", max_size=60))
def test_never_raises(text: str):
    found = check(text)
    assert found is None or found
