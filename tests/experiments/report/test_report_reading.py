from cotune.experiments.report.reading import choose_trajectories, result_so_far


def test_result_so_far_takes_before_and_after_of_one_split() -> None:
    def event(split: str, when: str, em: float, prompt: str = "best") -> dict[str, object]:
        return {"kind": "evaluated", "split": split, "when": when, "em": em, "prompt": prompt}

    events = [event("test", "before", 0.1), event("validation", "before", 0.2),
              event("test", "after", 0.6), event("test", "after", 0.9, prompt="initial")]  # fmt: skip
    metrics = [{"step": 1, "seconds": 1.5}, {"step": 2, "seconds": None, "generated_tokens": 4}]
    assert result_so_far(events, metrics) == {
        "em": 0.6, "em_by_stratum": {}, "em_before": 0.1, "em_before_by_stratum": {},
        "seconds": 1.5, "generated_tokens": 4,
    }  # fmt: skip


def test_result_so_far_takes_the_hard_strata_together() -> None:
    strata = {"long addition": [0.5, 10], "long subtraction": [0.0, 30], "short addition": [1.0, 9]}
    event = {"kind": "evaluated", "split": "test", "when": "after", "em": 0.3, "by_stratum": strata}
    result = result_so_far([event], [])
    assert (result["accuracy_hard"], result["accuracy_hard_n"]) == (0.125, 40)
    assert "accuracy_hard_before" not in result


def test_trajectories_are_chosen_failures_first_and_mixed() -> None:
    rows = [
        {"reward": reward, "stop": stop, "task": {"stratum": stratum}}
        for reward in (1.0, 0.0)
        for stop, stratum in [("answered", "a")] * 5 + [("turn limit", "b")] * 5
    ]
    chosen = choose_trajectories(rows, 6, 2)
    assert [row["reward"] for row in chosen] == [0, 0, 0, 0, 1, 1]
    assert [row["stop"] for row in chosen[:4]] == ["answered", "turn limit"] * 2
    assert choose_trajectories(rows[9:11], 6, 2) == [rows[10], rows[9]]
