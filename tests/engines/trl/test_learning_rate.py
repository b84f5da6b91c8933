"""The rate of a resumed run is its own, not the checkpoint's."""

import copy
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerState, get_linear_schedule_with_warmup

from cotune.engines.trl.trl_joint import ResumedRate


def made(steps: int, base: float) -> tuple[torch.optim.Optimizer, LambdaLR]:
    optimizer = torch.optim.AdamW(
        [{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(2)], lr=base
    )
    return optimizer, get_linear_schedule_with_warmup(optimizer, 1, steps)


def trained(steps: int, base: float, count: int) -> tuple[torch.optim.Optimizer, LambdaLR]:
    optimizer, scheduler = made(steps, base)
    for _ in range(count):
        optimizer.step()
        scheduler.step()
    return optimizer, scheduler


class Args:
    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate


@pytest.mark.parametrize(("steps", "base"), [(4, 1e-3), (8, 1e-3), (4, 1e-2), (8, 1e-2)])
@pytest.mark.parametrize("at", [2, 4])
def test_a_resumed_run_has_the_rates_of_one_that_began_so(steps: int, base: float, at: int) -> None:
    before = [copy.deepcopy(one.state_dict()) for one in trained(4, 1e-3, at)]
    optimizer, scheduler = made(steps, base)
    optimizer.load_state_dict(before[0])
    scheduler.load_state_dict(before[1])
    given: dict[str, Any] = {"optimizer": optimizer, "lr_scheduler": scheduler}
    ResumedRate().on_train_begin(Args(base), TrainerState(global_step=at), None, **given)
    own = trained(steps, base, at)
    for _ in range(2):
        assert scheduler.get_last_lr() == own[1].get_last_lr()
        assert [g["lr"] for g in optimizer.param_groups] == [g["lr"] for g in own[0].param_groups]
        for one in (optimizer, scheduler, *own):
            one.step()
