"""GEPA on the instruction, before any training: the prompt-only baseline (arXiv 2507.19457)."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from cotune.methods.fst import fst
from cotune.methods.fst.fst import Fst, FstOptions
from cotune.methods.method import Context, Method
from cotune.methods.scores import too_close_to_call
from cotune.methods.text_evolution import DevScores, GepaSearchOptions, ranked
from cotune.protocols import Recorder
from cotune.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class GepaOptions(GepaSearchOptions):
    """GEPA's options. The paper spends about 2,000 to 7,000 rollouts on a task.

    Attributes:
        budget: evaluations (one is one rollout), all before the first training batch.
    """

    kind: Literal["gepa"] = "gepa"
    budget: int = 6000

    @property
    def once(self) -> FstOptions:
        """Return FST's options for one prompt and one round, before the first step."""
        shared = {field.name: getattr(self, field.name) for field in fields(GepaSearchOptions)}
        return FstOptions(prompts=1, evolve_every=sys.maxsize, budget=self.budget, **shared)


class Gepa(Fst):
    """Evolve the instruction once, at the first step; every rollout then uses the best one.

    This is FST with one prompt and one round. With `training.frozen` nothing else happens: "prompt only".
    Otherwise the policy is then trained as in GRPO with a static instruction: "prompt before RL".
    """

    name = "gepa"
    barren = 20

    def __init__(self, options: GepaOptions, context: Context) -> None:
        super().__init__(options.once, context)

    def _search_key(self, step: int) -> str:
        return self._key

    def _report_round(self, scores: DevScores, cause: str, record: Recorder) -> None:
        """Record the best instruction, which the run keeps."""
        first = self._prompts[0]
        others = [identity for identity in ranked(scores) if identity != first]
        record(
            "best_instruction",
            id=first,
            weight=self._means[first],
            observed_steps=0,
            observed_rollouts=len(scores[first]),
            runner_up=others[0] if others else None,
            too_close_to_call=bool(others) and too_close_to_call(scores[first], scores[others[0]]),
        )

    def _record_population(
        self,
        members: Sequence[dict[str, Any]],
        trajectories: Sequence[Trajectory],
        record: Recorder,
    ) -> None:
        """Record nothing: one instruction is no population."""

    def choice(self) -> None:
        """Return None: the best instruction was recorded with the search."""


METHOD = Method(
    options=GepaOptions,
    build=Gepa,
    label="GEPA",
    about="the instruction evolved before the first step",
    evolves="instruction",
    uses_batches=False,
    check=lambda options, shape: fst.check(options.once, shape),
    cost=lambda options, shape: fst.cost(options.once, shape),
)
