"""A Hugging Face tokenizer as a codec."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from cotune.contracts import ConfigError


class HFCodec:
    """Renders by the tokenizer's chat template; encodes observations without special tokens.

    Raises:
        ConfigError: the tokenizer has no chat template, no EOS or no padding token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        missing = [
            name
            for name, value in (
                ("chat_template", tokenizer.chat_template),
                ("eos_token", tokenizer.eos_token_id),
                ("pad_token", tokenizer.pad_token_id),
            )
            if value is None
        ]
        if missing:
            raise ConfigError(
                f"policy: its tokenizer has no {' and no '.join(missing)}; "
                "expected an instruction-tuned model's tokenizer"
            )
        self._tokenizer = tokenizer

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """The tokenizer's special tokens as text: whoever writes them could forge a turn."""
        added = self._tokenizer.added_tokens_decoder.values()
        return tuple(sorted({str(token) for token in added if token.special}))

    def count(self, text: str) -> int:
        """Tokens of a text, without those a template adds."""
        return len(self.encode(text))

    @property
    def eos_id(self) -> int:
        return int(self._tokenizer.eos_token_id)  # pyright: ignore[reportArgumentType]

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        rendered = self._tokenizer.apply_chat_template(
            [dict(m) for m in messages],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        return [int(token) for token in rendered]  # pyright: ignore[reportArgumentType]

    def encode(self, text: str) -> list[int]:
        # Control tokens spelt out in a passage stay text: they must not end the policy's turn.
        encoded = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return list(encoded["input_ids"])  # pyright: ignore[reportArgumentType]

    def decode(self, ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return str(text)
