"""Quadrants: {initial, trained weights} × {initial, best instruction}, from rewards to the table."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from transformers import AutoModelForCausalLM

from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.experiments.evaluate.quadrants import (
    FILE,
    GAINS,
    PROMPTS,
    QUADRANTS,
    Quadrants,
    hash_of_best,
    quadrant_table,
    quadrants_as_json,
    read_quadrants,
)
from cotune.run.scores import difference_interval, wilson
from cotune.utils.tables import on_console
from cotune_lab.worlds.geo import INITIAL_INSTRUCTION as SEARCH
from tests.command_line import Command, Refused
from tests.experiments.evaluate.folders import BETTER, quadrants, short, write_run
from tests.experiments.report.pages import console_text


def test_scores_and_gains_by_hand() -> None:
    quads = quadrants()
    assert {name: quads.score(name, "greedy").mean for name in QUADRANTS} == {
        "initial_plain": 0.25, "initial_prompted": 0.5, "trained_plain": 0.5, "trained_prompted": 1.0,
    }  # fmt: skip
    gains = {name: tuple(quads.gain(name, d).mean for d in ("greedy", "sampled")) for name in GAINS}
    assert gains == {
        "both": (0.75, 0.375),
        "weights_plain": (0.25, 0.125),
        "weights_prompted": (0.5, 0.25),
        "prompt_initial": (0.25, 0.125),
        "prompt_trained": (0.5, 0.25),
    }
    # The intervals of every other table; gains are paired.
    assert quads.score("trained_prompted", "greedy").interval == wilson(1.0, 4)
    assert quads.gain("both", "greedy").interval == difference_interval([1, 1, 1, 0])
    zeros = {name: {"greedy": (0.0,) * 4, "sampled": (0.0,) * 4} for name in QUADRANTS}
    low, high = quadrants(rewards=zeros).gain("both", "greedy").interval or (0, 0)
    assert low < 0 < high
    row = quadrants_as_json(quads)
    assert row["scores"]["initial_plain"]["greedy"] == {"mean": 0.25, "interval": wilson(0.25, 4)}
    assert row["gains"]["both"]["sampled"]["mean"] == 0.375
    assert row["divergence"]["plain"]["mean"] == 0.5


def test_a_divergence_is_a_mean_over_tokens() -> None:
    quads = quadrants()
    assert quads.divergence("plain").mean == pytest.approx(2.0 / 4)
    # Each question has 0.5 nats a token, so nothing is known of the spread.
    assert quads.divergence("prompted").mean == pytest.approx(4.0 / 8)
    assert quads.divergence("prompted").interval is None


def test_the_file_is_of_the_policy_that_it_was_measured_with(tmp_path: Path) -> None:
    assert read_quadrants(tmp_path) is None
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "best.json").write_text("{}")
    quads = quadrants(of=hash_of_best(tmp_path))
    quads.write(tmp_path)
    assert read_quadrants(tmp_path) == quads
    (tmp_path / "best" / "best.json").write_text("{ }")
    assert read_quadrants(tmp_path) is None
    row = json.loads((tmp_path / FILE).read_text())
    for damaged in ("{", {**row, "schema_version": 2}, {**row, "rewards": 1}):
        text = damaged if isinstance(damaged, str) else json.dumps(damaged)
        (tmp_path / FILE).write_text(text)
        with pytest.raises(ConfigError, match=r"quadrants\.json: cannot be read .*--quadrants"):
            read_quadrants(tmp_path)


def table_lines(quads: Quadrants) -> list[str]:
    table = quadrant_table(quads)
    lines = [*console_text(on_console(table)).splitlines(), table.notes]
    return [" ".join(line.replace("│", "").split()) for line in lines]


def test_the_table_has_the_gains_at_its_margins() -> None:
    lines = table_lines(quadrants())
    assert lines[0] == "Held-out exact match"
    assert lines[3] == "greedy"
    assert lines[4].startswith("initial weights 25.0 % (5–70) 50.0 % (15–85) +25.0 (−55 to +100)")
    assert lines[6].startswith("gain +25.0 (−55 to +100) +50.0 (−42 to +100) +75.0 (")
    assert lines[7] == "avg@2"
    assert lines[11:13] == ["KL to initial", "nats per token 0.5 (0–1.6) 0.5"]
    assert lines[13] == (
        "4 test questions; 2 sampled rollouts of each at temperature 1; 95 % intervals over questions, one seed."
    )


def test_quadrants_that_coincide_are_told() -> None:
    same_prompt = table_lines(replace(quadrants(), best="Do."))
    assert any("The best instruction is the initial one. 4 test" in line for line in same_prompt)
    frozen = table_lines(replace(quadrants(), trained=False, divergences={}))
    assert any("The weights were not trained. 4 test" in line for line in frozen)
    assert not any(line.startswith("KL") for line in frozen)


Measure = Callable[..., tuple[Quadrants, str]]


@pytest.fixture
def measure(run_command: Command) -> Measure:
    """The quadrants that a run's folder holds after the command, and what it printed."""

    def measure_quadrants(config: RunConfig, *options: object) -> tuple[Quadrants, str]:
        ended = run_command("evaluate", config.output, "--quadrants", *options)
        quadrants = read_quadrants(config.output)
        assert (ended.status, quadrants is None) == (0, False), ended.err
        return cast(Quadrants, quadrants), ended.out

    return measure_quadrants


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """The weights are a little off those it began with."""
    config = write_run(tmp_path_factory.mktemp("quadrants") / "run", short(), BETTER)
    model = AutoModelForCausalLM.from_pretrained(config.output / "best")
    torch.manual_seed(0)
    with torch.no_grad():
        model.lm_head.weight.add_(torch.randn_like(model.lm_head.weight), alpha=0.02)
    model.save_pretrained(config.output / "best")
    return config


