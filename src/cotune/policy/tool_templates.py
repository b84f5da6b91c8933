"""A check that a policy's chat template can call tools, before anything is written."""

from transformers import PreTrainedTokenizerBase

from cotune.errors import ConfigError
from cotune.policy.codec import HFCodec
from cotune.protocols import Environment


def check_tools(
    environment: Environment, codec: HFCodec, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Find out how to parse tool calls, if the environment has tools.

    For a form that the codec does not know, TRL's table of chat templates may have a response
    template, which the tokenizer then keeps and saves.

    Args:
        codec: the codec of `tokenizer`.
        tokenizer: the policy's; gets a `response_template` if TRL has one.

    Raises:
        ConfigError: the policy's chat template cannot call tools.
    """
    if not environment.tools:
        return
    try:
        codec.check_tools(environment.tools)
    except ConfigError:
        if getattr(tokenizer, "response_template", None) is not None:
            raise
        if not _response_template_added(tokenizer):
            raise
        try:
            codec.check_tools(environment.tools)
        except ConfigError:
            tokenizer.response_template = None
            raise


def _response_template_added(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Give the tokenizer TRL's response template for its chat template; False if there is none."""
    try:
        from trl.chat_template_utils import add_response_schema

        add_response_schema(tokenizer)
    except (ImportError, ValueError):
        return False
    return True
