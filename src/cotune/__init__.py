"""Trains an LLM agent's weights and its prompt together. See `cotune.INSPO` and `cotune --help`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from cotune.config.joint_method import (
        FST,
        GEPA,
        INSPO,
        P2O,
        INSPOWithP2O,
        OtherMethod,
        Static,
    )
    from cotune.data.dataset import DatasetConfig, read_dataset, tasks_from
    from cotune.engines.trl.joint_trainer import JointTrainer
    from cotune.environments.base import PromptFormat, SingleTurnEnvironment, TaskEnvironment
    from cotune.environments.reasoning_gym import ReasoningGymEnvironment, ReasoningGymOptions
    from cotune.environments.search import SearchEnvironment, SearchOptions, search_environment
    from cotune.environments.tools import ToolEnvironment
    from cotune.environments.trl_factory import from_trl
    from cotune.environments.verifiers import from_verifiers
    from cotune.errors import (
        BudgetError,
        ConfigError,
        CotuneError,
        EngineError,
        EvolutionError,
        LLMError,
        RetrievalError,
    )
    from cotune.llm.bank import BankOptions
    from cotune.llm.client import OpenAIOptions
    from cotune.methods.composed import ComposedOptions
    from cotune.methods.fst.fst import FstOptions
    from cotune.methods.fst.gepa import GepaOptions
    from cotune.methods.inspo.inspo import InspoOptions
    from cotune.methods.p2o.hints import HintOptions
    from cotune.methods.p2o.p2o import P2OOptions
    from cotune.policy.chat_template import with_instruction
    from cotune.policy.policy_files import policy_path
    from cotune.protocols import LLM, Environment, Retriever
    from cotune.rewards.functions import RewardFunctions, WeightedReward
    from cotune.run.run_dir import RunDir, open_run
    from cotune.types import (
        Action,
        Completion,
        Distillation,
        FilteredDistillation,
        Limits,
        Prompt,
        Response,
        Task,
        Trajectory,
    )
    from cotune.worlds.geo import GeoEnvironment, GeoOptions
    from cotune.worlds.ladder import LadderEnvironment, LadderOptions
    from cotune.worlds.rules_llm import RulesLLM

__all__ = [
    "FST",
    "GEPA",
    "INSPO",
    "LLM",
    "P2O",
    "Action",
    "BankOptions",
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
    "FilteredDistillation",
    "FstOptions",
    "GeoEnvironment",
    "GeoOptions",
    "GepaOptions",
    "HintOptions",
    "INSPOWithP2O",
    "InspoOptions",
    "JointTrainer",
    "LLMError",
    "LadderEnvironment",
    "LadderOptions",
    "Limits",
    "OpenAIOptions",
    "OtherMethod",
    "P2OOptions",
    "Prompt",
    "PromptFormat",
    "ReasoningGymEnvironment",
    "ReasoningGymOptions",
    "Response",
    "RetrievalError",
    "Retriever",
    "RewardFunctions",
    "RulesLLM",
    "RunDir",
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
    "policy_path",
    "read_dataset",
    "search_environment",
    "tasks_from",
    "with_instruction",
]

# Loaded on first use, so that importing cotune costs only what is used.
_HOME = {
    "protocols": (
        "LLM",
        "Environment",
        "Retriever",
    ),
    "errors": (
        "BudgetError",
        "ConfigError",
        "CotuneError",
        "EngineError",
        "EvolutionError",
        "LLMError",
        "RetrievalError",
    ),
    "engines.trl.joint_trainer": ("JointTrainer",),
    "environments.base": (
        "PromptFormat",
        "SingleTurnEnvironment",
        "TaskEnvironment",
    ),
    "environments.reasoning_gym": (
        "ReasoningGymEnvironment",
        "ReasoningGymOptions",
    ),
    "data.dataset": (
        "DatasetConfig",
        "read_dataset",
        "tasks_from",
    ),
    "worlds.geo": (
        "GeoEnvironment",
        "GeoOptions",
    ),
    "worlds.ladder": (
        "LadderEnvironment",
        "LadderOptions",
    ),
    "environments.search": (
        "SearchEnvironment",
        "SearchOptions",
        "search_environment",
    ),
    "environments.tools": ("ToolEnvironment",),
    "environments.trl_factory": ("from_trl",),
    "environments.verifiers": ("from_verifiers",),
    "methods.p2o.hints": ("HintOptions",),
    "policy.chat_template": ("with_instruction",),
    "policy.policy_files": ("policy_path",),
    "config.joint_method": (
        "FST",
        "GEPA",
        "INSPO",
        "P2O",
        "INSPOWithP2O",
        "OtherMethod",
        "Static",
    ),
    "llm.bank": ("BankOptions",),
    "llm.client": ("OpenAIOptions",),
    "worlds.rules_llm": ("RulesLLM",),
    "types": (
        "Action",
        "Completion",
        "Distillation",
        "FilteredDistillation",
        "Limits",
        "Prompt",
        "Response",
        "Task",
        "Trajectory",
    ),
    "rewards.functions": (
        "RewardFunctions",
        "WeightedReward",
    ),
    "run.run_dir": (
        "RunDir",
        "open_run",
    ),
    "methods.composed": ("ComposedOptions",),
    "methods.fst.fst": ("FstOptions",),
    "methods.fst.gepa": ("GepaOptions",),
    "methods.inspo.inspo": ("InspoOptions",),
    "methods.p2o.p2o": ("P2OOptions",),
}
_MODULES = {name: f"cotune.{module}" for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("cotune")
    if name not in _MODULES:
        raise AttributeError(f"module 'cotune' has no attribute {name!r}")
    if name == "JointTrainer":
        import_module("cotune.utils.packages").need_trl(f"cotune.{name}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    own = {name for name in globals() if name.startswith("__")} - {"__getattr__", "__dir__"}
    return sorted({*own, "__version__", *__all__})
