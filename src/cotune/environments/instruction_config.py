"""The `instruction` section of a run file: the initial instruction and its place in a prompt."""

from dataclasses import replace
from typing import Any, Literal

from pydantic import model_validator

from cotune.environments.base import PromptFormat
from cotune.utils.validation import Model


class InstructionConfig(Model):
    """The initial instruction and its position; null fields are the environment's own."""

    text: str | None = None
    """The initial instruction; null: the environment's."""
    role: Literal["user", "system"] | None = None
    """The message that holds it."""
    placement: Literal["before", "after"] | None = None
    """Before or after the question, in the user's message."""
    system: Literal["keep", "replace"] | None = None
    """Keep the data's system prompt, or replace it with the instruction."""

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) or value is None else value

    @model_validator(mode="after")
    def _has_a_place(self) -> "InstructionConfig":
        if self.role == "system" and self.placement is not None:
            raise ValueError(
                f"placement is {self.placement!r}, which is for the user's message, but role is 'system'; "
                "remove placement"
            )
        return self

    @property
    def places(self) -> dict[str, str]:
        """Return the fields of a `PromptFormat` that are given."""
        fields = ("role", "placement", "system")
        return {name: value for name in fields if (value := getattr(self, name)) is not None}

    def format(self, environment_format: PromptFormat) -> PromptFormat:
        """Return an environment's own format with the given fields replaced."""
        return replace(environment_format, **self.places)  # pyright: ignore[reportArgumentType]
