"""Scripts of the kinds that TRL's users write, with two changes: the trainer's class and `method=`.

After GSM8K with a system message, XML tags with several reward functions, `grpo_agent`, `grpo_2048`,
and plain prompts that end with the beginning of the answer. Each script is a function of the trainer's class.
"""

import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

import cotune
from cotune.config.resuming import open_trained, recorded_config
from cotune.errors import ConfigError
from cotune.experiments.evaluate.evaluation import evaluate_run
from cotune.experiments.evaluate.questions import EvaluationOptions
from cotune.export.export import export
from cotune.types import Completion, Prompt
from tests.helpers import jsonl
from tests.policy.tiny import small_policy

POLICY = str(Path(__file__).parents[3] / "examples" / "three_tools" / "policy")
SYSTEM_PROMPT = """
Respond in the following format:
<reasoning>
...
</reasoning>
<answer>
...
</answer>
"""
PREAMBLE = "You have a calculator and must use it. Answer with the number alone."


def config(folder: Path, **changes: Any) -> GRPOConfig:
    """What these scripts set; all else is TRL's default: its loss, epochs, shuffled data."""
    fields: dict[str, Any] = {
        "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 16,
        "logging_steps": 1, "report_to": "none", "use_cpu": True, "bf16": False,
        "disable_tqdm": True,
    }  # fmt: skip
    return GRPOConfig(output_dir=str(folder), **{**fields, **changes})


def sums(count: int = 4) -> list[tuple[str, str]]:
    rng = random.Random(0)
    pairs = [(rng.randrange(50), rng.randrange(50)) for _ in range(count)]
    return [(f"What is {a} + {b}?", str(a + b)) for a, b in pairs]


def gsm8k(policy: str, folder: Path, trainer: Callable[..., Any]) -> Any:
    def digits(completions: Any, **kwargs: Any) -> list[float]:
        return [len(re.findall(r"\d", c[0]["content"])) / 9 for c in completions]

    rows = [{"question": q, "answer": f"It is so.\n#### {a}"} for q, a in sums()]
    dataset = Dataset.from_list(rows).map(
        lambda row: {
            "prompt": [
                {"role": "system", "content": "Reason step by step."},
                {"role": "user", "content": row["question"]},
            ]
        }
    )
    return trainer(
        policy,
        [digits],
        config(folder, num_train_epochs=1, eval_strategy="epoch", per_device_eval_batch_size=4),
        dataset,
        {"validation": dataset.select([0]), "hard": dataset.select([1, 2, 3])},
    )


def xml_with_rewards(policy: str, folder: Path, trainer: Callable[..., Any]) -> Any:
    def correctness_reward_func(prompts: Any, completions: Any, answer: Any, **kwargs: Any) -> Any:
        assert prompts[0][-1]["content"].startswith("What is")
        return [2.0 * (a in c[0]["content"]) for c, a in zip(completions, answer, strict=True)]

    def xmlcount_reward_func(completions: Any, **kwargs: Any) -> Any:
        return [-0.001 * len(c[0]["content"]) for c in completions]

    rows = [
        {
            "prompt": [
                {"role": "system", "content": SYSTEM_PROMPT},
                {"role": "user", "content": "What is the largest single-digit prime number?"},
                {"role": "assistant", "content": "<reasoning>\n9 is 3 x 3.\n</reasoning>\n7\n"},
                {"role": "user", "content": q},
            ],
            "answer": a,
        }
        for q, a in sums()
    ]
    return trainer(
        model=policy,
        processing_class=AutoTokenizer.from_pretrained(policy),
        reward_funcs=[xmlcount_reward_func, correctness_reward_func],
        args=config(folder, max_steps=2, adam_beta2=0.99, lr_scheduler_type="cosine"),
        train_dataset=Dataset.from_list(rows),
        peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )


def calculator(expression: str) -> float:
    """Calculate.

    Args:
        expression: Such as 2 + 2.
    """
    first, second = expression.split("+")
    return float(first) + float(second)


def structure(completions: Any, **kwargs: Any) -> list[float]:
    return [
        0.1 * any(m.get("tool_calls") for m in messages) + len(str(messages)) / 1000
        for messages in completions
    ]


