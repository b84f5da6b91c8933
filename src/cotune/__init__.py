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
    from cotune.environments.geo import GeoEnvironment, GeoOptions
    from cotune.environments.search import SearchEnvironment, SearchOptions, search_environment
    from cotune.library import INSPO, Static
    from cotune.llm.client import OpenAIOptions
    from cotune.llm.hint_writer import RulesLLM
    from cotune.records import Completion, Limits, Prompt, Task, Trajectory
    from cotune.run_dir import RunDir, open_run
    from cotune.strategies.inspo import InspoOptions

__all__ = [
    "INSPO",
    "LLM",
    "BudgetError",
    "Completion",
    "ConfigError",
    "CotuneError",
    "EngineError",
    "Environment",
    "EvolutionError",
    "GeoEnvironment",
    "GeoOptions",
    "InspoOptions",
    "LLMError",
    "Limits",
    "OpenAIOptions",
    "Prompt",
    "RetrievalError",
    "Retriever",
    "RulesLLM",
    "RunDir",
    "SearchEnvironment",
    "SearchOptions",
    "Static",
    "Task",
    "Trajectory",
    "open_run",
    "search_environment",
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
    "environments.geo": ("GeoEnvironment", "GeoOptions"),
    "environments.search": ("SearchEnvironment", "SearchOptions", "search_environment"),
    "library": ("INSPO", "Static"),
    "llm.client": ("OpenAIOptions",),
    "llm.hint_writer": ("RulesLLM",),
    "records": ("Completion", "Limits", "Prompt", "Task", "Trajectory"),
    "run_dir": ("RunDir", "open_run"),
    "strategies.inspo": ("InspoOptions",),
}
_MODULES = {name: f"cotune.{module}" for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'cotune' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
