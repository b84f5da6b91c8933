"""A Tinker server: every request ends in an answer or in one clear line.

The SDK's versions differ in what they return, a client or a future of one, and retry for hours in silence if a
server is gone. So requests are made in a thread, for which this one waits.
"""

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cotune.engines.tinker.settings import TinkerArguments, check_alive
from cotune.errors import ConfigError, CotuneError, EngineError
from cotune.utils.text import hide_secrets, one_line

_CONNECT_SECONDS = 18.0
_REQUEST_SECONDS = 3600.0


class Service:
    """A server that answers and has the model.

    Attributes:
        label: its address without a password.
        client, rest_client: the SDK's two clients of it.
        limit: seconds that a request may take.

    Raises:
        ConfigError: it does not answer, or has not the model.
        EngineError: it refuses the key.
    """

    def __init__(self, arguments: TinkerArguments, base_model: str) -> None:
        self.label = arguments.label
        self.base_model = base_model
        self.limit = _CONNECT_SECONDS
        self._key = arguments.key
        check_alive(arguments)
        os.environ.setdefault("TINKER_TELEMETRY", "0")  # it sends stack traces to the server
        logging.getLogger("tinker").setLevel(logging.ERROR)
        import tinker

        def connect() -> list[Any]:
            sdk: Any = tinker
            address = {"base_url": arguments.url, "api_key": self._key}
            client = sdk.ServiceClient(**address)
            if not hasattr(sdk, "RestClient"):  # the older versions
                return [(client, client.create_rest_client()), client.get_server_capabilities()]
            rest_client = sdk.RestClient(**address)
            return [(client, rest_client), rest_client.get_server_capabilities()]

        (self.client, self.rest_client), capabilities = self.call("connecting", connect)
        self.limit = _REQUEST_SECONDS
        models = [model.model_name for model in capabilities.supported_models]
        if base_model not in models:
            has = f"the Tinker server at {self.label} has no {base_model!r}; expected one of"
            raise ConfigError(
                f"training.engine_args.base_model: {has} {', '.join(map(str, models))}"
            )

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
            EngineError: the request failed or took too long; the message has its name.
        """
        answer: Future[Any] = Future()

        def send() -> None:
            try:
                answer.set_result(_await(request()))
            except BaseException as error:  # noqa: BLE001  raised in the other thread
                answer.set_exception(error)

        threading.Thread(target=send, daemon=True).start()
        try:
            error = answer.exception(self.limit)
        except TimeoutError:
            late = (
                f"the Tinker server at {self.label} did not answer in {self.limit:.0f} s ({name})"
            )
            raise EngineError(f"{late}; SkyRL 0.3.0 needs tinker 0.24.1") from None
        if error is None:
            return answer.result()
        reason = one_line(hide_secrets(str(error) or repr(error))).replace(self._key, "***")[:300]
        failure = f"the Tinker server at {self.label} failed ({name}): {reason}"
        raise EngineError(failure) from None


def _await(value: Any) -> Any:
    """Return an answer; a future's, or those of a list of futures."""
    if isinstance(value, list):
        return [_await(each) for each in value]
    return value.result() if hasattr(value, "result") else value
