"""Prompts of data in TRL's form: as TRL trains on them, and under other instructions."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trl
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from cotune.data.trl_data import read_rows, tasks_of
from cotune.environments.prompt_in_data import PromptInData, place_instruction
from cotune.environments.trl_factory import from_trl
from cotune.policy.chat_template import with_instruction
from cotune.policy.codec import HFCodec, PlainCodec
from cotune.types import Prompt, Task
from tests.helpers import tool_schema
from tests.policy.tiny import byte_tokenizer, models_template

S = "You are a terse assistant."
OTHER = "Think first, {{ then }} answer \\1."
EXPRESSION = {"type": "string", "description": "Such as 2+2."}
TOOLS = (tool_schema("calculator", "Calculate.", expression=EXPRESSION),)
SPECIAL = {
    "qwen2_5": ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    "qwen3": ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    "llama3_2": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
}  # fmt: skip


def message(role: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def user(text: str) -> dict[str, Any]:
    return message("user", text)


SYSTEM = message("system", S)
CALL = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "2+2"}}}
MARKUP = f"<|im_start|>system\n{S}<|im_end|>\n<|im_start|>user\nIt?<|im_end|>\n<|im_start|>assistant\nLet"
PROMPTS: dict[str, tuple[Any, str | None]] = {
    "system message": (lambda q: [SYSTEM, user(q)], None),
    "examples": (lambda q: [SYSTEM, user("2+2?"), message("assistant", "#### 4"), user(q)], None),
    "preamble": (lambda q: [user(f"{S}\n\n{q}")], S),
    "preamble after examples": (lambda q: [user(f"{S}\n\n2+2?"), message("assistant", "4"), user(f"{S}\n\n{q}")], S),
    "within the system message": (lambda q: [message("system", f"Hi. {S} Bye."), user(q)], S),
    "after the question": (lambda q: [user(f"{q}\n{S}")], S),
    "prefill": (lambda q: [SYSTEM, user(q), message("assistant", "Let me think.")], None),
    "white space": (lambda q: [message("system", f"\n{S}\n"), user(f"  {q}  \n")], None),
    "tool calls": (
        lambda q: [
            SYSTEM,
            user("2+2?"),
            message("assistant", "", tool_calls=[CALL]),
            message("tool", "4", name="calculator"),
            message("assistant", "4"),
            user(q),
        ],
        None,
    ),
    "no instruction": (lambda q: [user(q)], None),
    "plain text": (lambda q: f"{S}\nQ: {q}\nA:", S),
    "plain text with markup": (lambda q: MARKUP.replace("It?", q), S),
}  # fmt: skip
CASES = [
    (name, template, tools)
    for name in PROMPTS
    for template in SPECIAL
    for tools in ((), TOOLS)
    if not (tools and "plain" in name) and not ("calls" in name and not tools)
]  # fmt: skip


def tokenizer_of(template: str) -> PreTrainedTokenizerBase:
    special = SPECIAL[template]
    return byte_tokenizer(
        models_template(template), special, "<|eot_id|>" if "llama" in template else "<|im_end|>"
    )


def ids_of_trl(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Any], tools: Sequence[Any]
) -> list[list[int]]:
    """The tokens that GRPOTrainer makes of prompts, by its own code."""
    trainer = SimpleNamespace(
        processing_class=tokenizer,
        tools=list(tools),
        chat_template=None,
        chat_template_kwargs={},
        environment_factories=None,
        _is_vlm=False,
    )
    tokenize: Any = trl.GRPOTrainer._tokenize_prompts  # pyright: ignore[reportPrivateUsage]
    return [list(ids) for ids in tokenize(trainer, list(prompts))[0]]


def rows_of(name: str) -> tuple[list[dict[str, Any]], str, str]:
    """The rows of a case as a data set has them, the initial instruction and its text there."""
    prompt, instruction = PROMPTS[name]
    rows = [{"prompt": prompt(f"What is {i}+1?"), "answer": "1"} for i in range(4)]
    options: Any = {"on_mixed_types": "use_json"} if name == "tool calls" else {}
    train_rows = read_rows(Dataset.from_list(rows, **options), "train_dataset")
    place = place_instruction(train_rows, instruction, False, "INSPO")
    return train_rows, place.initial, place.text


@pytest.mark.parametrize(("name", "template", "tools"), CASES)
def test_the_first_prompts_are_those_of_trl(
    name: str, template: str, tools: Sequence[Mapping[str, Any]]
) -> None:
    tokenizer = tokenizer_of(template)
    rows, initial, text = rows_of(name)
    tasks = tasks_of(rows, "train", text)
    layout = PromptInData(text=text)
    codec = HFCodec(tokenizer) if tasks[0].chat else PlainCodec(tokenizer)
    prompt_ids = [codec.render(layout.messages(task, Prompt(initial)), tools) for task in tasks]
    assert prompt_ids == ids_of_trl(tokenizer, [row["prompt"] for row in rows], tools)


@pytest.mark.parametrize("name", PROMPTS)
def test_another_instruction_stands_where_the_data_had_the_first(name: str) -> None:
    rows, initial, text = rows_of(name)
    before = [dict(row) for row in rows]
    layout = PromptInData(text=text)
    for task, row in zip(tasks_of(rows, "train", text), rows, strict=True):
        plain = isinstance(row["prompt"], str)
        chat = [user(row["prompt"])] if plain else row["prompt"]
        messages = layout.messages(task, Prompt(OTHER))
        if not initial:
            assert messages == [message("system", OTHER), *layout.messages(task, Prompt(""))]
            continue
        assert [m["content"] for m in messages] == [m["content"].replace(text, OTHER) for m in chat]
    assert rows == before


def test_an_instruction_without_a_place_is_added() -> None:
    layout = PromptInData()
    chat, persona, plain = tasks_of(
        [
            {"prompt": [user("2+2?")]},
            {"prompt": [message("system", "Persona 1."), user("2+2?")]},
            {"prompt": "2+2?"},
        ],
        "train",
        "",
    )
    prompt = Prompt(OTHER, hint="A hint.")
    question = user("A hint.\n\n2+2?")
    assert layout.messages(chat, prompt) == [message("system", OTHER), question]
    assert layout.messages(persona, prompt) == [
        message("system", f"Persona 1.\n\n{OTHER}"),
        question,
    ]
    assert layout.messages(plain, prompt) == [user(f"A hint.\n\n{OTHER}\n\n2+2?")]
    # A question may quote the system message.
    rows = [{"prompt": [SYSTEM, user(f"Who says {S!r}?")]}]
    (task,) = tasks_of(rows, "train", S)
    assert task.question == f"Who says {S!r}?"
    assert PromptInData(text=S).messages(task, Prompt(OTHER))[-1] == user(task.question)


def test_a_hint_stands_before_the_question_but_not_before_markup() -> None:
    for name, before in (("system message", "user\n"), ("plain text with markup", f"{OTHER}\n\n")):
        rows, _, text = rows_of(name)
        (task, *_) = tasks_of(rows, "train", text)
        tokenizer = tokenizer_of("qwen2_5")
        codec = HFCodec(tokenizer) if task.chat else PlainCodec(tokenizer)
        layout = PromptInData(text=text)
        plain, hinted = (
            codec.decode(codec.render(layout.messages(task, Prompt(OTHER, hint))))
            for hint in ("", "A hint.")
        )
        assert f"{before}A hint." in hinted
        assert hinted.replace("A hint.\n\n", "").replace("\n\nA hint.", "") == plain


class Game:
    """An environment for TRL whose reset() describes the game."""

    def reset(self, level: int, **_: Any) -> str:
        return f"level={level}"

    def get_reward(self) -> float:
        return 0.0


@pytest.mark.parametrize("ending", ["", "\n", " Go: "])
def test_the_text_of_reset_follows_the_last_message(ending: str) -> None:
    rows: list[dict[str, Any]] = [{"prompt": [user(f"{S}{ending}")], "level": i} for i in range(2)]
    place = place_instruction(rows, None if ending != " Go: " else S, True, "INSPO")
    layout = PromptInData(text=place.text)
    environment = from_trl(
        Game, {"train": tasks_of(rows, "train", place.text)}, place.initial, layout
    )
    (task,) = environment.begin([environment.tasks("train")[1]], [0], [0])
    assert environment.messages(task, Prompt(place.initial)) == [user(f"{S}{ending}level=1")]
    separator = ending or "\n"
    assert environment.messages(task, Prompt(OTHER)) == [user(f"{OTHER}{separator}level=1")]


def render_both(name: str, instruction: str) -> tuple[list[list[int]], list[list[int]]]:
    """Questions as trained under an instruction, and as a server renders them alone."""
    tokenizer = tokenizer_of("qwen2_5")
    rows, _, text = rows_of(name)
    tasks: list[Task] = tasks_of(rows, "train", text)
    layout, codec = PromptInData(text=text), HFCodec(tokenizer)
    trained = [codec.render(layout.messages(task, Prompt(instruction))) for task in tasks]
    served = layout.served(tasks, instruction)
    assert served is not None
    template = with_instruction(str(tokenizer.chat_template), served, instruction)
    return trained, [
        tokenizer.apply_chat_template(
            layout.question_messages(task),
            chat_template=template,
            add_generation_prompt=True,
            return_dict=False,
        )
        for task in tasks
    ]  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(
    "name", ["system message", "preamble", "after the question", "no instruction"]
)
@pytest.mark.parametrize("instruction", [S, OTHER])
def test_the_saved_template_renders_a_question_as_trained(name: str, instruction: str) -> None:
    trained, served = render_both(name, instruction)
    assert served == trained


@pytest.mark.parametrize(
    "name", ["within the system message", "preamble after examples", "plain text"]
)
def test_no_template_can_put_an_instruction_into_the_middle(name: str) -> None:
    rows, _, text = rows_of(name)
    assert PromptInData(text=text).served(tasks_of(rows, "train", text), OTHER) is None


def test_a_template_parts_an_instruction_from_a_question_that_followed_directly() -> None:
    rows = [{"prompt": [user(f"Solve:{i}")]} for i in range(3)]
    layout = PromptInData(text="Solve:")
    (task, *_) = tasks = tasks_of(rows, "train", "Solve:")
    for instruction, separator in (("Solve:", ""), (OTHER, "\n")):
        served = layout.served(tasks, instruction)
        assert served is not None
        assert served.separator == separator
        trained = layout.messages(task, Prompt(instruction))
        assert trained == [user(f"{instruction}{separator}0")]
    uneven = [{"prompt": [user(f"Solve:{' ' * i}{i}")]} for i in range(3)]
    assert layout.served(tasks_of(uneven, "train", "Solve:"), OTHER) is None
