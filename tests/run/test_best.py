"""Which pair of policy and instruction is kept, in words."""

from pathlib import Path

import pytest

from cotune.errors import ConfigError
from cotune.run.best import BestRecord, read_best


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"validated": False, "trained": 4},
            "Kept: the policy of step 4 of 4 with instruction i2, the last one, not checked: nothing was "
            "evaluated on validation",
        ),
        (
            {"validated": True, "em": 0.5, "observed_steps": 2, "observed_rollouts": 1200, "runner_up": "i1",
             "too_close_to_call": True, "interval": (0.25, 0.75)},
            "Kept: the policy of step 4 with instruction i2 (observed in 2 steps, 1,200 rollouts; too "
            "close to i1 to call), the best on validation with exact match 0.500 (95 %: 0.250 to 0.750)",
        ),
        (
            {"validated": True, "em": 0.5, "trained": 9, "leader": "i3", "last_em": 0.25},
            "Kept: the policy of step 4 of 9 with instruction i2, the best on validation with exact match "
            "0.500. Instruction i3 ranks first after step 9, and scored 0.250 with the policy of that "
            "step",
        ),
        (
            {"validated": True, "em": 0.5, "initial_em": 0.5, "instruction_id": "i0", "leader": "i3",
             "interval": (0.25, 0.75),
             "replaced": BestRecord(instruction="Do better.", instruction_id="i3", em=0.25,
                                 interval=(0.125, 0.5))},
            "Kept: the policy of step 4 with instruction i0, the best on validation with exact match "
            "0.500 (95 %: 0.250 to 0.750); instruction i3 scores 0.250 there",
        ),
        # Of a version that did not record whether the score is one, nor of what.
        ({"em": 0.0, "instruction_id": ""}, "Kept: the policy of step 4"),
    ],
)  # fmt: skip
def test_a_record_says_what_is_kept_and_why(
    fields: dict[str, object], said: str, tmp_path: Path
) -> None:
    known = {"instruction": "Do.", "instruction_id": "i2", "step": 4}
    record = BestRecord(**known | fields)  # type: ignore[arg-type]
    assert record.statement() == said
    record.write(tmp_path)
    assert read_best(tmp_path) == record


def test_a_folder_without_a_record_has_none(tmp_path: Path) -> None:
    assert read_best(tmp_path) is None
    (tmp_path / "best.json").write_text('{"schema_version": 2, "instruction": "Do."}')
    with pytest.raises(ConfigError, match="cannot be read \\(schema_version"):
        read_best(tmp_path)
