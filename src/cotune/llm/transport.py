"""One chat completion over HTTP: a dialogue in, an outcome out; failures are not exceptions.

Failures are values here because the exceptions of an HTTP stack may carry the request, and with it
the API key. The key is removed from errors, and from replies unless it is too short to be a secret.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import openai

from cotune.errors import ConfigError
from cotune.llm.client import OPENAI_URL, OpenAIOptions
from cotune.utils.text import encodable

MAX_REPLY_BYTES = 4 * 2**20
_SHOWN_CHARACTERS = 300
_SHORTEST_SECRET = 8  # characters of a key that is looked for in replies
_RETRYABLE_STATUS = {408, 409, 429}
# By name, because openai moved from httpx to httpx2 between major versions. These are raised before
# anything is sent, so nothing can have been charged.
_UNSENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one attempt.

    Attributes:
        text: the reply; "" on failure.
        usage: (prompt tokens, completion tokens) as reported, or None.
        error: what went wrong, in one line; "" on success.
        retryable: whether the same request may succeed later.
        retry_after: seconds the server asked to wait, or None.
        free: whether the attempt was refused or never sent, so that no token was charged.
        truncated: whether the reply was cut off at its token limit.
    """

    text: str = ""
    usage: tuple[int, int] | None = None
    error: str = ""
    retryable: bool = False
    retry_after: float | None = None
    free: bool = False
    truncated: bool = False


class _UnreadableReply(openai.OpenAIError):
    """Raised for a reply that is too long or arrives too slowly."""


class _BoundedClient(openai.DefaultHttpxClient):
    """Follow no redirect, and limit the size and the duration of a reply."""

    def __init__(self, seconds: float) -> None:
        super().__init__(timeout=seconds, follow_redirects=False)
        self._seconds = seconds

    def send(self, request: Any, **kwargs: Any) -> Any:
        deadline = time.monotonic() + self._seconds
        kwargs |= {"stream": True, "follow_redirects": False}
        response = super().send(request, **kwargs)
        body = bytearray()
        try:
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAX_REPLY_BYTES:
                    raise _UnreadableReply(f"the reply is longer than {MAX_REPLY_BYTES} bytes")
                # The read timeout only limits the pause between two chunks.
                if time.monotonic() > deadline:
                    raise _UnreadableReply(f"no complete reply within {self._seconds:g} seconds")
        finally:
            response.close()
        framing = {"content-encoding", "content-length", "transfer-encoding"}
        headers = [(k, v) for k, v in response.headers.multi_items() if k.lower() not in framing]
        return type(response)(
            response.status_code, headers=headers, content=bytes(body), request=request
        )


class ChatEndpoint:
    """Call one model at one OpenAI-compatible endpoint.

    Args:
        options: `llm:` of the run file; `timeout_s` limits connecting, each pause and the whole reply.
        key: the API key, or None to send no Authorization header.
    """

    def __init__(self, options: OpenAIOptions, key: str | None) -> None:
        self._key, self._model = key, options.model
        self._seconds = options.timeout_s
        self._client = openai.OpenAI(
            # Not None, for which openai would use OPENAI_API_KEY; the header is left out below.
            api_key=key or "none",
            base_url=options.base_url or OPENAI_URL,
            timeout=options.timeout_s,
            max_retries=0,
            http_client=_client(options.timeout_s),
        )
        self._headers: dict[str, str | openai.Omit] = (
            {} if key else {"Authorization": openai.Omit()}
        )
        if options.base_url and options.base_url != OPENAI_URL:
            # openai reads them from OPENAI_ORG_ID and OPENAI_PROJECT_ID; they are for OpenAI only.
            names = ("OpenAI-Organization", "OpenAI-Project")
            self._headers |= dict.fromkeys(names, openai.Omit())
        # Headers that openai takes from OPENAI_CUSTOM_HEADERS may hold a key, too.
        own = os.environ.get("OPENAI_CUSTOM_HEADERS", "").splitlines()
        values = [line.partition(":")[2].strip() for line in own]
        self._secrets = [value for value in (key, *values) if value]
        self._temperature = openai.omit if options.temperature is None else options.temperature
        self._extra = options.extra_body
        plain = options.max_tokens_field == "max_tokens"
        self._max_tokens = options.max_tokens if plain else openai.omit
        self._max_completion_tokens = openai.omit if plain else options.max_tokens

    def chat(self, messages: Sequence[Mapping[str, str]], stop: Sequence[str] = ()) -> Outcome:
        """Make one attempt with a dialogue; `stop` are strings that end the reply."""
        try:
            raw = self._client.chat.completions.with_raw_response.create(
                model=self._model,
                messages=cast(Any, [dict(message) for message in messages]),
                stop=list(stop) or openai.omit,
                temperature=self._temperature,
                max_tokens=self._max_tokens,
                max_completion_tokens=self._max_completion_tokens,
                extra_headers=self._headers,
                extra_body=self._extra or None,
            )
        except openai.APIStatusError as error:
            return refused(
                error.status_code, error.response.headers, self._redact(error.response.text)
            )
        except openai.OpenAIError as error:
            return _undelivered(error, self._redact, self._seconds)
        outcome = parse_reply(raw.content.decode("utf-8", "replace"), self._redact)
        return replace(outcome, text=self._redact(outcome.text, _SHORTEST_SECRET))

    def _redact(self, text: str, shortest: int = 1) -> str:
        """Hide secrets of at least `shortest` characters.

        A short one is a placeholder such as "none", which a reply may hold as a word.
        """
        for secret in self._secrets:
            if len(secret) >= shortest:
                text = text.replace(secret, "***")
        return text


