"""The record of the pair of policy and instruction that a run keeps: `best/best.json`.

Everything that names the best of a run reads this one record: the console, the summary,
the report and the model card.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from cotune.errors import ConfigError
from cotune.run.json_files import write_json_atomic
from cotune.run.scores import EXACT_MATCH

FILE = "best.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRecord:
    """The pair that a run keeps, and the evidence for it. None is unknown.

    Attributes:
        em: its score on validation questions; 0 if the run has no evaluation there.
        step: the steps that the policy was trained for.
        instruction_id, instruction, hint: what it was evaluated under; hint is "" for none.
        validated: whether `em` is a score.
        measure, n, interval: the score's name, its questions, and its 95 % interval.
        weight, observed_steps, observed_rollouts: what the method knew of the instruction then.
        runner_up: id of the next instruction by weight.
        too_close_to_call: whether the two could not be told apart.
        trained: steps of the whole run.
        leader: id of the instruction that the method ranks first at the run's end.
        last_em: the validation score of the last policy under `leader`.
        initial_em, initial_interval: the policy's score under the initial instruction, if that is
            another one and was checked.
        replaced: the record of the method's best, if the initial instruction is kept in its place.
        training_tasks: fingerprint of the training questions (`task_order.fingerprint`).
    """

    instruction: str
    instruction_id: str = ""
    em: float = 0.0
    step: int = 0
    hint: str = ""
    validated: bool | None = None
    measure: str = EXACT_MATCH
    n: int | None = None
    interval: tuple[float, float] | None = None
    weight: float | None = None
    observed_steps: int | None = None
    observed_rollouts: int | None = None
    runner_up: str | None = None
    too_close_to_call: bool | None = None
    trained: int | None = None
    leader: str | None = None
    last_em: float | None = None
    initial_em: float | None = None
    initial_interval: tuple[float, float] | None = None
    replaced: "BestRecord | None" = None
    training_tasks: str | None = None
    schema_version: Literal[1] = 1

    @property
    def method_best(self) -> "BestRecord":
        """Return the method's best, whether or not the initial instruction is kept in its place."""
        return self.replaced or self

    def write(self, folder: Path) -> None:
        """Replace best.json in a folder."""
        write_json_atomic(folder / FILE, asdict(self))

    def statement(self) -> str:
        """Return which pair is kept, and why, in one or two sentences."""
        of = f" of {self.trained}" if self.trained is not None else ""
        pair = f"the policy of step {self.step}{of}"
        if self.instruction_id:
            pair += f" with instruction {self.instruction_id}"
        if self.observed_rollouts is not None:
            steps = _count(self.observed_steps or 0, "step")
            rollouts = _count(self.observed_rollouts, "rollout")
            pair += f" (observed in {steps}, {rollouts}"
            close = f"; too close to {self.runner_up} to call" if self.too_close_to_call else ""
            pair += f"{close if self.runner_up else ''})"
        if self.validated is None:
            return f"Kept: {pair}"
        if not self.validated:
            return f"Kept: {pair}, the last one, not checked: nothing was evaluated on validation"
        text = f"Kept: {pair}, the best on validation with {self.measure} {self.em:.3f}"
        if self.interval is not None:
            text += f" (95 %: {self.interval[0]:.3f} to {self.interval[1]:.3f})"
        if (replaced := self.replaced) is not None:
            return f"{text}; instruction {replaced.instruction_id} scores {replaced.em:.3f} there"
        if self.initial_em is not None:
            text += f"; the initial instruction scores {self.initial_em:.3f} there"
        if self.leader not in (None, self.instruction_id) and self.last_em is not None:
            text += (
                f". Instruction {self.leader} ranks first after step {self.trained}, and scored "
                f"{self.last_em:.3f} with the policy of that step"
            )
        return text


# Building it takes longer than a file's validation, and a page that follows a training reads it often.
_RECORD = TypeAdapter(BestRecord)


def read_best(folder: Path) -> BestRecord | None:
    """Read best.json of a folder; None if there is none.

    Raises:
        ConfigError: it is damaged.
    """
    path = folder / FILE
    try:
        return _RECORD.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"{path}: cannot be read ({place}: {first['msg']}); restore the file, or remove {folder} and "
            "resume the run without what it had kept"
        ) from error


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
