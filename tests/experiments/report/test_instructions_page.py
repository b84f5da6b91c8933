from hypothesis import given
from hypothesis import strategies as st

from cotune.experiments.report.instructions import Life, family, lives, sentence_diff, sentences


def test_sentences_and_their_difference() -> None:
    parent = "Search first. Then answer.\n1. Be brief."
    assert sentences(parent) == ["Search first.", " Then answer.", "\n1. Be brief."]
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


def test_the_family_is_in_tree_order() -> None:
    rows = [
        {"id": "i0", "parent": None, "text": "A.", "born": 0},
        {"id": "i1", "parent": "i0", "text": "A. B.", "born": 9},
        {"id": "i2", "parent": "i1", "text": "C.", "born": 12},
        {"id": "i3", "parent": "i0", "text": "A. D.", "born": 3},
        {"id": "i4", "parent": "lost", "text": "E.", "born": 4},
    ]
    events = [
        {"kind": "population", "step": 9,
         "members": [{"id": "i1", "weight": 0.3, "observed_rollouts": 20}]},
        {"kind": "population", "step": 10,
         "members": [{"id": "i1", "weight": 0.4, "observed_rollouts": 50}]},
        {"kind": "instruction_pruned", "step": 10, "id": "i1", "weight": 0.4},
    ]  # fmt: skip
    found = lives(events)
    assert found == {"i1": Life([(9, 0.3), (10, 0.4)], 50, 10)}
    members = family(rows, found, "i2")
    assert [(m.row["id"], m.depth) for m in members] == [
        ("i0", 0), ("i3", 1), ("i1", 1), ("i2", 2), ("i4", 0),
    ]  # fmt: skip
    assert [m.row["id"] for m in members if m.best] == ["i2"]
    assert members[2].life.pruned == 10


def test_a_weight_that_rests_on_nothing_is_no_point() -> None:
    def seen(step: int, **members: tuple[float | None, int]) -> dict[str, object]:
        return {"kind": "population", "step": step, "members": [
            {"id": name, "weight": weight, "observed_rollouts": observed}
            for name, (weight, observed) in members.items()
        ]}  # fmt: skip

    found = lives([
        seen(1, unseen=(0.0, 0), failing=(0.0, 15), child=(0.4, 0), mean=(None, 0)),
        seen(2, unseen=(0.5, 10), failing=(0.0, 15), child=(0.5, 5), mean=(0.1, 5)),
    ])  # fmt: skip
    assert {name: life.weights for name, life in found.items()} == {
        "unseen": [(2, 0.5)],
        "failing": [(1, 0.0), (2, 0.0)],
        "child": [(1, 0.4), (2, 0.5)],  # its starting weight
        "mean": [(2, 0.1)],  # a mean over no rollouts
    }
    assert found["unseen"].observed == 10
