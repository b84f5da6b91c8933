from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cotune.experiments.report.pages import sentence_diff
from cotune.experiments.report.run_report import family, weights
from cotune.run.best import InstructionRow


def test_sentences_and_their_difference() -> None:
    parent = "Search first. Then answer.\n1. Be brief."
    child = "Search first. Search one entity at a time.\n1. Be brief."
    assert sentence_diff(parent, child) == [
        ("same", "Search first."),
        ("gone", " Then answer."),
        ("same", " "),
        ("new", "Search one entity at a time."),
        ("same", "\n1. Be brief."),
    ]


@given(st.text(), st.text())
def test_a_difference_holds_the_whole_child(parent: str, child: str) -> None:
    segments = sentence_diff(parent, child)
    assert "".join(text for kind, text in segments if kind != "gone") == child.rstrip()
    assert all(kind == "same" for kind, _ in sentence_diff(child, child))


def row(name: str, parent: str | None, text: str, born: int) -> InstructionRow:
    return InstructionRow(name, parent, "", born, None, 0, None, None, None, False, "", text)


def test_the_family_is_in_tree_order() -> None:
    members = family([
        row("i0", None, "A.", 0), row("i1", "i0", "A. B.", 9), row("i2", "i1", "C.", 12),
        row("i3", "i0", "A. D.", 3), row("i4", "lost", "E.", 4),
    ])  # fmt: skip
    assert [(member.id, depth, parent_text) for member, depth, parent_text in members] == [
        ("i0", 0, ""), ("i3", 1, "A."), ("i1", 1, "A."), ("i2", 2, "A. B."), ("i4", 0, ""),
    ]  # fmt: skip


def test_a_long_line_of_descent_is_shown_whole() -> None:
    rows = [row(f"i{n}", f"i{n - 1}" if n else None, "A.", n) for n in range(1500)]
    assert [depth for _, depth, _ in family(rows)] == list(range(1500))


def test_a_weight_that_rests_on_nothing_is_no_point() -> None:
    def seen(step: int, **members: tuple[float | None, int]) -> dict[str, Any]:
        return {"kind": "population", "step": step, "members": [
            {"id": name, "weight": weight, "observed_rollouts": observed}
            for name, (weight, observed) in members.items()
        ]}  # fmt: skip

    assert weights([
        seen(1, unseen=(0.0, 0), failing=(0.0, 15), child=(0.4, 0), mean=(None, 0)),
        seen(2, unseen=(0.5, 10), failing=(0.0, 15), child=(0.5, 5), mean=(0.1, 5)),
        {"kind": "saved"},
    ]) == {
        "unseen": [(2, 0.5)],
        "failing": [(1, 0.0), (2, 0.0)],
        "child": [(1, 0.4), (2, 0.5)],  # its starting weight
        "mean": [(2, 0.1)],  # a mean over no rollouts
    }  # fmt: skip
