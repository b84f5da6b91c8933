"""A Tinker server, as `training.engine_args` names it: every request ends in an answer or in one clear line.

The SDK's versions differ in what they return, and retry for minutes in silence if a server is gone. So requests wait
in a thread, while this one looks whether the server is there. The SDK is loaded once a server has answered.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

import httpx
from pydantic import Field, ValidationError

from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError, CotuneError, EngineError
from cotune.utils.text import hide_secrets, one_line
from cotune.utils.validation import Model, describe

HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"  # the SDK's default

ALPHA = 32  # LoRA's, on every server
_CONNECT_SECONDS = 18.0
_LOOK_SECONDS = 10.0
_MISSED_LOOKS = 3


class Prices(Model):
    """Dollars for a million tokens."""

    prefill: float = Field(ge=0)
    cached: float = Field(ge=0)
    sample: float = Field(ge=0)
    train: float = Field(ge=0)


class TinkerArguments(Model):
    """What `training.engine_args` can hold."""

    # The server's address; null is the variable TINKER_BASE_URL, or else the hosted service.
    base_url: str | None = None
    # The environment variable that holds the key; a server of one's own may need none.
    api_key_env: str = "TINKER_API_KEY"
    # The server's name of the model, if it is not policy.path.
    base_model: str | None = None
    # For a server that compiles for each shape (SkyRL on jax): send multiples of this many rows, and ask for
    # `limits.turn_tokens` in every turn.
    row_multiple: int = Field(default=1, ge=1)
    price_per_million: Prices | None = None

    @property
    def url(self) -> str:
        return (self.base_url or os.environ.get("TINKER_BASE_URL") or HOSTED).rstrip("/")

    @property
    def key(self) -> str:
        """Return the key; ConfigError if the hosted service needs one and there is none."""
        key = os.environ.get(self.api_key_env)
        if not key and self.url == HOSTED:
            raise ConfigError(
                f"training.engine_args.api_key_env: the environment variable {self.api_key_env} is not set; put the "
                "service's key into it, or name a server by base_url"
            )
        return key or "tml-none"  # the SDK wants one, in this form


def read_arguments(config: RunConfig) -> TinkerArguments:
    """Return `training.engine_args`; ConfigError if one is invalid, or the API lacks what the run file asks for."""
    training = config.training
    lora = config.policy.lora
    if lora is None:
        raise ConfigError("policy.lora: missing; a Tinker server trains an adapter: set {rank: 16}")
    server = "remove it: the server decides"
    not_here = "remove it, or set training.engine: trl"
    problems = {
        f"policy.lora.alpha {lora.alpha}": lora.alpha != ALPHA and f"set {ALPHA}, as servers have",
        f"policy.lora.dropout {lora.dropout}": lora.dropout > 0 and "set 0",
        "policy.lora.target_modules": lora.target_modules != "all-linear" and server,
        f"policy.dtype {config.policy.dtype}": config.policy.dtype != "auto" and server,
        f"training.precision {training.precision}": training.precision != "auto" and server,
        f"training.temperature {training.temperature}": training.temperature != 1
        and "set 1: servers report log-probabilities of temperature 1, whatever they sample at",
        f"training.kl {training.kl}": training.kl > 0 and "set 0: the API has no reference policy",
        "training.frozen": training.frozen and not_here,
        # A last stage needs a teacher's distributions.
        "strategy.distil_steps": getattr(config.strategy, "distil_steps", 0) > 0 and not_here,
        "logging.report_to": bool(config.logging.report_to) and not_here,
    }
    for field, fix in problems.items():
        if fix:
            raise ConfigError(f"{field} is not possible with training.engine tinker; {fix}")
    try:
        return TinkerArguments.model_validate(training.engine_args)
    except ValidationError as error:
        raise ConfigError(f"training.engine_args.{describe(error, TinkerArguments)}") from None


class Service:
    """A server that answers, takes the key, and has the model; else a ConfigError or EngineError.

    Attributes:
        label: names it in messages, by its address without a password.
        client, rest_client: the SDK's two clients of it.
        limit: seconds that a request may take; None is as long as the server is there.
    """

    def __init__(self, arguments: TinkerArguments, base_model: str) -> None:
        self.label = f"the Tinker server at {hide_secrets(arguments.url)}"
        self.base_model = base_model
        self.limit: float | None = _CONNECT_SECONDS
        self._address = {"base_url": arguments.url, "api_key": arguments.key}
        self._key_name = arguments.api_key_env
        self._looking = threading.Lock()
        self._looked = -math.inf
        self._silence = ""
        if silence := self._find_silence():
            raise ConfigError(
                f"training.engine_args.base_url: {self.label} does not answer ({silence}); start it, or correct it"
            )
        os.environ.setdefault("TINKER_TELEMETRY", "0")  # it sends stack traces to the server
        logging.getLogger("tinker").setLevel(logging.ERROR)
        import tinker

        def connect() -> list[Any]:
            sdk: Any = tinker
            client = sdk.ServiceClient(**self._address)
            if not hasattr(sdk, "RestClient"):  # the older versions
                return [(client, client.create_rest_client()), client.get_server_capabilities()]
            rest_client = sdk.RestClient(**self._address)
            return [(client, rest_client), rest_client.get_server_capabilities()]

        (self.client, self.rest_client), capabilities = self.call("connecting", connect)
        self.limit = None
        models = [str(model.model_name) for model in capabilities.supported_models]
        if base_model not in models:
            raise ConfigError(
                f"training.engine_args.base_model: {self.label} has no {base_model!r}; expected one of {', '.join(models)}"
            )

    def _find_silence(self) -> str:
        """Return why the server does not answer, or ""; calls that wait at the same time share a look."""
        with self._looking:
            if time.monotonic() - self._looked > _LOOK_SECONDS / 2:
                try:
                    health = f"{self._address['base_url']}/api/v1/healthz"
                    httpx.get(health, timeout=_LOOK_SECONDS).raise_for_status()
                    self._silence = ""
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    self._silence = one_line(hide_secrets(str(error) or repr(error)))[:200]
                self._looked = time.monotonic()
            return self._silence

    def delete(self, path: str) -> None:
        """Delete what was saved, if the server can: the hosted service bills its storage."""
        delete = self.rest_client.delete_checkpoint_from_tinker_path
        with suppress(CotuneError):
            self.call("a deletion", lambda: delete(path))

    def call(self, name: str, request: Callable[[], Any]) -> Any:
        """Return the answer of a request, which returns it, a future of it, or a list of those.

        The error of one that failed or took too long, or of a server that is gone, has the request's `name`.
        """
        answer: Future[Any] = Future()

        def send() -> None:
            try:
                answer.set_result(_await(request()))
            except BaseException as error:  # noqa: BLE001  raised in the other thread
                answer.set_exception(error)

        threading.Thread(target=send, daemon=True).start()
        started = time.monotonic()
        missed = 0
        while not wait([answer], _LOOK_SECONDS).done:
            if self.limit is not None and time.monotonic() - started > self.limit:
                raise EngineError(
                    f"{self.label} did not answer in {self.limit:.0f} s ({name}); SkyRL 0.3.0 needs tinker 0.24.1"
                )
            missed = missed + 1 if self._find_silence() else 0
            if missed == _MISSED_LOOKS:
                raise EngineError(f"{self.label} no longer answers ({name})")
        error = answer.exception()
        if error is None:
            return answer.result()
        reason = one_line(hide_secrets(str(error) or repr(error)))
        reason = reason.replace(self._address["api_key"], "***")[:300]
        if getattr(error, "status_code", None) in (401, 403) or "api_key must" in reason:
            raise ConfigError(
                f"training.engine_args.api_key_env: {self.label} refuses the key in the environment variable "
                f"{self._key_name} ({reason}); correct it"
            ) from None
        raise EngineError(f"{self.label} failed ({name}): {reason}") from None


def _await(value: Any) -> Any:
    """Return an answer; a future's, or those of a list of futures."""
    if isinstance(value, list):
        return [_await(each) for each in value]
    return value.result() if hasattr(value, "result") else value
