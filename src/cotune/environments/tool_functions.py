"""A typed Python function as a tool: its JSON schema, and arguments as its types have them."""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from cotune.environments.tool_runner import Worker
from cotune.errors import ConfigError

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_JSON: tuple[type[Any], ...] = (dict, list, tuple, int, float, type(None))


class BadArguments(ValueError):
    """A call's arguments do not fit its tool; the text says which and why."""


@dataclass(frozen=True)
class Tool:
    """A function that a policy may call.

    Attributes:
        name: what calls name it.
        schema: its JSON schema, as chat templates take it: {"type": "function", "function": …}.
        function: sync or async.
        seconds: after which a call counts as failed.
        signature: the function's.
        types: what each parameter's value is checked and converted by.
        worker: the thread it is called in; None for a new one each time.
    """

    name: str
    schema: Mapping[str, Any]
    function: Callable[..., Any]
    seconds: float
    signature: inspect.Signature
    types: Mapping[str, TypeAdapter[Any]]
    worker: Worker | None = None

    def bind(self, arguments: Mapping[str, Any]) -> inspect.BoundArguments:
        """A call's arguments by the signature, converted where the type allows ("7" for 7).

        Raises:
            BadArguments: one is missing, unknown or of another type.
        """
        for name in arguments:
            if name not in self.types:
                takes = ", ".join(self.types) or "none"
                raise BadArguments(f"there is no argument {name!r}; it takes {takes}")
        for name, parameter in self.signature.parameters.items():
            if name not in arguments and parameter.default is inspect.Parameter.empty:
                raise BadArguments(f"the argument {name!r} is missing")
        bound = self.signature.bind_partial()
        for name in self.signature.parameters:
            if name in arguments:
                bound.arguments[name] = self._converted(name, arguments[name])
        return bound

    def _converted(self, name: str, value: Any) -> Any:
        try:
            return self.types[name].validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise BadArguments(
                f"the argument {name!r} is {json.dumps(value, default=str)[:80]}: {first['msg']}"
            ) from None


def tool_of(function: Any, seconds: float, owner: str = "") -> Tool:
    """A function or bound method with type hints and a Google-style docstring, as a tool.

    Args:
        function: sync or async.
        seconds: its time-out.
        owner: the class whose method it is, for errors.

    Raises:
        ConfigError: names tool, parameter and what to add.
    """
    name = getattr(function, "__name__", "")
    if not callable(function) or not name.isidentifier():
        raise ConfigError(
            f"tools: {function!r} is no function with a name; expected a typed function with a "
            "docstring: write a def for it"
        )
    where = f"tools: {owner}{'.' if owner else ''}{name}"
    if not seconds > 0:
        raise ConfigError(f"{where}: seconds is {seconds}; expected more than 0")
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.kind in _VARIADIC:
            raise ConfigError(
                f"{where} takes {str(parameter).split(':')[0]}; expected named parameters: name "
                "each with its type"
            )
        if parameter.annotation is inspect.Parameter.empty:
            raise ConfigError(
                f"{where}: its parameter {parameter.name} has no type; write it as "
                f"{parameter.name}: str, say"
            )
    schema = _schema(function, where)
    hints = _hints(function, where)
    types = {p: _adapter(hints[p], where, p) for p in signature.parameters}
    return Tool(name, schema, function, float(seconds), signature, types)


def text_of(result: Any) -> str:
    """A result as the policy reads it: a text as it is, plain data as JSON, all else by str()."""
    if isinstance(result, _JSON):
        try:
            return json.dumps(result, ensure_ascii=False, default=str)
        except (TypeError, ValueError):  # keys that are no texts, a list that holds itself
            pass
    return str(result)


def _schema(function: Callable[..., Any], where: str) -> dict[str, Any]:
    # Loads transformers, which the library does without where there are no tools.
    from transformers.utils import chat_template_utils

    utils = cast(Any, chat_template_utils)
    doc = (inspect.getdoc(function) or "").strip()
    if not doc:
        raise ConfigError(
            f"{where} has no docstring; say in one what it does, and in an Args: section what each "
            "parameter is"
        )
    described: dict[str, str] = utils.parse_google_format_docstring(doc)[1] or {}
    for parameter in inspect.signature(function).parameters:
        if parameter not in described:
            raise ConfigError(
                f"{where}: its docstring does not describe {parameter}; add a line "
                f'"{parameter}: what it is" under "Args:"'
            )
    try:
        return dict(utils.get_json_schema(function))
    except (
        utils.TypeHintParsingException,
        utils.DocstringParsingException,
        ValueError,
        NameError,
    ) as error:
        reason = " ".join(" ".join(map(str, error.args)).split())[:200]
        raise ConfigError(
            f"{where}: no schema can be made of its types ({reason}); use str, int, float, bool, "
            "Literal, Enum, and list, dict or unions of them"
        ) from error


def _hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(
            f"{where}: its types cannot be read ({error}); import what they name"
        ) from error


def _adapter(hint: Any, where: str, parameter: str) -> TypeAdapter[Any]:
    try:
        # A model writes 7 where a text is wanted, too.
        return TypeAdapter(hint, config=ConfigDict(coerce_numbers_to_str=True))
    except PydanticSchemaGenerationError as error:
        raise ConfigError(
            f"{where}: the type of its parameter {parameter} is not supported; use str, int, float, "
            "bool, Literal, Enum, and list, dict or unions of them"
        ) from error
