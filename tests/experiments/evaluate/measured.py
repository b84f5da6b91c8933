"""Quadrants of four questions."""

from typing import Any

from cotune.experiments.evaluate.quadrants import Quadrants


def quadrants(**changes: Any) -> Quadrants:
    """Four questions; sampled rewards are half of the greedy ones."""
    greedy = {
        "initial_plain": (0.0, 0.0, 0.0, 1.0),
        "initial_prompted": (0.0, 1.0, 0.0, 1.0),
        "trained_plain": (0.0, 0.0, 1.0, 1.0),
        "trained_prompted": (1.0, 1.0, 1.0, 1.0),
    }
    given: dict[str, Any] = {
        "split": "test",
        "measure": "exact match",
        "samples": 2,
        "temperature": 1.0,
        "initial": "Do.",
        "best": "Do it.",
        "trained": True,
        "questions": ("a", "b", "c", "d"),
        "strata": ("", "", "", ""),
        "rewards": {
            name: {"greedy": values, "sampled": tuple(value / 2 for value in values)}
            for name, values in greedy.items()
        },
        "divergences": {
            "plain": ((0.5, 1), (1.5, 1), (0.0, 1), (0.0, 1)),
            "prompted": ((1.0, 2), (2.0, 4), (0.5, 1), (0.5, 1)),
        },
    }
    return Quadrants(**given | changes)
