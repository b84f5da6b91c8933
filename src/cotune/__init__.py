"""Trains an LLM agent's weights and its prompt together. See `cotune.INSPO` and `cotune --help`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotune.contracts import (
        LLM,
        BudgetError,
        ConfigError,
        CotuneError,
        EngineError,
        Environment,
        EvolutionError,
        LLMError,
        RetrievalError,
        Retriever,
    )
    from cotune.engines.trl.trainer import JointTrainer
    from cotune.environments.arithmetic import ArithmeticEnvironment, ArithmeticOptions
    from cotune.environments.base import PromptFormat, SingleTurnEnvironment, TaskEnvironment
    from cotune.environments.dataset import read_dataset, tasks_from
    from cotune.environments.geo import GeoEnvironment, GeoOptions
    from cotune.environments.search import SearchEnvironment, SearchOptions, search_environment
    from cotune.environments.tools import ToolEnvironment
    from cotune.environments.trl_factory import from_trl
    from cotune.environments.verifiers import from_verifiers
    from cotune.evolution.hints import HintOptions
    from cotune.exporting.chat_template import with_instruction
    from cotune.frames import RunReader, open_run
    from cotune.library import GEPA, INSPO, P2O, INSPOWithP2O, Static
    from cotune.llm.client import OpenAIOptions
    from cotune.llm.hint_writer import RulesLLM
    from cotune.records import (
        Action,
        Completion,
        Distillation,
        Limits,
        Prompt,
        Response,
        Task,
        Trajectory,
    )
    from cotune.rewards.functions import RewardFunctions, WeightedReward
    from cotune.run_dir import RunDir
    from cotune.strategies.composed import ComposedOptions
    from cotune.strategies.gepa import GepaOptions
    from cotune.strategies.inspo import InspoOptions
    from cotune.strategies.p2o import P2OOptions
    from cotune.task_config import DatasetConfig

__all__ = [
    "GEPA",
    "INSPO",
    "LLM",
    "P2O",
    "Action",
    "ArithmeticEnvironment",
    "ArithmeticOptions",
    "BudgetError",
    "Completion",
    "ComposedOptions",
    "ConfigError",
    "CotuneError",
    "DatasetConfig",
    "Distillation",
    "EngineError",
    "Environment",
    "EvolutionError",
    "GeoEnvironment",
    "GeoOptions",
    "GepaOptions",
    "HintOptions",
    "INSPOWithP2O",
    "InspoOptions",
    "JointTrainer",
    "LLMError",
    "Limits",
    "OpenAIOptions",
    "P2OOptions",
    "Prompt",
    "PromptFormat",
    "Response",
    "RetrievalError",
    "Retriever",
    "RewardFunctions",
    "RulesLLM",
    "RunDir",
    "RunReader",
    "SearchEnvironment",
    "SearchOptions",
    "SingleTurnEnvironment",
    "Static",
    "Task",
    "TaskEnvironment",
    "ToolEnvironment",
    "Trajectory",
    "WeightedReward",
    "from_trl",
    "from_verifiers",
    "open_run",
    "read_dataset",
    "search_environment",
    "tasks_from",
    "with_instruction",
]

# Loaded when first asked for: whoever imports cotune pays for what is used.
_HOME = {
    "contracts": (
        "LLM",
        "BudgetError",
        "ConfigError",
        "CotuneError",
        "EngineError",
        "Environment",
        "EvolutionError",
        "LLMError",
        "RetrievalError",
        "Retriever",
    ),
    "engines.trl.trainer": ("JointTrainer",),
    "environments.arithmetic": ("ArithmeticEnvironment", "ArithmeticOptions"),
    "environments.base": ("PromptFormat", "SingleTurnEnvironment", "TaskEnvironment"),
    "environments.dataset": ("read_dataset", "tasks_from"),
    "environments.geo": ("GeoEnvironment", "GeoOptions"),
    "environments.search": ("SearchEnvironment", "SearchOptions", "search_environment"),
    "environments.tools": ("ToolEnvironment",),
    "environments.trl_factory": ("from_trl",),
    "environments.verifiers": ("from_verifiers",),
    "exporting.chat_template": ("with_instruction",),
    "frames": ("RunReader", "open_run"),
    "library": ("GEPA", "INSPO", "INSPOWithP2O", "P2O", "Static"),
    "evolution.hints": ("HintOptions",),
    "llm.client": ("OpenAIOptions",),
    "llm.hint_writer": ("RulesLLM",),
    "records": (
        "Action",
        "Completion",
        "Distillation",
        "Limits",
        "Prompt",
        "Response",
        "Task",
        "Trajectory",
    ),
    "rewards.functions": ("RewardFunctions", "WeightedReward"),
    "run_dir": ("RunDir",),
    "strategies.composed": ("ComposedOptions",),
    "strategies.gepa": ("GepaOptions",),
    "strategies.inspo": ("InspoOptions",),
    "strategies.p2o": ("P2OOptions",),
    "task_config": ("DatasetConfig",),
}
_MODULES = {name: f"cotune.{module}" for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'cotune' has no attribute {name!r}")
    if _MODULES[name].startswith("cotune.engines.trl"):
        import_module("cotune.engine_packages").need_trl(f"cotune.{name}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
