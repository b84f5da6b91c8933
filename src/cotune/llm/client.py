"""Metered LLMs that propose instructions: an OpenAI-compatible endpoint, and any other LLM.

Only `OpenAIClient.complete` retries, so every request that leaves the machine is one row of the
ledger, reserved at its worst case before it is sent.
"""

import json
import os
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, cast

from cotune.errors import ConfigError, CotuneError, LLMError
from cotune.protocols import LLM
from cotune.types import Completion
from cotune.utils.option_checks import check_range, check_url
from cotune.utils.text import encodable, hide_secrets, one_line

if TYPE_CHECKING:
    from cotune.llm.transport import ChatEndpoint, Outcome

OPENAI_URL = "https://api.openai.com/v1"
MAX_WAIT_S = 120.0
CHECK = "This is a test of the connection. Reply with the word yes."
"""The prompt of the call that is made before training."""
_FIRST_WAIT_S = 1.0
_MAX_BACKOFF_S = 30.0
# Allowance for a chat template: role markers and, for some models, a system message.
_TEMPLATE_TOKENS = 64
_BYTES_PER_CHARACTER = 4
_jitter = random.Random()  # not the program's generator, which makes the run's own draws
# What the client itself writes or reads, and what would multiply the price of a call.
_OWN_FIELDS = (
    "model", "messages", "stop", "temperature", "max_tokens", "max_completion_tokens", "stream", "n",
    "best_of",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OpenAIOptions:
    """`llm:` of a run file, for an OpenAI-compatible endpoint.

    Attributes:
        kind: "openai".
        model: the model's name at the endpoint.
        base_url: the endpoint, up to and without "/chat/completions"; None is OpenAI's own.
        api_key_env: NAME of the environment variable that holds the key; None sends none.
        temperature: softmax temperature of the proposals; None leaves it to the endpoint.
        max_tokens: the most tokens of one reply, reasoning included.
        max_tokens_field: the endpoint's name for that limit; OpenAI's reasoning models take only
            "max_completion_tokens".
        extra_body: further fields of the request, for what only your endpoint knows, such as
            `{chat_template_kwargs: {enable_thinking: false}}` of vLLM. Not for secrets.
        timeout_s: seconds that one attempt may take.
        retries: further attempts after a failed first one.
        price_per_million_prompt_tokens: in US dollars; 0 if calls are free.
        price_per_million_completion_tokens: in US dollars; 0 if calls are free.
        budget: the most that the run may spend on calls, all attempts included; None sets no limit.
        optional: whether a run continues if all proposals of two phases in a row fail.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["openai"] = "openai"
    model: str
    base_url: str | None = None
    api_key_env: str | None = "OPENAI_API_KEY"
    temperature: float | None = 1.0
    max_tokens: int = 4096
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extra_body: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)
    timeout_s: float = 120.0
    retries: int = 4
    price_per_million_prompt_tokens: float = 0.0
    price_per_million_completion_tokens: float = 0.0
    budget: float | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ValueError(f"model is {self.model!r}, expected the name of a model")
        if hide_secrets(self.model, guess=True) != self.model:
            raise ValueError(
                "model looks like a key (not shown), expected the name of a model; put the key in the "
                "environment variable that api_key_env names"
            )
        if self.base_url is not None:
            check_url("base_url", self.base_url)
        # Lower case is refused, and the value is not shown, in case a key itself was entered here.
        if self.api_key_env is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", self.api_key_env):
            raise ValueError(
                "api_key_env is not the NAME of an environment variable in capitals, such as "
                "OPENAI_API_KEY (the value is not shown: it may be a key)"
            )
        _check_extra(self.extra_body)
        check_range("temperature", self.temperature, 0, 10)
        check_range("max_tokens", self.max_tokens, 1, 2**20)
        check_range("timeout_s", self.timeout_s, 0.01, 3600)
        check_range("retries", self.retries, 0, 20)
        prompt_price = self.price_per_million_prompt_tokens
        completion_price = self.price_per_million_completion_tokens
        check_range("price_per_million_prompt_tokens", prompt_price, 0, 10**9)
        check_range("price_per_million_completion_tokens", completion_price, 0, 10**9)
        check_range("budget", self.budget, 0, 10**15)
        if self.budget is not None and prompt_price == completion_price == 0.0:
            raise ValueError(
                f"budget is {self.budget} but both prices are 0; set price_per_million_prompt_tokens "
                "and price_per_million_completion_tokens, or remove budget"
            )

    def describe(self) -> str:
        """Return the model's name and its address."""
        return f"{self.model} at {self.base_url or 'api.openai.com'}"

    @property
    def public_name(self) -> str:
        """Return the model's name, without its address, which may be a machine's."""
        return self.model

    def price(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the price of a call: (prompt x its price + completion x its price) / 10^6."""
        return (
            prompt_tokens * self.price_per_million_prompt_tokens
            + completion_tokens * self.price_per_million_completion_tokens
        ) / 1e6


class Account(Protocol):
    """A record of an LLM's calls; `Ledger` implements it and documents the methods."""

    def reserve(self, worst_case: float, limit: float | None, model: str = "") -> int: ...

    def settle(
        self,
        reservation: int,
        *,
        prompt_tokens: int,
        completion_tokens: int,
        cost: float,
        error: str = "",
        estimated: bool = False,
        seconds: float = 0.0,
    ) -> None: ...


class OpenAIClient:
    """An `LLM` at an OpenAI-compatible endpoint; each attempt is one row of the ledger.

    Timeouts, broken connections, statuses 408, 409, 429 and 5xx and replies without usable text
    are retried; other statuses are final. No redirect is followed. An attempt that was refused or
    never sent costs nothing; one without a usage report is counted at its upper bound and marked
    as such in the ledger.

    Args:
        options: `llm:` of the run file.
        ledger: the ledger in which attempts are reserved and settled.
        sleep: waits for a number of seconds.

    Raises:
        ConfigError: the environment variable of `api_key_env` is not set or holds no key.
    """

    def __init__(
        self,
        options: OpenAIOptions,
        ledger: Account,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self.identity, self.optional = options.describe(), options.optional
        self._ledger = ledger
        self._sleep = sleep
        self._key = _read_key(options.api_key_env)
        self._doubted = False

    def __repr__(self) -> str:
        return f"OpenAIClient({self._options!r})"

    @cached_property
    def _endpoint(self) -> "ChatEndpoint":
        # Importing openai takes half a second; errors found before the first call do not need it.
        from cotune.llm.transport import ChatEndpoint

        return ChatEndpoint(self._options, self._key)

    def complete(self, prompt: str) -> Completion:
        """Return the model's reply to one user message.

        Raises:
            LLMError: refused, or all attempts failed; the message gives the last failure.
            BudgetError: the next attempt could exceed the budget; it was not made.
        """
        return self.chat([{"role": "user", "content": prompt}])

    def check(self) -> None:
        """Make one small call, so that an endpoint that does not answer is found before training.

        Raises:
            LLMError, BudgetError: see `complete`.
        """
        self.complete(CHECK)

    def chat(self, messages: Sequence[Mapping[str, str]], stop: Sequence[str] = ()) -> Completion:
        """Return the model's reply to a dialogue; raise the errors of `complete`.

        Args:
            messages: {"role", "content"} each.
            stop: strings that end the reply; endpoints omit them from it.
        """
        sent = [{name: encodable(text) for name, text in message.items()} for message in messages]
        failures = 0
        while True:
            completion, error, retry_after = self._attempt(sent, stop)
            if completion is not None:
                return completion
            failures += 1
            if retry_after is None or failures > self._options.retries:
                where = f"{self._options.model} at {self._options.base_url or OPENAI_URL}"
                raise LLMError(f"no reply from {where} after {failures} attempt(s): {error}")
            self._sleep(wait_seconds(failures, retry_after, _jitter.random()))

    def _attempt(
        self, messages: Sequence[Mapping[str, str]], stop: Sequence[str]
    ) -> tuple[Completion | None, str, float | None]:
        """Return (reply, "", None), (None, error, least seconds to wait) or, if final, (…, None)."""
        options = self._options
        # Each message is bounded with a template allowance of its own.
        bound = sum(prompt_token_bound(len(m["content"].encode())) for m in messages)
        upper = (bound, options.max_tokens)
        reservation = self._ledger.reserve(options.price(*upper), options.budget, options.model)
        begun = time.monotonic()
        outcome = self._endpoint.chat(messages, stop)
        usage, estimated = believed_usage(outcome, upper)
        self._ledger.settle(
            reservation,
            prompt_tokens=usage[0],
            completion_tokens=usage[1],
            cost=options.price(*usage),
            error=outcome.error,
            estimated=estimated,
            seconds=time.monotonic() - begun,
        )
        if not outcome.error:
            notice = self._doubt(outcome, upper)
            return Completion(outcome.text, *usage, outcome.truncated, notice), "", None
        return None, outcome.error, (outcome.retry_after or 0.0) if outcome.retryable else None

    def _doubt(self, outcome: "Outcome", upper: tuple[int, int]) -> str:
        """Return a notice about the first usage report that cannot be true; "" otherwise."""
        if self._doubted or outcome.usage is None or fits(outcome.usage, upper):
            return ""
        self._doubted = True
        return (
            f"the endpoint reports {outcome.usage[0]:,} prompt and {outcome.usage[1]:,} completion tokens "
            f"for a call that has at most {upper[0]:,} and {upper[1]:,}; calls are counted at no more than that"
        )


class NoLLM:
    """The LLM of a method that needs none."""

    def complete(self, prompt: str) -> Completion:
        """Raise LLMError, always."""
        raise LLMError("this run has no LLM; set llm: in the run file")


class MeteredLLM:
    """Record every call of an LLM without a price (the offline rules, a fake) in the ledger.

    Args:
        llm: the LLM that answers.
        ledger: the ledger in which its calls are recorded, at price 0.
        model: the name under which they are recorded.
        identity: identifies the LLM that answers; None: its own `identity`, or the name.
        optional: see `protocols.LLM`; None asks the LLM itself.
    """

    def __init__(
        self,
        llm: LLM,
        ledger: Account,
        model: str,
        identity: str | None = None,
        optional: bool | None = None,
    ) -> None:
        self._llm = llm
        self.identity = identity or str(getattr(llm, "identity", "") or model)
        self.origin = str(getattr(llm, "origin", ""))
        self.optional = bool(getattr(llm, "optional", False)) if optional is None else optional
        self.advice = str(getattr(llm, "advice", ""))
        self._ledger = ledger
        self._model = model

    def complete(self, prompt: str) -> Completion:
        """Return the LLM's reply.

        Raises:
            LLMError: the LLM raised it, or an exception that is not cotune's.
            BudgetError, ConfigError: the LLM raised it, or returned no text.
        """
        reservation = self._ledger.reserve(0.0, None, self._model)
        begun = time.monotonic()
        try:
            completion = _as_completion(self._llm.complete(prompt), self._model)
        except CotuneError as error:
            failure = one_line(hide_secrets(str(error) or _name(error)))
            self._settle(reservation, Completion(""), failure, begun)
            if isinstance(error, LLMError):
                raise LLMError(failure) from error
            raise
        except (Exception, SystemExit) as error:  # its own code may raise anything
            failure = one_line(hide_secrets(f"{_name(error)}: {error}"))
            self._settle(reservation, Completion(""), failure, begun)
            raise LLMError(failure) from error
        self._settle(reservation, completion, "", begun)
        return completion

    def _settle(self, reservation: int, completion: Completion, error: str, begun: float) -> None:
        self._ledger.settle(
            reservation,
            prompt_tokens=completion.prompt_tokens,
            completion_tokens=completion.completion_tokens,
            cost=0.0,
            error=error,
            seconds=time.monotonic() - begun,
        )


def _name(error: BaseException) -> str:
    return type(error).__name__


def _as_completion(reply: object, name: str) -> Completion:
    """Convert an LLM object's return value; a plain text is a reply with unknown token counts."""
    if isinstance(reply, Completion):
        if not isinstance(cast(object, reply.text), str):
            raise LLMError(f"{name}.complete(prompt) returned a Completion without a text")
        counts = (reply.prompt_tokens, reply.completion_tokens)
        prompt, completion = (n if type(n) is int and 0 <= n < 2**31 else 0 for n in counts)
        return replace(reply, prompt_tokens=prompt, completion_tokens=completion)
    if isinstance(reply, str):
        return Completion(reply)
    if reply is None:  # as the content of a refusal
        raise LLMError(f"{name}.complete(prompt) returned None")
    raise ConfigError(
        f"llm: {name}.complete(prompt) returned {type(reply).__name__}; expected a text or "
        "cotune.Completion(text, prompt_tokens, completion_tokens)"
    )


def fits(usage: tuple[int, int], upper: tuple[int, int]) -> bool:
    """Return whether both token counts are within their upper bounds."""
    return usage[0] <= upper[0] and usage[1] <= upper[1]


def believed_usage(outcome: "Outcome", upper: tuple[int, int]) -> tuple[tuple[int, int], bool]:
    """Return the tokens to book for an attempt, and whether they are upper bounds.

    Args:
        upper: the most that the attempt can have used: what was sent, and what was asked for.
    """
    if outcome.usage is None:
        return ((0, 0), False) if outcome.free else (upper, True)
    found = (min(outcome.usage[0], upper[0]), min(outcome.usage[1], upper[1]))
    return found, not fits(outcome.usage, upper)


def worst_case_price(options: OpenAIOptions, prompt_chars: int, calls: int) -> float:
    """Return the most that `calls` calls with prompts of up to `prompt_chars` characters can cost.

    Counts every retry, one token per byte, four bytes per character and full replies.
    """
    tokens = prompt_token_bound(_BYTES_PER_CHARACTER * prompt_chars)
    return calls * (1 + options.retries) * options.price(tokens, options.max_tokens)


def prompt_token_bound(prompt_bytes: int) -> int:
    """Bound the tokens of a prompt by its UTF-8 bytes: one per byte, plus the template's."""
    return prompt_bytes + _TEMPLATE_TOKENS


def wait_seconds(failures: int, retry_after: float, jitter: float) -> float:
    """Return the seconds to wait after the `failures`-th failure in a row.

    Exponential backoff min(30, 2^(failures - 1)), reduced by up to half by `jitter` in [0, 1); at
    least the server's requested wait, at most 120.
    """
    backoff = min(_MAX_BACKOFF_S, _FIRST_WAIT_S * 2.0 ** min(failures - 1, 10))
    return min(MAX_WAIT_S, max(retry_after, backoff * (1 - jitter / 2)))


def _check_extra(body: Mapping[str, Any]) -> None:
    if own := [name for name in _OWN_FIELDS if name in body]:
        raise ValueError(
            f"extra_body holds {own[0]}, which cotune sends or reads itself; remove it, and see the other "
            "fields of llm"
        )
    try:
        json.dumps(body, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError(
            "extra_body holds a value that JSON has no form for (the value is not shown); expected "
            "texts, numbers, true, false, null, lists and mappings"
        ) from None


def _read_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"environment variable {variable} is not set, expected the API key: set it, or change "
            "llm.api_key_env"
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            f"environment variable {variable} holds no API key, expected printable ASCII without "
            "spaces: set it, or change llm.api_key_env"
        )
    return key
