"""Trains an LLM agent's weights and its prompt together. See `cotune.JointTrainer` and `cotune --help`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from cotune.cli.train import resume as resume
    from cotune.cli.train import train as train
    from cotune.config.fst_methods import FST as FST
    from cotune.config.fst_methods import GEPA as GEPA
    from cotune.config.inspo_method import INSPO as INSPO
    from cotune.config.joint_method import OtherMethod as OtherMethod
    from cotune.config.joint_method import Static as Static
    from cotune.config.p2o_method import P2O as P2O
    from cotune.data.dataset import DatasetConfig as DatasetConfig
    from cotune.data.dataset import read_dataset as read_dataset
    from cotune.data.dataset import tasks_from as tasks_from
    from cotune.engines.trl.joint_trainer import JointTrainer as JointTrainer
    from cotune.environments.base import PromptFormat as PromptFormat
    from cotune.environments.base import SingleTurnEnvironment as SingleTurnEnvironment
    from cotune.environments.base import TaskEnvironment as TaskEnvironment
    from cotune.environments.search import SearchEnvironment as SearchEnvironment
    from cotune.environments.search import SearchOptions as SearchOptions
    from cotune.environments.tools import ToolEnvironment as ToolEnvironment
    from cotune.environments.trl_factory import from_trl as from_trl
    from cotune.environments.verifiers import from_verifiers as from_verifiers
    from cotune.errors import BudgetError as BudgetError
    from cotune.errors import ConfigError as ConfigError
    from cotune.errors import CotuneError as CotuneError
    from cotune.errors import EngineError as EngineError
    from cotune.errors import EvolutionError as EvolutionError
    from cotune.errors import LLMError as LLMError
    from cotune.errors import RetrievalError as RetrievalError
    from cotune.llm.client import OpenAIOptions as OpenAIOptions
    from cotune.llm.own import BankOptions as BankOptions
    from cotune.methods.p2o.hints import HintOptions as HintOptions
    from cotune.policy.policy_files import policy_path as policy_path
    from cotune.protocols import LLM as LLM
    from cotune.protocols import Environment as Environment
    from cotune.protocols import Retriever as Retriever
    from cotune.rewards.functions import RewardFunctions as RewardFunctions
    from cotune.rewards.functions import WeightedReward as WeightedReward
    from cotune.run.run_dir import RunDir as RunDir
    from cotune.run.run_dir import open_run as open_run
    from cotune.types import Action as Action
    from cotune.types import Completion as Completion
    from cotune.types import Distillation as Distillation
    from cotune.types import Limits as Limits
    from cotune.types import Prompt as Prompt
    from cotune.types import Response as Response
    from cotune.types import Task as Task
    from cotune.types import Trajectory as Trajectory
    from cotune.worlds.ladder import LadderEnvironment as LadderEnvironment
    from cotune.worlds.ladder import LadderOptions as LadderOptions
    from cotune.worlds.rules_llm import RulesLLM as RulesLLM

# Loaded on first use, so that importing cotune costs only what is used.
_NAMES = {
    "cli.train": "resume train",
    "config.fst_methods": "FST GEPA",
    "config.inspo_method": "INSPO",
    "config.joint_method": "OtherMethod Static",
    "config.p2o_method": "P2O",
    "data.dataset": "DatasetConfig read_dataset tasks_from",
    "engines.trl.joint_trainer": "JointTrainer",
    "environments.base": "PromptFormat SingleTurnEnvironment TaskEnvironment",
    "environments.search": "SearchEnvironment SearchOptions",
    "environments.tools": "ToolEnvironment",
    "environments.trl_factory": "from_trl",
    "environments.verifiers": "from_verifiers",
    "errors": "BudgetError ConfigError CotuneError EngineError EvolutionError LLMError RetrievalError",
    "llm.own": "BankOptions",
    "llm.client": "OpenAIOptions",
    "methods.p2o.hints": "HintOptions",
    "policy.policy_files": "policy_path",
    "protocols": "Environment LLM Retriever",
    "rewards.functions": "RewardFunctions WeightedReward",
    "run.run_dir": "RunDir open_run",
    "types": "Action Completion Distillation Limits Prompt Response Task Trajectory",
    "worlds.ladder": "LadderEnvironment LadderOptions",
    "worlds.rules_llm": "RulesLLM",
}
_MODULES = {name: f"cotune.{module}" for module, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:
    __all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("cotune")
    if name not in _MODULES:
        raise AttributeError(f"module 'cotune' has no attribute {name!r}")
    if name == "JointTrainer":
        import_module("cotune.utils.packages").need("trl", f"cotune.{name}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({"__all__", "__doc__", "__file__", "__path__", "__version__", *_MODULES})
