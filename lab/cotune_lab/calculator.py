"""The tool of `lab/suites/proof.yaml`."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_LONGEST = 200


def calculate(expression: str) -> str:
    """Works out an expression of numbers, + - * / and brackets.

    Args:
        expression: such as (12 + 30) * 4 / 7.
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"expected at most {_LONGEST} characters")
    return f"{_value(ast.parse(expression.replace(',', ''), mode='eval').body):.10g}"


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # pyright: ignore[reportReturnType]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("expected numbers, + - * / and brackets")
