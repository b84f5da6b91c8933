"""The rule against leaked answers: it hardly rejects harmless instructions and finds written leaks."""

import importlib
from typing import Any

import pytest

from tests.docs.sources import ROOT


@pytest.fixture
def rule(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("leak_rule")


def test_fewer_than_one_harmless_instruction_in_a_hundred_is_rejected(rule: Any) -> None:
    texts = rule.harmless(600)
    assert len(set(texts)) == 600
    answers = [[gold] for gold in rule.GOLD]
    assert {"film", "director", "city", "yes", "12", "1999", "France"} <= set(rule.GOLD)
    assert rule.false_positives(texts, answers, shown=4) < 0.01


def test_every_written_leak_is_found(rule: Any) -> None:
    missed = [leak for leak, hit in zip(rule.LEAKS, rule.detected(), strict=True) if not hit]
    assert missed == []
