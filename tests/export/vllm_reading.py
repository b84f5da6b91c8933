"""The checks that vLLM makes on a chat template before rendering (vllm/renderers/hf.py), in short.

vLLM cannot be installed everywhere, and these rules decide what reaches a template: whether a
message's content comes as a text or as a list of parts, and which arguments of a request are passed.
"""

from collections.abc import Iterator

import jinja2.meta
from jinja2 import nodes
from transformers.utils import chat_template_utils


def parsed(template: str) -> nodes.Template:
    compiled = chat_template_utils._compile_jinja_template(template)
    return compiled.environment.parse(template)


def accepted_arguments(template: str) -> set[str]:
    """Names in a request's `chat_template_kwargs` that are not dropped."""
    return jinja2.meta.find_undeclared_variables(parsed(template))


def content_format(template: str) -> str:
    """ "openai" where the template loops over a message's content, else "string".

    Raises:
        AssertionError: on what vLLM takes for an error of the template.
    """
    tree = parsed(template)
    messages = [item.name for loop, item in loops(tree, names(tree, "messages"), None)]
    return "openai" if list(loops(tree, messages, "content")) else "string"


def names(tree: nodes.Template, first: str) -> list[str]:
    """Variables that stand for the same value or a part of it."""
    found, waiting = [first], [first]
    while waiting:
        name = waiting.pop(0)
        for assignment in tree.find_all(nodes.Assign):
            if stands_for(assignment.node, name, None):
                assert isinstance(assignment.target, nodes.Name)
                found.append(assignment.target.name)
                if assignment.target.name != name:
                    waiting.append(assignment.target.name)
    return found


def loops(
    tree: nodes.Template, over: list[str], key: str | None
) -> Iterator[tuple[nodes.For, nodes.Name]]:
    for loop in tree.find_all(nodes.For):
        if any(stands_for(loop.iter, name, key) for name in over):
            assert isinstance(loop.target, nodes.Name)
            yield loop, loop.target


def stands_for(node: nodes.Node, name: str, key: str | None) -> bool:
    if isinstance(node, nodes.Filter | nodes.Test):
        return node.node is not None and stands_for(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return stands_for(node.node, name, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        constant = isinstance(node.arg, nodes.Const) and node.arg.value == key
        return constant and stands_for(node.node, name, None)
    return (
        isinstance(node, nodes.Getattr) and node.attr == key and stands_for(node.node, name, None)
    )
