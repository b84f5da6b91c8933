"""A saved policy in this process, with nothing around it: for evaluation outside of a run."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from cotune.contracts import ConfigError, Environment
from cotune.coordinator import Coordinator, RolloutSettings, SilentJournal
from cotune.engines.codec import HFCodec
from cotune.engines.sampling import policy_sampler
from cotune.llm.client import NoLLM
from cotune.records import Purpose
from cotune.strategies.static import StaticStrategy


def load(path: str | Path, dtype: str = "auto") -> tuple[Any, PreTrainedTokenizerBase]:
    """Model and tokenizer by `from_pretrained`; a missing padding token becomes the EOS.

    Args:
        path: a Hugging Face name or folder.
        dtype: the weights' type; "auto" is the checkpoint's.

    Raises:
        ConfigError: names what could not be loaded.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"policy.path: cannot load {str(path)!r}: {reason}") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def local_coordinator(
    folder: str | Path, environment: Environment, instruction: str, settings: RolloutSettings
) -> Coordinator:
    """A coordinator that rolls out the policy of a folder, in one process, and writes nothing.

    Args:
        folder: a Hugging Face name or folder.
        instruction: what `evaluate` uses where it is given no prompt.
        settings: limits, temperature and seed; its context is the policy's.
    """
    model, tokenizer = load(folder)
    model.eval()
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    codec = HFCodec(tokenizer)
    return Coordinator(
        strategy=StaticStrategy(instruction),
        environment=environment,
        codec=codec,
        sampler=policy_sampler(lambda: contextlib.nullcontext(model), codec, tokenizer),
        llm=NoLLM(),
        journal=SilentJournal(),
        meter=_Unmetered(),
        settings=replace(settings, context_tokens=context),
    )


class _Unmetered:
    """Stands for a ledger where there is no run."""

    def begin_attempt(self, resumed_from: int | None) -> int:
        return 1

    def set_step(self, step: int) -> None:
        pass

    def add_rollouts(
        self, purpose: Purpose, rollouts: int, generated_tokens: int, seconds: float = 0.0
    ) -> None:
        pass

    def last_entry(self) -> int:
        return 0

    def adopt(self, after: int, last: int) -> None:
        pass
