"""Ask an LLM once before a run begins, so that a wrong key or address is found before anything is spent."""

from dataclasses import replace

from cotune.errors import BudgetError, LLMError
from cotune.llm.client import OpenAIClient, OpenAIOptions
from cotune.llm.own import OwnLLMOptions, check_own
from cotune.run.costs import CostRow
from cotune.run.record import Record
from cotune.utils.progress import begin

PROMPT = "This is a test of the connection. Reply with the word yes."
_SECONDS = 30.0
_RETRIES = 1


def make_first_call(options: object, spent: float = 0.0) -> tuple[str | None, list[CostRow]]:
    """Make one small call to the LLM; return what it says of itself, and that call.

    An LLM of the user's own is called only if it has a method `check`.

    Args:
        options: an endpoint's, or those of an object of the user's; any other LLM needs no call.
        spent: money that counts against the budget.

    Raises:
        LLMError: there is no answer.
    """
    if isinstance(options, OwnLLMOptions):
        return ("llm: a first call was answered" if check_own(options) else None), []
    if not isinstance(options, OpenAIOptions):
        return None, []
    timeout_s = min(options.timeout_s, _SECONDS)
    begin(f"asking {options.describe()} (at most {timeout_s * (1 + _RETRIES) + _RETRIES:g} s)")
    first_call = replace(options, timeout_s=timeout_s)
    if first_call.budget is not None:
        first_call = replace(first_call, budget=max(0.0, first_call.budget - spent))
    record = Record()
    try:
        OpenAIClient(first_call, record, _RETRIES).complete(PROMPT)
    except BudgetError as error:
        raise LLMError(str(error)) from error
    return "llm: a first call was answered", record.cost_rows