def _client(seconds: float) -> _BoundedClient:
    """Raise ConfigError if the environment's proxies cannot be used."""
    try:
        return _BoundedClient(seconds)
    except Exception as error:  # noqa: BLE001
        # Not `from error`: httpx's own message may quote an address with its password.
        raise ConfigError(
            f"llm: the environment's proxy cannot be used ({type(error).__name__}); correct HTTP_PROXY, "
            "HTTPS_PROXY and ALL_PROXY, or for SOCKS pip install 'httpx[socks]'"
        ) from None


def parse_reply(body: str, redact: Callable[[str], str] = str) -> Outcome:
    """Parse the body of a chat completion; an unusable one is a retryable failure.

    Args:
        redact: removes the key from what an error shows.
    """
    try:
        reply: object = json.loads(body)
    except (ValueError, RecursionError):
        return Outcome(error=f"the reply is not JSON: {_shown(redact(body))!r}", retryable=True)
    usage = _usage(_field(reply, "usage"))
    choices = _field(reply, "choices")
    if not isinstance(choices, list) or not choices:
        error = f"the reply has no choices: {_shown(redact(body))!r}"
        return Outcome(error=error, usage=usage, retryable=True)
    choice = cast("list[object]", choices)[0]
    message, reason = _field(choice, "message"), _field(choice, "finish_reason")
    text = _text(_field(message, "content"))
    if not isinstance(text, str) or not text.strip():
        error = f"the reply has no text (finish_reason {_shown(redact(str(reason)))!r})"
        if reason == "length":
            error += ": llm.max_tokens may be too low"
        if isinstance(refusal := _field(message, "refusal"), str) and refusal:
            error += f": it refused: {_shown(redact(refusal))!r}"
        return Outcome(error=error, usage=usage, retryable=True)
    return Outcome(text=encodable(text), usage=usage, truncated=reason == "length")


def _text(content: object) -> object:
    """Return a message's content; of a list of parts the texts that are not thoughts."""
    if not isinstance(content, list):
        return content
    parts = [part for part in cast("list[object]", content) if _field(part, "type") == "text"]
    return "".join(str(_field(part, "text") or "") for part in parts)


def refused(status: int, headers: Mapping[str, str], body: str) -> Outcome:
    """Return the outcome of a status other than 2xx, with the run-file field to check."""
    error = f"HTTP status {status}"
    if body.strip():
        error += f": {_shown(body)!r}"
    if status in _RETRYABLE_STATUS or status >= 500:
        wait = parse_retry_after(headers.get("retry-after", ""), datetime.now(UTC))
        return Outcome(error=error, retryable=True, retry_after=wait, free=True)
    if status < 400:
        hint = "redirects are not followed, check llm.base_url"
    elif status in (401, 403):
        hint = "check llm.api_key_env"
    elif status == 404:
        hint = "check llm.base_url and llm.model"
    else:
        hint = "check llm.model, llm.max_tokens, llm.max_tokens_field and llm.temperature"
    return Outcome(error=f"{error}: {hint}", free=True)


def parse_retry_after(value: str, now: datetime) -> float | None:
    """Return the seconds to wait from a Retry-After header, a number or a date; None if invalid."""
    value = value.strip()
    if value.isascii() and value.isdigit() and len(value) < 10:
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
        seconds = (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds()
    except (ValueError, OverflowError):  # a year of ten digits, an offset of centuries
        return None
    return max(0.0, seconds)


def _undelivered(
    error: openai.OpenAIError, redact: Callable[[str], str], seconds: float
) -> Outcome:
    """Return the outcome of a request without a reply; it may have been charged unless never sent."""
    cause = error.__cause__ or error
    free = type(cause).__name__ in _UNSENT
    if isinstance(error, openai.APITimeoutError):
        what = (
            "timed out while connecting"
            if free
            else f"timed out: no reply within {seconds:g} s (at most llm.timeout_s)"
        )
    else:
        what = f"{type(cause).__name__.lstrip('_')}: {_shown(redact(str(cause)))}"
    return Outcome(error=what, retryable=True, free=free)


def _field(value: object, name: str) -> object:
    return cast("dict[str, object]", value).get(name) if isinstance(value, dict) else None


def _usage(value: object) -> tuple[int, int] | None:
    """Return token counts as reported, or None unless both are plausible."""
    counts = [_field(value, name) for name in ("prompt_tokens", "completion_tokens")]
    believed = [n for n in counts if type(n) is int and 0 <= n < 2**31]
    return (believed[0], believed[1]) if len(believed) == 2 else None


def _shown(text: str) -> str:
    """Return the beginning of a text on one line."""
    text = " ".join(text[: 4 * _SHOWN_CHARACTERS].split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
