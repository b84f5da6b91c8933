"""From a run file to the parts of a run."""

from pathlib import Path
from typing import Any

import pytest

from cotune.config.build import build_llm, describe_llm
from cotune.config.run_file import RunConfig
from cotune.errors import LLMError
from cotune.run.record import Record, identity_of
from cotune.types import Progress
from cotune.worlds.ladder import LadderEnvironment, LadderOptions
from tests.helpers import Events, make_trajectory, paraphrase_prompt
from tests.methods.p2o.hint_fakes import Policy
from tests.run_files import config_of, environment_of, strategy_of
from tests.scripted import Author

LADDER = {"kind": "ladder", "train": 16, "validation": 8, "test": 8}
BOXED = "Work it out. Put it in \\boxed{}."


def config(strategy: dict[str, Any], **changes: Any) -> RunConfig:
    return config_of(**{"strategy": strategy, "environment": LADDER, **changes})


class Words:
    control_tokens = ("<|end|>",)

    def count(self, text: str) -> int:
        return len(text.split())


def test_a_hint_may_take_half_of_a_prompts_tokens() -> None:
    hints = {"hard_set_min_count": 4, "dev_size": 4, "budget": 30, "beam": 2}
    run_config = config({"kind": "p2o", "hints": hints}, limits={"prompt_tokens": 26})
    world, events = environment_of(run_config), Events()
    strategy = strategy_of(run_config, world, Words())
    failures = [
        make_trajectory(a, 0.0) for a in strategy.assign(world.tasks("train"), 2, Progress(1, 0, 9))
    ]
    strategy.observe(failures, Progress(1, 0, 9), events)
    author = Author(lambda n, prompt: "```\nMind every column and each carry.\n```")
    policy = Policy(lambda task, hint: False)
    strategy.evolve_if_due(Progress(2, 1, 9), policy, author, events)
    assert {row["reason"] for row in events.of("hint_rejected")} == {"6 tokens; 5 allowed"}


def test_a_bank_and_an_llm_of_ones_own(cwd: Path) -> None:
    (cwd / "bank.txt").write_text("one\n\ntwo")
    (cwd / "my.py").write_text(
        "class My:\n    seed = 0\n    def complete(self, prompt): return f'{prompt} {self.seed}'\n"
    )
    bank = config({"kind": "inspo"}, llm={"kind": "bank", "path": "bank.txt"})
    custom = config({"kind": "inspo"}, llm="my.py:My")
    assert describe_llm(bank.proposer) == "a bank of written texts (bank.txt), not an LLM"
    record = Record()
    record.begin_attempt(None)
    texts = build_llm(bank.proposer, 0, record).complete(paraphrase_prompt(BOXED, 3)).text
    assert texts == "<ins_1>\none\n</ins_1>\n\n<ins_2>\ntwo\n</ins_2>"
    assert record.read_costs() == []  # no LLM was asked
    custom_llm = build_llm(custom.proposer, 7, record)  # one with a seed gets the run's
    assert (identity_of(custom_llm), custom_llm.complete("a").text) == ("my.py:My", "a 7")
    assert [row.model for row in record.read_costs()] == ["my.py:My"]
    sections = {"llm": {"kind": "python", "object": "my.py:My", "optional": True}}
    optional = build_llm(config({"kind": "inspo"}, **sections).proposer, 0, record)
    assert [getattr(llm, "optional", None) for llm in (custom_llm, optional)] == [False, True]


def test_the_rules_serve_both_methods_prompts_and_a_static_run_has_none(tmp_path: Path) -> None:
    record = Record.create(tmp_path, {})
    record.begin_attempt(None)
    llm = build_llm(
        config({"kind": "p2o"}).proposer,
        0,
        record,
        LadderEnvironment(LadderOptions(train=1, validation=1, test=1)),
    )
    # GEPA's prompt is known, but shows no example.
    with pytest.raises(LLMError, match="no failed example"):
        llm.complete("I provided an assistant with the following instructions: none")
    assert "<ins_2>" in llm.complete(paraphrase_prompt(BOXED, 2)).text
    assert record.totals().llm_calls == 2
    with pytest.raises(LLMError, match="this run has no LLM"):
        build_llm(config({"kind": "static"}).proposer, 0, record).complete("?")
