"""A Tinker server: every request ends in an answer or in one clear line.

The SDK's versions differ in what they return, a client or a future of one, and retry for minutes in silence if a
server is gone. So requests wait in a thread, while this one looks whether the server is there.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

import httpx

from cotune.engines.tinker.settings import TinkerArguments
from cotune.errors import ConfigError, CotuneError, EngineError
from cotune.utils.text import hide_secrets, one_line

_CONNECT_SECONDS = 18.0
_LOOK_SECONDS = 10.0
_MISSED_LOOKS = 3


class Service:
    """A server that answers, takes the key, and has the model.

    Attributes:
        label: its address without a password.
        client, rest_client: the SDK's two clients of it.
        limit: seconds that a request may take; None is as long as the server is there.

    Raises:
        ConfigError: it does not answer, refuses the key, or has not the model.
    """

    def __init__(self, arguments: TinkerArguments, base_model: str) -> None:
        self.url = arguments.url
        self.label = hide_secrets(self.url)
        self.base_model = base_model
        self.limit: float | None = _CONNECT_SECONDS
        self._looking = threading.Lock()
        self._looked = -math.inf
        self._silence = ""
        self._key = arguments.key
        self._key_name = arguments.api_key_env
        check_alive(self.url)
        os.environ.setdefault("TINKER_TELEMETRY", "0")  # it sends stack traces to the server
        logging.getLogger("tinker").setLevel(logging.ERROR)
        import tinker

        def connect() -> list[Any]:
            sdk: Any = tinker
            address = {"base_url": self.url, "api_key": self._key}
            client = sdk.ServiceClient(**address)
            if not hasattr(sdk, "RestClient"):  # the older versions
                return [(client, client.create_rest_client()), client.get_server_capabilities()]
            rest_client = sdk.RestClient(**address)
            return [(client, rest_client), rest_client.get_server_capabilities()]

        (self.client, self.rest_client), capabilities = self.call("connecting", connect)
        self.limit = None
        models = [model.model_name for model in capabilities.supported_models]
        if base_model not in models:
            has = f"the Tinker server at {self.label} has no {base_model!r}; expected one of"
            raise ConfigError(
                f"training.engine_args.base_model: {has} {', '.join(map(str, models))}"
            )

    def _find_silence(self) -> str:
        """Return why the server does not answer, or ""; calls that wait at the same time share a look."""
        with self._looking:
            if time.monotonic() - self._looked > _LOOK_SECONDS / 2:
                self._silence = _find_silence(self.url)
                self._looked = time.monotonic()
            return self._silence

    def delete(self, path: str) -> None:
        """Delete what was saved, if the server can: the hosted service bills its storage."""
        delete = self.rest_client.delete_checkpoint_from_tinker_path
        try:
            self.call("a deletion", lambda: delete(path))
        except CotuneError as error:
            logging.getLogger("cotune").debug("%s stays on the server: %s", path, error)

    def call(self, name: str, request: Callable[[], Any]) -> Any:
        """Return the answer of a request, which returns it, a future of it, or a list of those.

        Raises:
            ConfigError: the server refuses the key.
            EngineError: the request failed or took too long, or the server is gone; the message has its name.
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
                late = f"the Tinker server at {self.label} did not answer in {self.limit:.0f} s ({name})"
                raise EngineError(f"{late}; SkyRL 0.3.0 needs tinker 0.24.1")
            missed = missed + 1 if self._find_silence() else 0
            if missed == _MISSED_LOOKS:
                raise EngineError(f"the Tinker server at {self.label} no longer answers ({name})")
        error = answer.exception()
        if error is None:
            return answer.result()
        reason = one_line(hide_secrets(str(error) or repr(error))).replace(self._key, "***")[:300]
        if getattr(error, "status_code", None) in (401, 403) or "api_key must" in reason:
            refusal = (
                f"the Tinker server at {self.label} refuses the key in the environment variable"
            )
            text = f"training.engine_args.api_key_env: {refusal} {self._key_name} ({reason}); correct it"
            raise ConfigError(text) from None
        raise EngineError(f"the Tinker server at {self.label} failed ({name}): {reason}") from None


def check_alive(url: str) -> None:
    """Raise ConfigError unless a server answers."""
    if problem := _find_silence(url):
        silence = f"no Tinker server answers at {hide_secrets(url)} ({problem})"
        raise ConfigError(f"training.engine_args.base_url: {silence}; start it, or correct it")


def _find_silence(url: str) -> str:
    """Return why a server does not answer; "" if it does."""
    try:
        httpx.get(f"{url}/api/v1/healthz", timeout=_LOOK_SECONDS).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return one_line(hide_secrets(str(error) or repr(error)))[:200]
    return ""


def _await(value: Any) -> Any:
    """Return an answer; a future's, or those of a list of futures."""
    if isinstance(value, list):
        return [_await(each) for each in value]
    return value.result() if hasattr(value, "result") else value
