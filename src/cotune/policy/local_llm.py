"""An optimizer LLM in the run's own process: the policy as it was before training, or another model.

The frozen initial policy as its own reflector is P²O's Self-Ref (arXiv 2603.21877, Sec. 4): no endpoint and
no key.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cotune.errors import ConfigError, LLMError
from cotune.policy.options import PolicyConfig
from cotune.policy.precision import Precision
from cotune.types import Completion, SampleRequest, Sampling
from cotune.utils.option_checks import check_range

if TYPE_CHECKING:
    from cotune.policy.codec import HFCodec
    from cotune.protocols import Sampler


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """`llm:` of a run file, for a model in this process; `llm: local` is the policy before training.

    Attributes:
        kind: "local".
        path: a model as in policy.path; None is the run's own policy, from its initial weights.
        template_args: passed to the chat template; None is policy.template_args if path is None.
        temperature: softmax temperature of the proposals; P²O's is 0.6.
        max_tokens: the most tokens of one reply; P²O's number.
        optional: whether a run continues if all proposals of two phases in a row fail.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["local"] = "local"
    path: str | None = None
    template_args: dict[str, Any] | None = field(default=None, hash=False)
    temperature: float = 0.6
    max_tokens: int = 2048
    optional: bool = False

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, 0, 10)
        check_range("max_tokens", self.max_tokens, 1, 2**20)

    def describe(self) -> str:
        """Return the model's name."""
        return "the policy before training" if self.path is None else f"{self.path} in this process"

    @property
    def public_name(self) -> str:
        """Return the model's name, without the folders above it."""
        return "the policy before training" if self.path is None else self.path.split("/")[-1]

    def as_policy(self, policy: PolicyConfig) -> PolicyConfig:
        """Return which model is loaded, and with which chat template.

        Args:
            policy: the run's.
        """
        named = policy if self.path is None else PolicyConfig(path=self.path)
        args = named.template_args if self.template_args is None else self.template_args
        return named.model_copy(update={"template_args": args, "lora": None})


def as_llm(text: str) -> str:
    """Return a message about `policy` as one about `llm`; file names in it stay."""
    return re.sub(r"(?<!\S)policy(?=[.:])", "llm", text)


@contextlib.contextmanager
def naming_llm() -> Iterator[None]:
    """Let a ConfigError about policy.path name llm.path, the field to correct."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(as_llm(str(error))) from error


class LocalLLM:
    """Sample replies from a model that is loaded when the first one is asked for.

    A reply depends only on the seed and the prompt, so an interrupted phase asks again and gets the same.

    Args:
        options: `llm:` of the run file.
        model: which model; see `LocalOptions.as_policy`.
        seed: seed of the draws.
        precision: `training.precision` of the run: the model computes in the type that the policy would.
    """

    def __init__(
        self, options: LocalOptions, model: PolicyConfig, seed: int, precision: Precision = "auto"
    ) -> None:
        self._options, self._model, self._seed = options, model, seed
        self._precision: Precision = precision
        self.optional = options.optional

    @cached_property
    def _loaded(self) -> "tuple[HFCodec, Sampler, int | None]":
        import torch

        from cotune.policy.codec import HFCodec, use_template
        from cotune.policy.local_policy import load
        from cotune.policy.policy_files import policy_path
        from cotune.policy.precision import casting, weights_dtype
        from cotune.policy.sampling import policy_sampler

        naming = contextlib.nullcontext() if self._options.path is None else naming_llm()
        # Loading may draw numbers, and a resumed run loads at another time.
        with naming, torch.random.fork_rng():
            dtype = weights_dtype(self._model, self._precision)
            model, tokenizer = load(policy_path(self._model.path), dtype)
            use_template(tokenizer, self._model.chat_template)
            codec = HFCodec(tokenizer, self._model.template_args)
        model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
        casts = casting(self._model, self._precision)
        sampler = policy_sampler(lambda: contextlib.nullcontext(model), codec, tokenizer, casts)
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        return codec, sampler, context

    def complete(self, prompt: str) -> Completion:
        """Return the model's reply to one user message.

        Raises:
            LLMError: the prompt leaves no room for a reply in the model's context.
            ConfigError: the model cannot be loaded.
        """
        codec, sampler, context = self._loaded
        ids = tuple(codec.render([{"role": "user", "content": prompt}]))
        room = self._options.max_tokens
        if context is not None:
            room = min(room, context - len(ids))
        if room < 1:
            raise LLMError(
                f"the prompt has {len(ids):,} tokens, and {self._model.path} reads {context:,} with its reply"
            )
        digest = hashlib.sha256(f"{self._seed}/{prompt}".encode("utf-8", "surrogatepass")).digest()
        drawn = Sampling(self._options.temperature, (), int.from_bytes(digest[:8], "big") >> 1)
        session = sampler.open(drawn)
        try:
            (sample,) = session.generate([SampleRequest(0, ids, room)])
        finally:
            session.close()
        ended = sample.ids[-1:] == (codec.eos_id,)
        text = codec.decode(sample.ids[:-1] if ended else sample.ids)
        return Completion(text.strip(), len(ids), len(sample.ids), not ended)
