"""The exceptions of cotune. Each message says what came, what was expected and what to change."""


class CotuneError(Exception):
    """Base of all errors that say what came, what was expected and what to change."""


class ConfigError(CotuneError):
    """A run file, an argument or a set-up that cannot work. Exit status 2."""


class EngineError(CotuneError):
    """An engine does not behave as its adapter was written for."""


class LLMError(CotuneError):
    """An LLM call failed for good: retries spent, refused, or no usable reply."""


class RetrievalError(CotuneError):
    """A search failed for good: a service that is down, refuses, or sends no usable reply."""


class BudgetError(CotuneError):
    """The next LLM call could exceed the run's budget; it was not made."""


class EvolutionError(CotuneError):
    """Every proposal of a run failed; the message names the causes."""


class Stopped(CotuneError):
    """A person stopped a run; the message says how to go on. Exit status 130."""
