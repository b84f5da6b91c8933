"""Checks of how a policy's chat template ends turns and calls tools, before anything is written."""

from transformers import PreTrainedTokenizerBase

from cotune.data.splits import warn
from cotune.errors import ConfigError
from cotune.policy.codec import HFCodec
from cotune.protocols import Environment


def check_turns(
    environment: Environment, codec: HFCodec, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Find out how to parse tool calls, if the environment has tools; warn if turns may not end.

    A response template that TRL has for the chat template is tried first, as TRL does; the tokenizer then
    keeps and saves it.

    Args:
        codec: the codec of `tokenizer`.
        tokenizer: the policy's; gets a `response_template` if TRL has one.

    Raises:
        ConfigError: the policy's chat template cannot call tools.
    """
    if not environment.tools:
        # An error only with tools: a base model may end its text by the EOS under any template.
        if (end := codec.foreign_end()) and not environment.stop:
            warn(
                f"policy: its chat template ends a turn by {end!r}, but its tokenizer's eos_token is "
                f"{tokenizer.eos_token!r}, at which rollouts end; if it was trained on that template, save "
                f"its tokenizer with eos_token {end!r}, or every rollout goes on to limits.turn_tokens"
            )
        return
    has_template = getattr(tokenizer, "response_template", None) is not None
    if not has_template and _response_template_added(tokenizer):
        try:
            codec.check_tools(environment.tools)
            return
        except ConfigError:
            tokenizer.response_template = None
    codec.check_tools(environment.tools)


def _response_template_added(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Give the tokenizer TRL's response template for its chat template; False if there is none."""
    try:
        from trl.chat_template_utils import add_response_schema

        add_response_schema(tokenizer)
    except (ImportError, ValueError):
        return False
    return True