def test_a_run_from_the_command_line(
    run: RunConfig, measure: Measure, run_command: Command
) -> None:
    arguments = ("--set", "environment.test=3", "--samples", 2)
    quads, out = measure(run, *arguments)
    assert (quads.initial, quads.best, quads.samples) == (SEARCH, BETTER, 2)
    assert quads.rollouts == 4 * 3 * (1 + 2)
    for prompt in PROMPTS:
        assert 1e-4 < quads.divergence(prompt).mean < 1
    assert "Held-out exact match" in out
    assert f"to show them in the report: cotune report {run.output}" in out
    stored, out = measure(run, "--limit", 2, "--samples", 1)
    assert stored == quads
    assert "not kept, since --limit leaves questions out" in out
    # The same rollouts as without --quadrants.
    (columns,) = json.loads(run_command("evaluate", run.output, *arguments, "--json").out)["sets"]
    rewards = [figure for figure in columns["figures"] if figure["metric"] == "reward"]
    means = {(f["column"], f["statistic"]): f["mean"] for f in rewards}
    for column, name in (("best", "trained_prompted"), ("initial", "trained_plain")):
        assert means[column, "greedy"] == quads.score(name, "greedy").mean
        assert means[column, "avg@2"] == pytest.approx(quads.score(name, "sampled").mean)
    # All of a split replace more questions of another, and what cannot be read.
    validation, _ = measure(run, "--split", "validation", "--samples", 1)
    assert (validation.split, len(validation.questions)) == ("validation", 3)
    (run.output / "quadrants.json").write_text("{")
    again, _ = measure(run, "--set", "environment.test=1", "--samples", 1)
    assert len(again.questions) == 1


def test_equal_policies_and_instructions_are_rolled_out_once(
    tmp_path: Path, measure: Measure
) -> None:
    config = write_run(tmp_path / "run", short(training={"frozen": True}), SEARCH)
    quads, out = measure(config, "--set", "environment.test=2", "--samples", 1, "--json")
    assert json.loads(out)["kind"] == "quadrants"
    assert (quads.rollouts, quads.trained, quads.divergences) == (2 * 2, False, {})
    assert len({str(rewards) for rewards in quads.rewards.values()}) == 1


def test_a_run_that_went_on_from_another_is_compared_with_its_beginning(
    run: RunConfig, tmp_path: Path, measure: Measure
) -> None:
    """A frozen search for an instruction, on top of a policy that was trained before."""
    policy = {"path": str(run.output / "best")}
    changes = short(instruction=BETTER, policy=policy, training={"frozen": True})
    later = write_run(tmp_path / "later", changes, BETTER)
    arguments = ("--set", "environment.test=2", "--samples", 1)
    quads, _ = measure(later, "--since", run.output, *arguments)
    assert (quads.initial, quads.best, quads.trained) == (SEARCH, BETTER, True)
    assert quads.divergence("plain").mean > 1e-4


def test_one_set_of_questions_at_a_time(run: RunConfig, tmp_path: Path, refused: Refused) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "q", "answers": ["x"]}')
    words = ("evaluate", run.output, "--quadrants", "--split", "test", "--questions", file)
    assert "--quadrants score one set of questions" in refused(*words)
