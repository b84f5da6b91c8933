"""An LLM that the user brings."""

import json
from pathlib import Path

import pytest

from cotune.errors import BudgetError, ConfigError
from cotune.llm.own import BankLLM, BankOptions, OwnLLMOptions, own_llm, read_bank
from cotune.methods.fst import instruction_prompt
from cotune.methods.inspo.proposers import read_tagged
from cotune.methods.text_evolution import gepa_prompt, read_fenced
from cotune.run.record import CachedLLM, Record
from tests.helpers import paraphrase_prompt, raises_line

CODE = """
class Mine:
    def complete(self, prompt):
        return prompt.upper()

class Needy(Mine):
    def __init__(self, key):
        ...

one = Mine()
number = 3
"""


@pytest.fixture(autouse=True)
def code(cwd: Path) -> None:
    (cwd / "mine.py").write_text(CODE, encoding="utf-8")


def options(name: str) -> OwnLLMOptions:
    return OwnLLMOptions(object=f"mine.py:{name}")


def test_a_class_is_made_and_an_object_is_used() -> None:
    assert own_llm(options("Mine")).complete("a") == "A"
    assert own_llm(options("Mine")) is not own_llm(options("Mine"))
    assert own_llm(options("one")) is own_llm(options("one"))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("Needy", r"mine.py:Needy\(\) raised TypeError: .*'key'.*without required arguments"),
        ("number", r"mine.py:number is of int, which has no complete\(prompt\)"),
    ],
)
def test_what_is_no_llm_is_refused(name: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        own_llm(options(name))
    assert str(caught.value).startswith("llm.object: ")


@pytest.mark.parametrize("key", ["sk-secret", "a b:c"])
def test_what_may_be_a_key_is_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match=r"package\.module:name") as caught:
        OwnLLMOptions(object=key)
    assert key not in str(caught.value)


EXAMPLES = [{"Inputs": "1 + 1?", "Generated Outputs": "3", "Feedback": "Wrong."}]

REWRITES = paraphrase_prompt("Add. List the candidates in tags.", 2, attempt=3)
HINTS = gepa_prompt("Carry the one.", EXAMPLES)
INSTRUCTION = instruction_prompt("Add.", EXAMPLES, ())


def bank(folder: Path, text: str) -> BankLLM:
    path = folder / "bank.txt"
    path.write_text(text, encoding="utf-8")
    return BankLLM(BankOptions(path=path))


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("\ufeffone\n\n two \nlines\n\n\none\n", ["one", "two \nlines"]),
        ("one\n\nmore\n---\ntwo\n-----  \n\n---\n", ["one\n\nmore", "two"]),
        ("a --- b\r\n\r\nc", ["a --- b", "c"]),
    ],
)
def test_entries_are_parted_by_blank_lines_or_by_rules(
    tmp_path: Path, text: str, entries: list[str]
) -> None:
    (tmp_path / "x").write_bytes(text.encode())
    assert read_bank(tmp_path / "x", "llm.path") == entries


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, r"^llm.path: cannot read .*bank: No such file"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b" \n---\n", "holds no text"),
        (b"fine\n\nnot </INS_1 > fine", "text 2 of .* contains </INS_1 >"),
        (b"```python", "text 1 of .* contains ```"),
    ],
)
def test_a_bank_that_cannot_propose_is_refused(
    tmp_path: Path, content: bytes | None, match: str
) -> None:
    if content is not None:
        (tmp_path / "bank").write_bytes(content)
    with raises_line(match=match):
        read_bank(tmp_path / "bank", "llm.path")


def test_each_proposer_gets_the_next_entries_as_it_reads_them(tmp_path: Path) -> None:
    (tmp_path / "seven").write_text("\n\n".join("abcdefg"), encoding="utf-8")
    llm = BankLLM(BankOptions(path=str(tmp_path / "seven")))  # type: ignore[arg-type]
    assert read_tagged(llm.complete(REWRITES).text)[1] == ["a", "b"]
    assert read_fenced(llm.complete(HINTS).text) == ("", ["c"])
    assert read_fenced(llm.complete(INSTRUCTION).text) == ("", ["d"])
    more = paraphrase_prompt("Add.", 4)
    assert read_tagged(llm.complete(more).text)[1] == ["e", "f", "g"]  # all that are left
    with pytest.raises(BudgetError, match=r"seven is exhausted: its 7 texts"):
        llm.complete(HINTS)


def test_what_was_proposed_is_saved_and_is_not_proposed_again(tmp_path: Path) -> None:
    llm = bank(tmp_path, "a\n\nb\n\nc")
    llm.complete(REWRITES)
    resumed = bank(tmp_path, "new\n\na\n\nb\n\nc")  # an entry is added before the resume
    resumed.load_state_dict(json.loads(json.dumps(llm.state_dict())))
    assert read_tagged(resumed.complete(REWRITES).text)[1] == ["new", "c"]


def test_a_phase_that_was_cut_off_goes_on_after_its_last_entry(tmp_path: Path) -> None:
    Record.create(tmp_path / "run", {})

    def phase() -> CachedLLM:
        return CachedLLM(bank(tmp_path, "a\n\nb\n\nc"), Record.open(tmp_path / "run"), 1)

    cut_off = phase()
    replies = [cut_off.complete(HINTS).text for _ in range(2)]
    resumed = phase()
    assert resumed.origin == "bank"
    assert [resumed.complete(HINTS).text for _ in range(2)] == replies
    assert resumed.complete(HINTS).text == "```\nc\n```"
    assert Record.open(tmp_path / "run").totals().llm_calls == 0  # no model was asked
