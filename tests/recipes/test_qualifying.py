from recipes.measuring import Figure
from recipes.qualifying import Sections, apart, checks

BEFORE = {"initial": 0.15, "twice": 0.3, "once": 0.2, "opposite": 0.05, "off-topic": 0.15}
AFTER = {"twice": 0.55, "once": 0.8}


def shown(scores: dict[str, float]) -> Sections:
    return {name: figure(score) for name, score in scores.items()}


def figure(score: float, once: float = 0.0) -> Figure:
    return Figure(score, 1000, {"twice": 1 - once, "once": once}, {"1 hop": score})


def failing(
    before: dict[str, float] = BEFORE,
    after: dict[str, float] = AFTER,
    once: float = 0.0,
    static: float = 0.25,
) -> list[str]:
    scores, under = [shown(before), shown(after)], [figure(0.3, once)]
    found = checks(("twice", "once"), scores, under, shown({"initial": static}))
    return [text for text, holds in found.items() if not holds]


def test_a_world_qualifies_if_the_best_way_changes_and_cannot_be_found() -> None:
    assert apart(figure(0.5), figure(0.5)) == 0
    assert round(apart(figure(0.6), figure(0.5)), 1) == 4.5
    assert failing() == []
    assert failing(BEFORE | {"once": 0.29}) == ["twice is best at first by 0.5 standard errors"]
    assert failing(once=0.002) == ["once is 0.200% of the rollouts under twice"]
    (late,) = failing(after={"twice": 0.55, "once": 0.5})
    assert late.startswith("once is best after 1 times GRPO by -")
    assert failing(static=0.6) == ["static GRPO ends at 0.600"]
    assert len(failing(BEFORE | {"initial": 0.05})) == 2


def test_the_best_way_may_change_more_than_once() -> None:
    scores = [
        shown(BEFORE | {"a": 0.9, "b": 0.5, "c": 0.4}),
        shown({"a": 0.5, "b": 0.9, "c": 0.4}),
        shown({"a": 0.5, "b": 0.8, "c": 0.8}),
    ]
    under = [Figure(0.5, 1000, {"a": 1, "b": 0, "c": 0.1}, {}), Figure(0.5, 1000, {"c": 0}, {})]
    found = checks(("a", "b", "c"), scores, under, shown({"initial": 0.2}))
    assert [text for text, holds in found.items() if not holds] == [
        "b or c is 10.000% of the rollouts under a",
        "c is best after 2 times GRPO by 0.0 standard errors",
    ]
