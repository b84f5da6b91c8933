"""The exceptions of cotune. A message says in one line what was given, what was expected, what to change."""


class CotuneError(Exception):
    """Base of all errors whose message is meant for users."""


class ConfigError(CotuneError):
    """A run file, an argument or an installation that cannot work. Exit status 2."""


class EngineError(CotuneError):
    """An engine or an environment does not behave as expected."""


class LLMError(CotuneError):
    """An LLM call failed for good: retries used up, refused, or no usable reply."""


class RetrievalError(CotuneError):
    """A search failed for good: the service is down, refuses, or returns no usable reply."""


class BudgetError(CotuneError):
    """The LLM's budget is spent, or its bank has no text left."""


class EvolutionError(CotuneError):
    """All proposals of consecutive phases failed; the message names the causes."""


class Stopped(CotuneError):
    """The user stopped a run; the message says how to resume. Exit status 130."""
