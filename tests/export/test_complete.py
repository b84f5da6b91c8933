"""best/ as a run leaves it: its own tokenizer renders a question to the tokens that were evaluated."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import AutoTokenizer, GenerationConfig

from cotune.cli import train
from cotune.config.run_file import RunConfig
from cotune.environments.base import TaskEnvironment
from cotune.errors import ConfigError
from cotune.export.export import complete_best, complete_serving, export
from cotune.policy.codec import HFCodec
from cotune.policy.local_policy import load
from cotune.policy.policy_files import policy_path
from cotune.protocols import Environment
from cotune.run.run_dir import RunDir
from cotune.types import Prompt, Task
from tests.export.finished import INSTRUCTION, files, finished_run, read_json
from tests.policy.tiny import Letters, models_template, tiny_model, tiny_tokenizer
from tests.run_files import environment_of, tiny

HOSTILE = INSTRUCTION + ' {{ 7 * 7 }} {% raw %} "quoted" \\ \n\n</s> ünï \U0001f600 \\boxed{}'


def look_up(word: str) -> str:
    """Looks a word up.

    Args:
        word: What to look up.
    """
    return word


def own_questions(folder: Path) -> dict[str, Any]:
    """A data set with a system prompt, or a conversation, before some of its questions."""
    chat = [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "1."}]
    contexts = ([], [{"role": "system", "content": "Be brief."}], chat)
    rows = [
        {
            "question": [*contexts[i % 3], {"role": "user", "content": f"What is {i} + {i}?"}],
            "answers": [str(2 * i)],
        }
        for i in range(30)
    ]
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"path": str(file), "validation": 3, "test": 6}


def world(kind: str, folder: Path, **changes: Any) -> dict[str, Any]:
    """A run file of a kind of environment."""
    raw = tiny(folder / "run", {"strategy": {"kind": "static"}})
    if kind == "ladder":
        raw["environment"] = {"kind": "ladder", "train": 8, "validation": 4, "test": 8}
        raw["policy"] = {"path": "bundled:ladder"}
        raw["limits"] = {"turns": 1, "turn_tokens": 64}
    elif kind in ("single_turn", "tools"):
        tools = {"tools": [f"{__file__}:look_up"]} if kind == "tools" else {}
        raw["environment"] = {"kind": kind, **tools}
        raw["dataset"] = own_questions(folder)
        raw["rewards"] = ["exact_match"]
    return raw | changes


def tokenizer_of(path: str, template: str = "") -> Any:
    """A policy's, as a run loads it."""
    tokenizer: Any = AutoTokenizer.from_pretrained(policy_path(path))
    if template:
        tokenizer.chat_template = models_template(template)
    return tokenizer


def check_renders_as_evaluated(
    run: RunDir, config: RunConfig, environment: Environment, tokenizer: Any
) -> None:
    """Of every test question: best/'s own tokenizer against what the run's codec rendered."""
    served: Any = AutoTokenizer.from_pretrained(run.best_path)
    evaluated = HFCodec(tokenizer, config.policy.template_args)
    best = Prompt(read_json(run.best_path / "best.json")["instruction"])
    tools = [dict(tool) for tool in environment.tools]
    tasks = environment.tasks("test")
    assert len(tasks) >= 6
    for task in tasks:
        for prompt, arguments in ((best, {}), (Prompt(""), {"instruction": ""})):
            tokens = served.apply_chat_template(
                environment.question_messages(task),
                tools=tools or None,
                add_generation_prompt=True,
                return_dict=False,
                **arguments,
            )
            assert tokens == evaluated.render(environment.messages(task, prompt), environment.tools)


NO_THOUGHTS = {"policy": {"path": "bundled:geo", "template_args": {"enable_thinking": False}}}


