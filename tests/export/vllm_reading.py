"""The checks that vLLM makes on a chat template before rendering (vllm/renderers/hf.py), in short.

vLLM cannot be installed everywhere, and these rules decide what reaches a template: whether a
message's content comes as a text or as a list of parts, and which arguments of a request are passed.
"""

import jinja2.meta
from jinja2 import nodes
from transformers.utils import chat_template_utils


def parse_template(template: str) -> nodes.Template:
    compiled = chat_template_utils._compile_jinja_template(template)
    return compiled.environment.parse(template)


def accepted_arguments(template: str) -> set[str]:
    """Names in a request's `chat_template_kwargs` that are not dropped."""
    return jinja2.meta.find_undeclared_variables(parse_template(template))


def content_format(template: str) -> str:
    """ "openai" where the template loops over the content of anything, else "string".

    vLLM looks for the content of messages alone.
    """
    for loop in parse_template(template).find_all(nodes.For):
        parts = [*loop.iter.find_all((nodes.Getattr, nodes.Getitem)), loop.iter]
        if any(_is_content(part) for part in parts):
            return "openai"
    return "string"


def _is_content(node: nodes.Node) -> bool:
    """Whether it is `….content` or `…["content"]`."""
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return (
        isinstance(node, nodes.Getitem)
        and isinstance(node.arg, nodes.Const)
        and node.arg.value == "content"
    )
