"""Ask an LLM once before a run begins, so that a wrong key or address is found before anything is spent."""

from dataclasses import replace

from cotune.llm.client import OpenAIClient, OpenAIOptions
from cotune.run.costs import CostRow
from cotune.run.record import Record
from cotune.utils.progress import begin

PROMPT = "This is a test of the connection. Reply with the word yes."
_SECONDS = 30.0
_RETRIES = 1


def make_first_call(options: OpenAIOptions) -> list[CostRow]:
    """Make one small call to an endpoint; return its cost.

    Raises:
        LLMError: there is no answer.
    """
    timeout_s = min(options.timeout_s, _SECONDS)
    begin(f"asking {options.describe()} (at most {timeout_s * (1 + _RETRIES) + _RETRIES:g} s)")
    record = Record()
    first_call = replace(options, timeout_s=timeout_s, budget=None)
    OpenAIClient(first_call, record, _RETRIES).complete(PROMPT)
    return record.cost_rows
