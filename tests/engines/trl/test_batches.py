"""Choosing, trimming and sorting the rows of a batch."""

import torch

from cotune.engines.trl.policy_update import (
    by_prompt,
    fill_up,
    informative_rows,
    with_rows,
    without_padding,
)


def test_informative_rows_by_hand() -> None:
    assert informative_rows(torch.tensor([0.0, 1.5, 0.0, -1.5])).tolist() == [1, 3]
    assert informative_rows(torch.zeros(3)).tolist() == [0]
    assert informative_rows(torch.tensor([[0.0, 0.0], [0.0, 2.0]])).tolist() == [1]


def test_fill_up_by_hand() -> None:
    assert fill_up(torch.tensor([1, 4]), 2, 6).tolist() == [1, 4]
    assert fill_up(torch.tensor([1, 4]), 4, 6).tolist() == [0, 1, 2, 4]
    assert fill_up(torch.tensor([0]), 3, 3).tolist() == [0, 1, 2]


def test_with_rows_leaves_scalars_alone() -> None:
    inputs = {"advantages": torch.arange(3.0), "num_items_in_batch": torch.tensor(7), "note": "x"}
    kept = with_rows(inputs, torch.tensor([2]))
    assert kept["advantages"].tolist() == [2.0]
    assert int(kept["num_items_in_batch"]) == 7
    assert kept["note"] == "x"


def test_without_padding_by_hand() -> None:
    inputs = {
        "prompt_ids": torch.tensor([[0, 0, 5], [0, 6, 7]]),
        "prompt_mask": torch.tensor([[0, 0, 1], [0, 1, 1]]),
        "completion_ids": torch.tensor([[1, 2, 0, 0], [3, 0, 0, 0]]),
        "completion_mask": torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]]),
        "tool_mask": torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]]),
        "advantages": torch.tensor([1.0, -1.0]),
    }
    trimmed = without_padding(inputs)
    assert trimmed["prompt_ids"].tolist() == [[0, 5], [6, 7]]
    assert trimmed["completion_ids"].tolist() == [[1, 2], [3, 0]]
    assert trimmed["tool_mask"].tolist() == [[1, 0], [1, 1]]
    assert trimmed["advantages"].tolist() == [1.0, -1.0]


def test_by_prompt_by_hand() -> None:
    batches = [
        {
            "prompt_ids": torch.tensor([[0, 5], [6, 7]]),
            "advantages": torch.tensor([1.0, 2.0]),
            "num_items_in_batch": torch.tensor(9),
        },
        {
            "prompt_ids": torch.tensor([[6, 7], [0, 5]]),
            "advantages": torch.tensor([3.0, 4.0]),
            "num_items_in_batch": torch.tensor(9),
        },
    ]
    first, second = by_prompt(batches)
    assert first["prompt_ids"].tolist() == [[0, 5], [0, 5]]
    assert first["advantages"].tolist() == [1.0, 4.0]
    assert second["advantages"].tolist() == [2.0, 3.0]
    assert int(first["num_items_in_batch"]) == int(second["num_items_in_batch"]) == 9
