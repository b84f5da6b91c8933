"""Metered LLMs that propose instructions: an OpenAI-compatible endpoint, and any other LLM.

The key is removed from errors and replies, unless it is too short to be a secret.
"""

import json
import os
import re
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

from cotune.errors import ConfigError, CotuneError, LLMError
from cotune.protocols import LLM
from cotune.run.costs import CostRow
from cotune.run.record import Record
from cotune.types import Completion, Section
from cotune.utils.progress import begin
from cotune.utils.text import encodable, hide_secrets, one_line
from cotune.utils.values import check_range, check_url

if TYPE_CHECKING:
    import openai

OPENAI_URL = "https://api.openai.com/v1"
_SHOWN_CHARACTERS = 300
# Characters of a secret that is hidden: a placeholder for a key, such as "none", may be a word of a reply.
_SHORTEST_SECRET = 8
# Allowance for a chat template: role markers and, for some models, a system message.
_TEMPLATE_TOKENS = 64
# Reasons for the end of a reply that is not whole. Any other but "length" is an endpoint's own word for "stop":
# such a reply must not be discarded and paid again.
_BROKEN_OFF = ("content_filter", "tool_calls", "function_call", "error")
# Failures of a connection before a request was sent.
_UNSENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"}
_CHECK_REQUEST = "check llm.model, llm.max_tokens, llm.max_tokens_field and llm.temperature"
# The fields of a run file that may be wrong, by the status of a refusal.
_HINTS = {
    400: _CHECK_REQUEST,
    401: "check llm.api_key_env",
    403: "check llm.api_key_env",
    404: "check llm.base_url and llm.model",
    422: _CHECK_REQUEST,
}

RETRIES = 4
"""Further attempts of a call after a failed first one."""


