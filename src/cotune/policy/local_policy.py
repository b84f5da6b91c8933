"""A saved policy loaded into this process, for evaluation outside a run."""

import contextlib
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)

from cotune.errors import ConfigError
from cotune.llm.client import NoLLM
from cotune.methods.static import StaticStrategy
from cotune.policy.adapters import adapter_base, merged
from cotune.policy.chat_template import own_templates
from cotune.policy.codec import HFCodec, check_turns, use_template
from cotune.policy.policy_files import PolicyConfig, is_adapter, only_local, policy_path
from cotune.policy.sampling import Casts, policy_sampler
from cotune.protocols import Environment, Rewards
from cotune.rollout.coordinator import Coordinator, RolloutSettings
from cotune.run.record import Record
from cotune.utils.packages import need
from cotune.utils.text import hide_secrets, one_line


def load(
    path: str | Path, dtype: str = "auto", *, base: str | Path | None = None, merge: bool = False
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Load model and tokenizer; a missing padding token becomes the EOS.

    A chat template that carries an instruction is replaced by the model's own.

    Args:
        path: a Hugging Face name or folder; may be an adapter's folder. One without a tokenizer gets the base's.
        dtype: type of the weights; "auto" is the checkpoint's (for an adapter, the base's).
        base: the model to load an adapter on; None is the base that it names.
        merge: merge an adapter into the weights; otherwise the model is a `PeftModel`.

    Raises:
        ConfigError: a part cannot be loaded.
    """
    if not is_adapter(path):
        return load_model(path, dtype), load_tokenizer(path)
    need("peft", f"policy {str(path)!r}")
    from peft import PeftModel

    base = base or adapter_base(path)
    has_tokenizer = (Path(path) / "tokenizer_config.json").is_file()  # peft itself saves none
    tokenizer = load_tokenizer(path if has_tokenizer else base)
    model = load_model(base, dtype, f", the base of {str(path)!r}")
    with _loading(path, f", an adapter of {str(base)!r}"):
        model = PeftModel.from_pretrained(model, str(path))
    return merged(model) if merge else model, tokenizer


def load_model(path: str | Path, dtype: str = "auto", of: str = "") -> Any:
    """Load a model that is no adapter, whole; `of` is added to its name in error messages.

    Raises:
        ConfigError: it cannot be loaded, or its files lack weights, which transformers would draw at random.
    """
    with _loading(path, of):
        model, report = cast(Any, AutoModelForCausalLM).from_pretrained(
            path,
            dtype=dtype,
            local_files_only=only_local(path),
            trust_remote_code=False,  # None asks on the terminal
            output_loading_info=True,
        )
    if missing := sorted(report["missing_keys"]):
        raise ConfigError(
            f"policy.path: {str(path)!r}{of} lacks {len(missing)} of the weights that its config.json describes, "
            f"such as {missing[0]}, which would be random; complete the folder, or correct its config.json"
        )
    return model


def load_tokenizer(path: str | Path, **loading: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer as `load` does; `loading` are further arguments of from_pretrained, such as `revision`."""
    arguments: dict[str, Any] = {"trust_remote_code": False, **loading}
    with _loading(path):
        tokenizer = AutoTokenizer.from_pretrained(
            path, local_files_only=only_local(path), **arguments
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.chat_template = own_templates(tokenizer.chat_template)
    return tokenizer


def load_architecture(path: str, **loading: Any) -> PretrainedConfig:
    """Load a policy's config.json, or that of an adapter's base; see `load_tokenizer`."""
    path = adapter_base(path) if is_adapter(path) else path
    arguments: dict[str, Any] = {"trust_remote_code": False, **loading}
    with _loading(path, " (its config.json)"):
        return AutoConfig.from_pretrained(path, local_files_only=only_local(path), **arguments)


def context_length(config: PretrainedConfig) -> int | None:
    """Return a policy's context length in tokens; None if its config.json has none."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def load_codec(options: PolicyConfig) -> HFCodec:
    """Load the codec of a run file's policy."""
    tokenizer = load_tokenizer(policy_path(options.path))
    use_template(tokenizer, options.chat_template)
    return HFCodec(tokenizer, options.template_args)


@contextlib.contextmanager
def _loading(path: str | Path, of: str = "") -> Generator[None]:
    """Turn whatever transformers raises for strange files into one line."""
    name = hide_secrets(str(path), guess="/" not in str(path))
    try:
        yield
    except Exception as error:
        # Its first sentence; the hub's are followed by paragraphs of advice.
        reason = one_line(str(error)).split(". ")[0].rstrip(".") or type(error).__name__
        reason = reason.replace(str(path), name)[:300]
        raise ConfigError(
            f"policy.path: cannot load {name!r}{of}: {reason}; name a folder that holds a model, "
            "or a model of the hub that is cached or within reach"
        ) from error


def local_coordinator(
    folder: str | Path,
    environment: Environment,
    settings: RolloutSettings,
    *,
    dtype: str = "auto",
    base: str | Path | None = None,
    template_args: Mapping[str, Any] | None = None,
    chat_template: str | None = None,
    rewards: Rewards | None = None,
    casts: Casts = contextlib.nullcontext,
) -> Coordinator:
    """Return a coordinator that rolls out a saved policy in one process and writes nothing.

    The policy is on the first GPU, if there is one.

    Args:
        folder, dtype, base: see `load`; an adapter is not merged.
        settings: limits, temperature and seed; the context length is the policy's.
        chat_template: replaces the folder's; see `codec.use_template`.
        casts: opens the autocast that the policy computes under.

    Raises:
        ConfigError: the policy cannot be loaded, or cannot call the environment's tools.
    """
    model, tokenizer = load(folder, dtype, base=base)
    model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    use_template(tokenizer, chat_template)
    codec = HFCodec(tokenizer, template_args)
    check_turns(environment, codec)
    return Coordinator(
        strategy=StaticStrategy(""),
        environment=environment,
        codec=codec,
        sampler=policy_sampler(lambda: contextlib.nullcontext(model), codec, tokenizer, casts),
        llm=NoLLM(),
        record=Record(),
        settings=replace(settings, context_tokens=context_length(model.config)),
        rewards=rewards,
    )
