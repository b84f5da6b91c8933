"""Ask an LLM once before a run begins, so that a wrong key or address is found before anything is spent."""

from dataclasses import replace

from cotune.errors import BudgetError, LLMError
from cotune.llm.client import OpenAIClient, OpenAIOptions
from cotune.run.costs import CostRow
from cotune.run.record import Record
from cotune.utils.progress import begin

PROMPT = "This is a test of the connection. Reply with the word yes."
_SECONDS = 30.0
_RETRIES = 1


def make_first_call(options: OpenAIOptions, spent: float = 0.0) -> list[CostRow]:
    """Make one small call to an endpoint; return its cost.

    Args:
        options: the endpoint's.
        spent: money that counts against the budget.

    Raises:
        LLMError: there is no answer.
    """
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
    return record.cost_rows