@dataclass(frozen=True, kw_only=True)
class OpenAIOptions(Section):
    """`llm:` of a run file, for an OpenAI-compatible endpoint.

    Attributes:
        kind: "openai".
        model: the model's name at the endpoint.
        base_url: the endpoint, up to and without "/chat/completions"; None is OpenAI's own.
        api_key_env: NAME of the environment variable that holds the key; None if the endpoint needs none.
        temperature: softmax temperature of the proposals; None leaves it to the endpoint.
        max_tokens: the most tokens of one reply, reasoning included.
        max_tokens_field: the endpoint's name for that limit; OpenAI's reasoning models take only
            "max_completion_tokens".
        extra_body: further fields of the request, for what only your endpoint knows, such as `{chat_template_kwargs:
            {enable_thinking: false}}` of vLLM. Not for secrets.
        timeout_s: seconds to connect, and between two parts of a reply; a call is tried five times.
        price_per_million_prompt_tokens: in US dollars; 0 if calls are free.
        price_per_million_completion_tokens: in US dollars; 0 if calls are free.
        budget: no call is made once the run has spent this on calls, all attempts included; None sets no limit.
        optional: whether a run continues if all proposals of two phases in a row fail.
    """

    kind: Literal["openai"] = "openai"
    model: str
    base_url: str | None = None
    api_key_env: str | None = "OPENAI_API_KEY"
    temperature: float | None = 1.0
    max_tokens: int = 4096
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extra_body: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)
    timeout_s: float = 120.0
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
        check_range("temperature", self.temperature, 0, 10)
        check_range("max_tokens", self.max_tokens, 1, 2**20)
        check_range("timeout_s", self.timeout_s, 0.01, 3600)
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

    def price(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the price of a call: (prompt x its price + completion x its price) / 10^6."""
        return (
            prompt_tokens * self.price_per_million_prompt_tokens
            + completion_tokens * self.price_per_million_completion_tokens
        ) / 1e6


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one request, its repetitions included.

    A value even where it failed: the exceptions of an HTTP stack may carry the request, and with it the API key.

    Attributes:
        usage: (prompt tokens, completion tokens) to be paid for; None without a plausible report.
        error: what went wrong, in one line; "" on success.
        replied: whether a reply came; one without a whole text is asked for again.
    """

    text: str = ""
    usage: tuple[int, int] | None = None
    error: str = ""
    replied: bool = True
    truncated: bool = False


class OpenAIClient:
    """An `LLM` at an OpenAI-compatible endpoint; each reply or failure is one row of the run's costs.

    openai's client repeats a request that breaks off, times out or has status 408, 409, 429 or 5xx,
    as long as Retry-After says. A reply without a whole text is asked for again, as often. Other
    statuses are final, and no redirect is followed. A reply without a usage report, and a request that may have
    reached a model before it broke off or timed out, are counted at their upper bound and marked as such; any other
    request without a reply costs nothing.

    Raises:
        ConfigError: the environment variable of `api_key_env` is not set or holds no key.
    """

    def __init__(self, options: OpenAIOptions, record: Record, retries: int = RETRIES) -> None:
        self.identity = options.describe()
        self.optional = options.optional
        self._options = options
        self._record = record
        self._retries = retries
        self._url = options.base_url or _openai_url()
        self._key = _read_key(options.api_key_env)
        # Headers that openai takes from OPENAI_CUSTOM_HEADERS may hold a key, too.
        headers = os.environ.get("OPENAI_CUSTOM_HEADERS", "").splitlines()
        values = [line.partition(":")[2].strip() for line in headers]
        self._secrets = [v for v in (self._key, *values) if v and len(v) >= _SHORTEST_SECRET]

    def complete(self, prompt: str) -> Completion:
        """Return the model's reply to one user message; see `protocols.LLM`."""
        options = self._options
        prompt = encodable(prompt)
        # A token has at least one byte.
        upper_bound = (len(prompt.encode()) + _TEMPLATE_TOKENS, options.max_tokens)
        outcome = Outcome()
        for _ in range(1 + self._retries):
            self._record.check_budget(options.budget)
            begun = time.monotonic()
            outcome = self._ask(prompt)
            usage = outcome.usage or upper_bound
            self._record.charge(
                options.model,
                prompt_tokens=usage[0],
                completion_tokens=usage[1],
                money=options.price(*usage),
                error=outcome.error,
                estimated=outcome.usage is None,
                seconds=time.monotonic() - begun,
            )
            if not outcome.error:
                return Completion(outcome.text, *usage, outcome.truncated)
            if not outcome.replied:
                break
        raise LLMError(f"no reply from {options.model} at {self._url}: {outcome.error}")

    def _ask(self, prompt: str) -> Outcome:
        import openai

        options = self._options
        create: Any = self._openai.chat.completions.with_raw_response.create
        absent_headers = [] if self._key else ["Authorization"]
        if self._url != OPENAI_URL:
            # openai reads them from OPENAI_ORG_ID and OPENAI_PROJECT_ID; they are for OpenAI only.
            absent_headers += ["OpenAI-Organization", "OpenAI-Project"]
        try:
            reply = create(
                model=options.model,
                messages=[{"role": "user", "content": prompt}],
                temperature=openai.omit if options.temperature is None else options.temperature,
                extra_headers={name: openai.Omit() for name in absent_headers},
                extra_body=options.extra_body or None,
                **{options.max_tokens_field: options.max_tokens},
            )
        except openai.APITimeoutError:
            attempts = f"{1 + self._retries} attempt(s) of llm.timeout_s, {options.timeout_s:g} s"
            # It may have reached a model, which charges for it.
            return Outcome(error=f"timed out: no complete reply in {attempts}", replied=False)
        except openai.OpenAIError as error:
            charged = isinstance(error, openai.APIConnectionError) and not _is_unsent(error)
            usage = None if charged else (0, 0)
            return Outcome(usage=usage, error=self._describe_failure(error), replied=False)
        outcome = parse_reply(reply.content.decode("utf-8", "replace"))
        error = _shorten(self._hide(outcome.error))
        return replace(outcome, text=self._hide(outcome.text), error=error)

    def _describe_failure(self, error: Exception) -> str:
        """Describe in a line why no reply came, with the run-file fields to check."""
        import openai

        if not isinstance(error, openai.APIStatusError):
            cause = error.__cause__ or error
            return f"{type(cause).__name__.lstrip('_')}: {_shorten(self._hide(str(cause)))}"
        body = _shorten(self._hide(error.response.text))
        hint = _HINTS.get(error.status_code)
        return f"HTTP status {error.status_code}: {body!r}" + (f": {hint}" if hint else "")

    @cached_property
    def _openai(self) -> "openai.OpenAI":
        """Raise ConfigError if the environment's proxies cannot be used."""
        # Importing openai takes half a second; errors found before the first call do not need it.
        import openai

        try:
            http = openai.DefaultHttpxClient(
                timeout=self._options.timeout_s, follow_redirects=False
            )
        except Exception as error:  # noqa: BLE001
            # Not `from error`: httpx's own message may quote an address with its password.
            raise ConfigError(
                f"llm: the environment's proxy cannot be used ({type(error).__name__}); correct "
                "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, or for SOCKS pip install 'httpx[socks]'"
            ) from None
        return openai.OpenAI(
            # Not None, for which openai would use OPENAI_API_KEY; the header is left out.
            api_key=self._key or "none",
            base_url=self._url,
            timeout=self._options.timeout_s,
            max_retries=self._retries,
            http_client=http,
        )

    def _hide(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


class NoLLM:
    """The LLM of a method that needs none."""

    def complete(self, prompt: str) -> Completion:
        """Raise LLMError, always."""
        raise LLMError("this run has no LLM; set llm: in the run file")


class MeteredLLM:
    """Count every call of an LLM without a price (the offline rules, an object of the user's).

    Args:
        model: the name under which calls are recorded, at price 0.
        identity: identifies the LLM that answers; None: its own `identity`, or the name.
        optional: see `protocols.LLM`.
    """

    def __init__(
        self,
        llm: LLM,
        record: Record,
        model: str,
        identity: str | None = None,
        optional: bool = False,
    ) -> None:
        self._llm = llm
        self.identity = identity or str(getattr(llm, "identity", "") or model)
        self.origin = str(getattr(llm, "origin", ""))
        self.optional = optional or bool(getattr(llm, "optional", False))
        self._record = record
        self._model = model
        is_module = hasattr(llm, "named_parameters")
        for name in ("state_dict", "load_state_dict"):
            # The state of a torch module is its weights, which are no part of a run.
            if hasattr(llm, name) and not is_module:
                setattr(self, name, getattr(llm, name))

    def complete(self, prompt: str) -> Completion:
        """Return the LLM's reply; LLMError also for an exception that is not cotune's."""
        begun = time.monotonic()
        completion = Completion("")
        failure = "interrupted"
        try:
            reply = cast(object, self._llm.complete(prompt))
            if not isinstance(reply, str | Completion):
                raise LLMError(
                    f"{self._model}.complete(prompt) returned {type(reply).__name__}; expected a text or "
                    "cotune.Completion(text, prompt_tokens, completion_tokens)"
                )
            completion = Completion(reply) if isinstance(reply, str) else reply
            failure = ""
        except (Exception, SystemExit) as error:  # its own code may raise anything
            text = str(error)
            if not (text and isinstance(error, CotuneError)):
                text = f"{type(error).__name__}: {text}"
            failure = one_line(hide_secrets(text))
            if isinstance(error, CotuneError) and not isinstance(error, LLMError):
                raise
            raise LLMError(failure) from error
        finally:
            self._record.charge(
                self._model,
                prompt_tokens=completion.prompt_tokens,
                completion_tokens=completion.completion_tokens,
                error=failure,
                seconds=time.monotonic() - begun,
            )
        return completion


def parse_reply(body: str) -> Outcome:
    """Parse the body of a chat completion."""
    try:
        reply = json.loads(body)
        choice = reply["choices"][0]
        text = choice["message"].get("content")
        reason = choice.get("finish_reason")
        reported = reply.get("usage")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return Outcome(error=f"the reply is no chat completion: {body!r}")
    usage = _read_usage(reported)
    if not isinstance(text, str) or not text.strip():
        error = f"the reply has no text (finish_reason {reason!r})"
        if reason == "length":
            error += ": llm.max_tokens may be too low"
        return Outcome(usage=usage, error=error)
    if reason in _BROKEN_OFF:
        return Outcome(usage=usage, error=f"the reply is not whole (finish_reason {reason!r})")
    return Outcome(encodable(text), usage, truncated=reason == "length")


def _read_usage(usage: Any) -> tuple[int, int] | None:
    """Return the reported numbers of tokens, of prompt and completion; None for what cannot be any."""
    try:
        counts: tuple[Any, Any] = usage["prompt_tokens"], usage["completion_tokens"]
    except (LookupError, TypeError):
        return None
    return counts if all(type(n) is int and 0 <= n < 2**31 for n in counts) else None


def _shorten(text: str) -> str:
    """Return the beginning of a text on one line."""
    text = one_line(text[: 4 * _SHOWN_CHARACTERS])
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _is_unsent(error: Exception) -> bool:
    """Return whether a connection failed before a request was sent, so that nobody charges for it."""
    return type(error.__cause__).__name__ in _UNSENT


def _openai_url() -> str:
    """Return OpenAI's address; ConfigError if the environment names another, to which nothing would go."""
    address = os.environ.get("OPENAI_BASE_URL", "").strip().rstrip("/")
    if address not in ("", OPENAI_URL):
        raise ConfigError(
            "environment variable OPENAI_BASE_URL is set, but llm.base_url is not: set llm.base_url to that "
            f"address, or to {OPENAI_URL}"
        )
    return OPENAI_URL


def _read_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"environment variable {variable} is not set, expected the API key: set it, or change llm.api_key_env"
        )
    # A line break would be quoted, with the key, by the HTTP library's error.
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"environment variable {variable} holds no API key: change llm.api_key_env"
        )
    return key


# ---- a first call, so that a wrong key or address is found before anything is spent

PROMPT = "This is a test of the connection. Reply with the word yes."
_SECONDS = 30.0
_RETRIES = 1


def make_first_call(options: OpenAIOptions) -> list[CostRow]:
    """Make one small call to an endpoint; return its cost. LLMError: there is no answer."""
    timeout_s = min(options.timeout_s, _SECONDS)
    begin(f"asking {options.describe()} (up to {timeout_s:g} s of silence an attempt)")
    record = Record()
    first_call = replace(options, timeout_s=timeout_s, budget=None)
    OpenAIClient(first_call, record, _RETRIES).complete(PROMPT)
    return record.cost_rows
