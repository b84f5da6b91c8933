"""Options of reward functions: the `rewards` section of a run file."""

from typing import Any

from pydantic import model_validator

from cotune.utils.validation import Model


class RewardConfig(Model):
    """A reward function and its weight."""

    function: str
    """`package.module:name` or `file.py:name` of a function as TRL takes it, or one of ours:
    exact_match, f1_squad, f1_hotpot, boxed."""
    weight: float = 1.0
    """Of its values in the sum of all."""
    messages: bool | None = None
    """Whether it gets prompts and completions as chat messages (true) or as texts (false); null: as
    the data has its questions, and messages where there are tools."""
    """Of its value in the sum."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"function": value} if isinstance(value, str) else value
