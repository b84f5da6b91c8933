"""Quadrants on a run's page: its first table."""

from pathlib import Path
from typing import Any

from cotune.experiments.evaluate.quadrants import hash_of_best
from cotune.experiments.report import write_report
from cotune.run.record import Record
from tests.experiments.evaluate.measured import quadrants
from tests.experiments.report.pages import check


def page(folder: Path, kind: str = "inspo", **config: Any) -> str:
    """A finished run's page from its result on, with the text of its tables."""
    run = Record.create(folder, {"name": "it", "strategy": {"kind": kind}, **config})
    run.event("best_instruction", 3, id="i1")
    for when, em in (("before", 0.25), ("plain", 0.5), ("after", 0.75)):
        run.event("evaluated", 3, split="test", when=when, prompt="best", instruction_id="i1", em=em,
                  n=4, trained=2, by_stratum={})  # fmt: skip
    run.write_summary({"name": "it", "arms": {kind: {}}})
    return words(folder)


def words(folder: Path) -> str:
    return check(write_report(folder)).words.partition(" Result Held-out exact match ")[2]


def test_they_come_first(tmp_path: Path) -> None:
    page(tmp_path / "run")
    found = quadrants(of=hash_of_best(tmp_path / "run"))
    found.write(tmp_path / "run")
    text = words(tmp_path / "run").partition("4 test questions; 2 sampled")[0]
    assert text.startswith(
        "initial instruction best instruction gain greedy initial weights 25.0_% "
    )
    assert "trained weights 50.0_% 15–85 100.0_% 51–100 +50.0 −42 to +100 gain +25.0" in text
    assert "KL to initial nats per token 0.5 0–1.6 0.5" in text
    # Those of another policy are not shown.
    quadrants(of="another").write(tmp_path / "run")
    assert "greedy" not in words(tmp_path / "run")
