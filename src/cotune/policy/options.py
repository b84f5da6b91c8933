"""The `policy` section of a run file: the model to train, and LoRA."""

from typing import Literal

from pydantic import Field, JsonValue

from cotune.utils.validation import Model


class LoraOptions(Model):
    """Low-rank adapters (arXiv 2106.09685): what is trained in place of the weights. Needs peft."""

    rank: int = Field(default=16, ge=1)
    """The rank of the two matrices that are added to a layer, r."""
    alpha: int = Field(default=32, ge=1)
    """Their product is scaled by alpha / rank."""
    dropout: float = Field(default=0, ge=0, lt=1)
    """Dropout on an adapter's input in training; rollouts are sampled without it."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Layers that get an adapter, by name; all-linear: all but the head."""


class PolicyConfig(Model):
    """The model that is trained."""

    path: str = "bundled:ladder"
    """A Hugging Face name or folder; "bundled:ladder" is the small policy of the world ladder."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The type of the loaded weights; "auto" is the checkpoint's."""
    chat_template: str | None = None
    """A file of a Jinja chat template, or "plain" for a base model without one (the messages' texts,
    one after the other); null is the tokenizer's own."""
    template_args: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """Passed to the chat template: {enable_thinking: false} for Qwen3, say."""
    lora: LoraOptions | None = None
    """Trains adapters on frozen weights; null trains the weights."""
