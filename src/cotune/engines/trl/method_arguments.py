# fmt: off
"""The keyword arguments of the library's methods; written by scripts/method_arguments.py."""

from pathlib import Path
from typing import Literal, Required, TypedDict

from cotune.llm.bank import BankOptions
from cotune.llm.client import OpenAIOptions
from cotune.methods.composed import ComposedOptions
from cotune.methods.fst.fst import FstOptions
from cotune.methods.gepa.gepa import GepaOptions
from cotune.methods.inspo.inspo import InspoOptions
from cotune.methods.p2o.hints import HintOptions
from cotune.methods.p2o.p2o import P2OOptions
from cotune.methods.static import StaticOptions
from cotune.protocols import LLM, Environment
from cotune.rewards.functions import GivenRewards
from cotune.types import Distillation, FilteredDistillation, Limits


class TrainerArguments(TypedDict, total=False):
    """The arguments of every method; see `cotune.INSPO`."""

    environment: Required[Environment]
    llm: LLM | OpenAIOptions | BankOptions | None
    limits: Limits | None
    instruction: str | None
    seed: int
    folder: str | Path | None
    rewards: GivenRewards


class StaticArguments(TrainerArguments, total=False):
    """The arguments of every method, and either `options` or fields of `StaticOptions`."""

    options: StaticOptions | None


class InspoArguments(TrainerArguments, total=False):
    """The arguments of every method, and either `options` or fields of `InspoOptions`."""

    options: InspoOptions | None
    population_size: int
    parents: int
    selection_temperature: float
    window: int
    prune_every: int
    evolve_every: int
    evolve_until: int
    verification_tasks: int
    verification_rounds: int
    verification: Literal["full", "racing", "none"]
    verification_error: float
    failures_per_reflection: int
    candidates: int
    proposer: Literal["reflection", "paraphrase", "history"]
    groups: Literal["own", "mixed", "population"]
    target: Literal["sampled", "initial"]
    distillation: Distillation | FilteredDistillation | None
    distil_steps: int


class GepaArguments(TrainerArguments, total=False):
    """The arguments of every method, and either `options` or fields of `GepaOptions`."""

    options: GepaOptions | None
    budget: int
    dev_size: int
    scoring: Literal["greedy", "sampled"]
    minibatch: int
    beam: int
    show_answers: bool


class FstArguments(TrainerArguments, total=False):
    """The arguments of every method, and either `options` or fields of `FstOptions`."""

    options: FstOptions | None
    prompts: int
    evolve_every: int
    evolve_until: int | None
    budget: int
    dev_size: int
    scoring: Literal["greedy", "sampled"]
    minibatch: int
    beam: int
    target: Literal["sampled", "initial"]
    distillation: Distillation | FilteredDistillation | None
    distil_steps: int
    show_answers: bool


class P2OArguments(TrainerArguments, total=False):
    """The arguments of every method, and either `options` or fields of `P2OOptions`."""

    options: P2OOptions | None
    successes_below: int
    hints: HintOptions
    distillation: Distillation
    hinted_per_group: Literal["all", "half"]


class ComposedArguments(TrainerArguments, total=False):
    """The arguments of every method, and either `options` or fields of `ComposedOptions`."""

    options: ComposedOptions | None
    inspo: InspoOptions
    p2o: P2OOptions
