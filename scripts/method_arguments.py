"""Write `engines/trl/method_arguments.py`: the keyword arguments of INSPO, P2O and so on, for type checkers.

    python scripts/method_arguments.py

A method of the library takes the fields of its options as keyword arguments. Type checkers and
editors learn them from these TypedDicts, which are generated from the options, so that no field is
written twice. `tests/engines/trl/test_library_api.py` fails if the file is out of date.
"""

import json
import types
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cotune.llm.bank import BankOptions
from cotune.llm.client import OpenAIOptions
from cotune.methods.composed import ComposedOptions
from cotune.methods.fst.fst import FstOptions
from cotune.methods.gepa.gepa import GepaOptions
from cotune.methods.inspo.inspo import InspoOptions
from cotune.methods.p2o.hints import HintOptions
from cotune.methods.p2o.p2o import P2OOptions
from cotune.methods.static import StaticOptions
from cotune.protocols import LLM, Environment
from cotune.types import Distillation, FilteredDistillation, Limits

FILE = Path(__file__).parents[1] / "src" / "cotune" / "engines" / "trl" / "method_arguments.py"
METHODS: dict[str, type] = {
    "Static": StaticOptions,
    "Inspo": InspoOptions,
    "Gepa": GepaOptions,
    "Fst": FstOptions,
    "P2O": P2OOptions,
    "Composed": ComposedOptions,
}
_NAMED = (
    *METHODS.values(), HintOptions, Distillation, FilteredDistillation, BankOptions, OpenAIOptions, Limits, LLM, Environment,
)  # fmt: skip
_HEAD = '''# fmt: off
"""The keyword arguments of the library's methods; written by scripts/method_arguments.py."""

from pathlib import Path
from typing import Literal, Required, TypedDict

{imports}


class TrainerArguments(TypedDict, total=False):
    """The arguments of every method; see `cotune.INSPO`."""

    environment: Required[Environment]
    llm: LLM | OpenAIOptions | BankOptions | None
    limits: Limits | None
    instruction: str | None
    seed: int
    folder: str | Path | None
    rewards: GivenRewards
'''
_CLASS = '''

class {name}Arguments(TrainerArguments, total=False):
    """The arguments of every method, and either `options` or fields of `{options}`."""

    options: {options} | None
{fields}'''


def type_text(annotation: Any) -> str:
    """Return a type as source text."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if annotation is type(None):
        return "None"
    if origin is Literal:
        return f"Literal[{', '.join(map(json.dumps, inside))}]"
    if origin in (Union, types.UnionType):
        return " | ".join(type_text(part) for part in inside)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(type_text, inside))}]"
    return annotation.__name__


def module() -> str:
    """Return the text of the file."""
    named = {"cotune.rewards.functions": ["GivenRewards"]}
    for found in _NAMED:
        named.setdefault(found.__module__, []).append(found.__name__)
    imports = [
        f"from {place} import {', '.join(sorted(names, key=lambda name: (not name.isupper(), name)))}"
        for place, names in sorted(named.items())
    ]
    text = _HEAD.format(imports="\n".join(imports))
    for name, options in METHODS.items():
        hints = get_type_hints(options)
        lines = [
            f"    {field.name}: {type_text(hints[field.name])}\n"
            for field in fields(options)
            if field.name != "kind"
        ]
        text += _CLASS.format(name=name, options=options.__name__, fields="".join(lines))
    return text


if __name__ == "__main__":
    FILE.write_text(module(), encoding="utf-8")