def agent(policy: str, folder: Path, trainer: Callable[..., Any]) -> Any:
    rows = [
        {"prompt": [{"role": "user", "content": f"{PREAMBLE}\n\nQuestion: {q}"}], "answer": a}
        for q, a in sums()
    ]
    return trainer(
        model=policy,
        reward_funcs=structure,
        tools=[calculator],
        args=config(folder, max_steps=2, max_tool_calling_iterations=1, num_iterations=2),
        train_dataset=Dataset.from_list(rows),
    )


class Game:
    """A game of one number, which moves add to."""

    def reset(self, **kwargs: Any) -> str:
        self.target, self.score = random.randint(1, 6), 0
        return f"\n\nReach {self.target}."

    def move(self, by: int) -> str:
        """Move.

        Args:
            by: How far.
        """
        self.score += by
        return f"score={self.score}"


def game(policy: str, folder: Path, trainer: Callable[..., Any]) -> Any:
    def reward_score(environments: Sequence[Game], **kwargs: Any) -> list[float]:
        return [-abs(float(game.target - game.score)) for game in environments]

    prompt = [{"role": "user", "content": "Play the game with the tool. Be quick."}]
    return trainer(
        model=policy,
        reward_funcs=reward_score,
        args=config(folder, max_steps=2, max_tool_calling_iterations=2),
        train_dataset=Dataset.from_dict({"prompt": [prompt] * 8}),
        environment_factory=Game,
    )


def prefilled(policy: str, folder: Path, trainer: Callable[..., Any]) -> Any:
    def equation(completions: Sequence[str], nums: Any, **kwargs: Any) -> list[float]:
        return [
            float(str(n.flatten()[0].item()) in c) for c, n in zip(completions, nums, strict=True)
        ]

    tokenizer = AutoTokenizer.from_pretrained(policy)
    rows = [
        {
            "prompt": tokenizer.apply_chat_template(
                [
                    {"role": "system", "content": PREAMBLE},
                    {"role": "user", "content": q},
                    {"role": "assistant", "content": "Let me solve this.\n"},
                ],
                tokenize=False,
                continue_final_message=True,
            ),
            "nums": [int(a), 1],
        }
        for q, a in sums()
    ]
    return trainer(
        model=policy,
        reward_funcs=[equation],
        args=config(folder, max_steps=2, shuffle_dataset=False, beta=0.001, loss_type="grpo"),
        train_dataset=Dataset.from_list(rows).with_format("torch"),
    )


class Rewriter:
    """An LLM that writes other words around the tags of the instruction it is shown."""

    def __init__(self) -> None:
        self.parents: list[str] = []

    def complete(self, prompt: str) -> Completion:
        parent = re.findall(r"<ins_0>(.*?)</ins_0>", prompt, re.DOTALL)[-1]
        self.parents.append(parent.strip())
        tags, rng = " ".join(re.findall(r"</?\w+>", parent)), random.Random(prompt)
        words = (" ".join(rng.sample("abcdefghijklmnop", 8)) for _ in range(4))
        return Completion(
            "\n".join(f"<ins_{i}>{text} {tags}</ins_{i}>" for i, text in enumerate(words, 1))
        )


@pytest.fixture(scope="module")
def policy() -> str:
    """A policy whose template has tools, untrained."""
    return small_policy(POLICY)


