"""Options of a user's own data: the `dataset` section of a run file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, field_validator, model_validator

from cotune.utils.validation import Model

Column = Literal["question", "answers", "solution", "stratum", "id"]


class DatasetConfig(Model):
    """Questions of your own, from a file or from the Hugging Face hub."""

    path: Path | None = None
    """A JSONL, JSON, CSV or Parquet file, or a folder of Parquet files."""
    name: str | None = None
    """A data set of the Hugging Face hub, or of its cache."""
    subset: str | None = None
    """The hub data set's configuration."""
    split: str = "train"
    """The hub data set's split that is trained on; a file is one split."""
    validation: int | Path = Field(default=100)
    """Questions held out of the training data for choosing the best policy, at most a tenth of
    them, by a hash of their text; or another file; or, of a hub data set, another split."""
    test: int | Path = Field(default=200)
    """Questions held out for the final evaluation, at most a fifth; or a file or split."""
    columns: dict[Column, str | None] = Field(default_factory=dict[Column, str | None])
    """Which columns hold what; without an entry the column of that name is read (for questions also
    "prompt" and "problem", for answers also "answer", "golden_answers" and "ground_truth"), with
    null none. `reward_model.ground_truth` is a field below a column. Only the question is needed: a
    text, or chat messages that end with the user's."""
    limit: int | None = Field(default=None, ge=1)
    """Only the first questions that are left to train on; what is held out stays. null: all."""

    @field_validator("columns", mode="before")
    @classmethod
    def _answer_is_answers(cls, value: Any) -> Any:
        """`answer` is a name for `answers`."""
        if not isinstance(value, Mapping) or "answer" not in value or "answers" in value:
            return cast("object", value)
        named = cast("Mapping[str, Any]", value)
        return {("answers" if name == "answer" else name): c for name, c in named.items()}

    @model_validator(mode="before")
    @classmethod
    def _no_benchmark(cls, value: Any) -> Any:
        """Benchmarks are what papers test on: their loaders read those splits alone."""
        if isinstance(value, Mapping) and "benchmark" in value:
            raise ValueError(
                "dataset.benchmark: benchmarks are tested on, never trained on; expected path or name "
                "of the questions to train on, and cotune evaluate RUN --benchmark NAME[=PATH] after"
            )
        return cast("object", value)

    @model_validator(mode="after")
    def _one_source(self) -> "DatasetConfig":
        if (self.path is None) == (self.name is None):
            given = "both path and name" if self.path else "neither path nor name"
            raise ValueError(f"dataset: has {given}; expected one of them")
        for name in ("validation", "test"):
            if isinstance(value := getattr(self, name), int) and value < 1:
                raise ValueError(f"dataset.{name} is {value}; expected 1 or more")
        if "question" in self.columns and self.columns["question"] is None:
            raise ValueError("dataset.columns.question is null; expected the questions' column")
        return self