@pytest.mark.parametrize(
    ("kind", "template", "changes"),
    [
        ("geo", "", {}),
        ("ladder", "", {}),
        ("single_turn", "qwen2_5", {"instruction": {"role": "system"}}),
        ("single_turn", "qwen2_5", {"instruction": {"placement": "after"}}),
        ("single_turn", "qwen3", {"instruction": {"role": "system", "system": "replace"}, **NO_THOUGHTS}),
        ("tools", "qwen2_5", {}),
        ("tools", "qwen3", {"instruction": {"role": "system"}}),
    ],
)  # fmt: skip
def test_a_question_alone_is_rendered_to_the_evaluated_tokens(
    kind: str, template: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    tokenizer = tokenizer_of("bundled:ladder" if kind == "ladder" else "bundled:geo", template)
    run, config = finished_run(world(kind, tmp_path, **changes), tokenizer, instruction=HOSTILE)
    environment = environment_of(config)
    complete_best(config, run, environment)
    serving = complete_serving(run)
    assert serving is not None
    assert (serving.instruction_in_template, serving.reason) == (True, "")
    assert serving.tools == (("look_up",) if kind == "tools" else ())
    check_renders_as_evaluated(run, config, environment, tokenizer)


def test_of_several_templates_none_carries_it(tmp_path: Path) -> None:
    base = tokenizer_of("bundled:geo")
    base.chat_template = {"default": base.chat_template, "tool_use": models_template("qwen2_5")}
    run, config = finished_run(world("tools", tmp_path), base)
    assert complete_best(config, run).reason == "the tokenizer has no chat template, or several"
    served: Any = AutoTokenizer.from_pretrained(run.best_path)
    assert served.chat_template == base.chat_template


class Rephrased(TaskEnvironment):
    """Writes its own messages for some questions."""

    def messages(self, task: Task, prompt: Prompt) -> list[dict[str, str]]:
        if task.id.endswith("1"):
            return [{"role": "user", "content": f"{task.question} {prompt.instruction}"}]
        return super().messages(task, prompt)


@pytest.mark.parametrize("environment", [Letters(), None])
def test_an_environment_that_lays_out_its_own_messages_keeps_the_models_template(
    environment: Any, tmp_path: Path
) -> None:
    if environment is None:
        tasks = [Task(f"t{i}", f"Question {i}?", ("a",)) for i in range(3)]
        environment = Rephrased(dict.fromkeys(("train", "validation", "test"), tasks), "")
    tokenizer = tokenizer_of("bundled:geo")
    run, config = finished_run(world("geo", tmp_path), tokenizer)
    complete_best(config, run, environment)
    template = (run.best_path / "chat_template.jinja").read_text(encoding="utf-8")
    assert template == tokenizer.chat_template
    serving = complete_serving(run)
    assert serving is not None
    assert not serving.instruction_in_template
    card = (run.best_path / "README.md").read_text(encoding="utf-8")
    assert "The chat template does not carry it" in card
    assert f"{type(environment).__name__} " in card
    assert "replaces it" not in card
    assert "`serving.json` says where it stood" in card


def test_completing_again_changes_nothing_and_repairs_a_kill(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    run, config = finished_run(world("geo", tmp_path), tokenizer, tiny_model(tokenizer))
    first_files = files(run.best_path)
    complete_best(config, run)
    all_files = files(run.best_path)
    assert all_files.keys() - first_files.keys() == {"README.md", "serving.json"}
    complete_best(config, run)
    assert files(run.best_path) == all_files
    order = ("serving.json", "README.md", "generation_config.json", "chat_template.jinja")
    for count in range(len(order)):
        for name in order[: count + 1]:
            path = run.best_path / name
            if name in first_files:
                path.write_bytes(first_files[name])
            else:
                path.unlink()
        if count % 2:
            export(run.path, output=tmp_path / f"export-{count}")
        else:
            assert train.resume(run.path, Console(quiet=True)) == run.path
        assert files(run.best_path) == all_files
    assert (run.path / "report.html").is_file()
    with pytest.raises(ConfigError, match="this run is finished"):
        train.resume(run.path, Console(quiet=True))


def test_a_completion_of_an_earlier_attempt_is_done_anew(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    run, config = finished_run(world("geo", tmp_path), tokenizer, tiny_model(tokenizer))
    assert complete_best(config, run).attempt == 1
    assert complete_serving(run)
    run.cut_back(0)
    with pytest.raises(ConfigError, match="not finished"):
        complete_serving(run)
    summary = read_json(run.path / "summary.json")
    run.write_summary({k: v for k, v in summary.items() if k not in ("attempt", "schema_version")})
    assert complete_serving(run) is None
    (run.best_path / "README.md").write_text("of the first attempt", encoding="utf-8")
    export(run.path)
    assert "Results" in (run.best_path / "README.md").read_text(encoding="utf-8")


def test_the_generation_config_is_that_of_the_evaluation(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.7, top_k=20, eos_token_id=[5, 6], pad_token_id=0
    )
    run, config = finished_run(world("geo", tmp_path), tokenizer, model)
    complete_best(config, run)
    generation = GenerationConfig.from_pretrained(run.best_path)
    assert generation.do_sample is False
    assert not {"temperature", "top_k", "top_p"} & generation.to_diff_dict().keys()
    assert generation.max_new_tokens == config.limits.turn_tokens == 24
    assert generation.eos_token_id == [tokenizer.eos_token_id, 5, 6]
    loaded, _ = load(run.best_path)
    ids = tokenizer("abc", return_tensors="pt").input_ids
    assert loaded.generate(ids).shape[1] <= ids.shape[1] + 24
    loaded.save_pretrained(tmp_path / "again")  # refuses a config that contradicts itself


def test_nothing_says_where_it_was_trained(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "my-base")
    tiny_model(tokenizer).save_pretrained(tmp_path / "my-base")
    model, loaded = load(tmp_path / "my-base")
    raw = world("single_turn", tmp_path, policy={"path": str(tmp_path / "my-base")})
    run, config = finished_run(raw, loaded, model)
    complete_best(config, run)
    for name, content in files(run.best_path).items():
        assert str(tmp_path).encode() not in content, name
        assert b'"is_local"' not in content, name
    card = (run.best_path / "README.md").read_text(encoding="utf-8")
    assert "my-base" in card
