"""Run folders as a finished run leaves them, without the training."""

import json
from pathlib import Path
from typing import Any

from cotune.config.run_file import RunConfig, dump_config, parse_config
from cotune.engines.evaluation import Outcome, write_run_summary
from cotune.engines.joint import settings_of
from cotune.run.best import BestRecord
from cotune.run.json_files import write_atomic
from cotune.run.record import Record
from cotune.run.scores import Score, wilson

INSTRUCTION = "Search <search> one thing </search> at a time. Say it in <answer> tags </answer>."


def finished_run(
    raw: dict[str, Any],
    tokenizer: Any,
    model: Any = None,
    instruction: str = INSTRUCTION,
    hint: str = "",
) -> tuple[Record, RunConfig]:
    """A run that kept `instruction` with these weights, as training leaves it before completion."""
    config = parse_config(raw, "the test")
    run = Record.create(config.output, dump_config(config))
    best = run.best_path
    if model is not None:
        model.save_pretrained(best)
    tokenizer.save_pretrained(best)
    write_atomic(best / "instruction.txt", instruction + "\n")
    if hint:
        write_atomic(best / "hint.txt", hint + "\n")
    record = BestRecord(
        em=0.625,
        step=2,
        instruction_id="i3",
        instruction=instruction,
        hint=hint,
        validated=bool(config.evaluation.every),
        trained=3,
    )
    record.write(best)
    finish(run, config, record)
    return run, config


def finish(run: Record, config: RunConfig, best: BestRecord) -> None:
    """Writes what a run writes last: its costs, its events and its summary."""

    def score(em: float) -> Score:
        measure = "mean reward" if config.rewards else "exact match"
        return Score(em, 40, {"1 hop": (em, 20), "2 hops": (em / 2, 20)}, measure, wilson(em, 40))

    hinted = score(0.75) if best.hint else None
    outcome = Outcome(
        kept=best, steps=3, before=score(0.25), after=score(0.5), plain=score(0.375), hinted=hinted
    )
    run.begin_attempt(None)
    for purpose, rollouts in (("train", 24), ("verify", 14), ("evaluate", 120)):
        run.count(purpose, rollouts, rollouts * 30)
    run.charge("gpt-test", prompt_tokens=1200, completion_tokens=345, money=0.0625)
    run.event("run_started", 0, config=config.name, strategy=config.strategy.kind)
    run.event("phase_failed", 2, reason="LLMError: 401", in_a_row=1)
    write_run_summary(settings_of(config, None), run, outcome)


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path in it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
