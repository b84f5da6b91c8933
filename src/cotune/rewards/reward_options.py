"""Options of reward functions: the `rewards` section of a run file."""

from cotune.utils.validation import TextOrFields


class RewardConfig(TextOrFields):
    """A reward function and its weight."""

    function: str
    """`package.module:name` or `file.py:name` of a function with TRL's signature, or a built-in one:
    exact_match, f1_squad, f1_hotpot, boxed."""
    weight: float = 1.0
    """The weight of its values in the sum."""
    messages: bool | None = None
    """Pass prompts and completions as chat messages (true) or as texts (false); null follows the form
    of the data's questions, and passes messages if there are tools."""
