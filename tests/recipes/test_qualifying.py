from recipes.measuring import Figure
from recipes.qualifying import apart, checks


def shown(**scores: float) -> dict[str, Figure]:
    return {name.replace("_", "-"): figure(score) for name, score in scores.items()}


def figure(score: float, once: float = 0.0) -> Figure:
    return Figure(score, 1000, {"twice": 1 - once, "once": once}, {"1 hop": score})


def test_a_world_qualifies_if_the_best_way_changes_and_cannot_be_found() -> None:
    before = shown(initial=0.15, twice=0.3, once=0.2, opposite=0.05, off_topic=0.15)
    after = shown(twice=0.55, once=0.8)
    static = shown(initial=0.25)
    assert apart(figure(0.5), figure(0.5)) == 0
    assert round(apart(figure(0.6), figure(0.5)), 1) == 4.5

    def failing(**changed: dict[str, Figure] | Figure) -> list[str]:
        given = {"before": before, "under": figure(0.3), "after": after, "static": static}
        found = checks(("once", "twice"), **(given | changed))  # pyright: ignore[reportArgumentType]
        return [text for text, holds in found.items() if not holds]

    assert failing() == []
    assert failing(before=before | shown(once=0.29)) == [
        "twice is best at first by 0.5 standard errors"
    ]
    assert failing(under=figure(0.3, 0.002)) == ["once is 0.20% of the rollouts under the first"]
    assert failing(after=shown(twice=0.55, once=0.5))[0].startswith("once is best afterwards by -")
    assert failing(static=shown(initial=0.6)) == ["static GRPO ends at 0.600"]
    assert len(failing(before=before | shown(initial=0.05))) == 2