@pytest.mark.parametrize(
    ("script", "instruction"),
    [
        (gsm8k, None),
        (xml_with_rewards, None),
        (agent, PREAMBLE),
        (game, None),
        (prefilled, PREAMBLE),
    ],
)
def test_a_script_trains_the_policy_and_its_instruction(
    policy: str, tmp_path: Path, script: Callable[..., Any], instruction: str | None
) -> None:
    llm = Rewriter()
    method = cotune.INSPO(
        llm=llm,
        instruction=instruction,
        population_size=2,
        evolve_every=1,
        verification_tasks=2,
        verification_rounds=1,
    )
    trainer = script(policy, tmp_path / "joint", partial(cotune.JointTrainer, method=method))
    trl_trainer: GRPOTrainer = script(policy, tmp_path / "trl", GRPOTrainer)
    environment, codec = trainer.joint.parts.environment, trainer.joint.codec
    initial = Prompt(trainer.best_instruction)
    # In one of them reset() adds the task.
    if script is not game:
        rows: Any = trl_trainer.train_dataset
        tokenized = trl_trainer._tokenize_prompts([row["prompt"] for row in rows])  # pyright: ignore[reportPrivateUsage]
        assert [
            codec.render(environment.messages(task, initial), environment.tools)
            for task in environment.tasks("train")
        ] == [list(ids) for ids in tokenized[0]]
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    assert trainer.state.global_step == 2
    assert llm.parents[0] == initial.instruction.strip()
    assert len(cotune.open_run(trainer.run_folder).read_instructions()) > 1
    logged = {name for row in trainer.state.log_history for name in row}
    assert {f"rewards/{name}/mean" for name in trl_trainer.reward_func_names} <= logged
    assert (trainer.run_folder / "report.html").is_file()
    trainer.save_model(str(tmp_path / "agent"))
    saved = (tmp_path / "agent" / "instruction.txt").read_text(encoding="utf-8")
    assert saved == trainer.best_instruction + "\n"
    template = AutoTokenizer.from_pretrained(str(tmp_path / "agent")).chat_template
    assert template.startswith("{#- cotune") == (script is not prefilled)


def test_a_scripts_run_is_exported_and_scored_outside_the_script(
    policy: str, tmp_path: Path
) -> None:
    method = cotune.Static(instruction=PREAMBLE)
    trainer = agent(policy, tmp_path / "out", partial(cotune.JointTrainer, method=method))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    exported = export(trainer.run_folder)
    assert (exported / "chat_template.jinja").read_text().startswith("{#- cotune")
    assert "Trained by `cotune.JointTrainer`" in (exported / "README.md").read_text()
    run, config = open_trained(trainer.run_folder)
    questions = [{"role": "user", "content": f"Question: {q}"} for q, _ in sums(3)]
    instructed = [q | {"content": f"{PREAMBLE}\n\n{q['content']}"} for q in questions]
    mean = trainer.evaluate([{"prompt": [q], "answer": "7"} for q in instructed])["eval_reward"]
    for messages in (instructed, questions):  # in the script's form, and without the instruction
        rows = [{"prompt": [message], "answer": "7"} for message in messages]
        path = jsonl(tmp_path / "questions.jsonl", rows)
        (result,) = evaluate_run(config, run, EvaluationOptions(questions=[path])).sets
        assert result.figures[0].mean == pytest.approx(mean)
    with pytest.raises(ConfigError, match="--questions FILE"):
        evaluate_run(config, run, EvaluationOptions())
    lost_config = recorded_config(run, ["rewards=['__main__:lost']"])
    with pytest.raises(ConfigError, match="lost cannot be made again outside its script"):
        evaluate_run(lost_config, run, EvaluationOptions(questions=[tmp_path / "questions.jsonl"]))


def test_data_sets_by_name_are_evaluated_each_by_itself(policy: str, tmp_path: Path) -> None:
    trainer = gsm8k(policy, tmp_path, partial(cotune.JointTrainer, method=cotune.Static()))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    metrics = trainer.evaluate()
    easy, hard, both = (metrics[f"eval_{name}reward"] for name in ("validation_", "hard_", ""))
    assert metrics["eval_hard_rewards/digits/mean"] == hard
    assert both == pytest.approx((easy + 3 * hard) / 4)
    assert trainer.evaluate("validation")["eval_reward"] == easy
    question = {"prompt": [{"role": "user", "content": "What is 1 + 1?"}]}
    rows = trainer.evaluate({"mine": [question]}, metric_key_prefix="test")
    assert rows["test_mine_reward"] == rows["test_reward"]
    logged = next(row for row in trainer.state.log_history if "eval_hard_reward" in row)
    assert {"eval_validation_reward", "eval_hard_reward"} <= logged.keys()
    events = cotune.open_run(trainer.run_folder).read_events()
    scores = [event["by_stratum"] for event in events if event["kind"] == "evaluated"]
    assert {name: n for name, (_, n) in scores[-1].items()} == {"validation": 1, "hard": 3}
