"""Reward functions as GRPOTrainer takes them, sequence-classification models among them."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase

from cotune.errors import ConfigError
from cotune.rewards.functions import BUILT_IN, RewardFunctions, WeightedReward, load_reward

_models = cast(Any, AutoModelForSequenceClassification)
_tokenizers = cast(Any, AutoTokenizer)


class RewardModel:
    """A sequence-classification model with one label, called as GRPOTrainer calls it.

    Args:
        model: it is put on `device` and into evaluation mode.
        tokenizer: without a padding token it gets its EOS.
        template_args: passed to the tokenizer's chat template.
        rows: rollouts that are scored at a time.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        *,
        device: torch.device | str = "cpu",
        template_args: Mapping[str, Any] | None = None,
        rows: int = 64,
    ) -> None:
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        config = cast(Any, model).config
        # The model's score is read at the last token that is no padding.
        config.get_text_config().pad_token_id = tokenizer.pad_token_id
        self.__name__ = str(config._name_or_path).rpartition("/")[2] or type(model).__name__
        self._model = model.eval().to(device)
        self._tokenizer = tokenizer
        self._device = device
        self._template_args = dict(template_args or {})
        self._rows = rows

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **_: object
    ) -> list[float]:
        """Return the model's score of each prompt with its completion, texts or chat messages."""
        tokenizer = cast(Any, self._tokenizer)
        texts = [
            prompt + completion
            if isinstance(prompt, str)
            else tokenizer.apply_chat_template(
                [*prompt, *completion], tokenize=False, **self._template_args
            )
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        scores: list[float] = []
        for start in range(0, len(texts), self._rows):
            encoded = tokenizer(
                text=texts[start : start + self._rows],
                return_tensors="pt",
                padding=True,
                padding_side="right",
                add_special_tokens=False,
            )
            with torch.inference_mode():
                logits = self._model(**encoded.to(self._device)).logits
            scores += logits[:, 0].float().tolist()
        return scores


def rewards_of_trainer(
    reward_funcs: Any, reward_processing_classes: Any, args: Any
) -> RewardFunctions | None:
    """Return the reward functions of GRPOTrainer's arguments; None if there are none.

    A text names a model of the hub or its folder. `exact_match` and the like, and `file.py:name`, name
    functions, as in a run file.

    Args:
        reward_funcs: functions, models or texts; several in a list, or `RewardFunctions`. Without
            `reward_weights` also `WeightedReward`s.
        reward_processing_classes: the tokenizers of the models, one for each function.
        args: the GRPOConfig; its `reward_weights`, `model_init_kwargs` and `device` are used.
    """
    if reward_funcs is None or isinstance(reward_funcs, RewardFunctions):
        return reward_funcs
    functions = _list_of(reward_funcs)
    if not functions:
        return None
    tokenizers = _list_of(reward_processing_classes or [None] * len(functions))
    weights = args.reward_weights
    for name, entries in (
        ("GRPOConfig.reward_weights", functions if weights is None else weights),
        ("reward_processing_classes", tokenizers),
    ):
        if len(entries) != len(functions):
            raise ConfigError(
                f"{name} has {len(entries)} entries for {len(functions)} reward functions; expected one for each"
            )
    loaded = [_function(*pair, args) for pair in zip(functions, tokenizers, strict=True)]
    if weights is not None:
        pairs = zip(loaded, weights, strict=True)
        loaded = [WeightedReward(function=function, weight=weight) for function, weight in pairs]
    return RewardFunctions(loaded)


def _list_of(value: Any) -> list[Any]:
    return list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else [value]


def _function(reward: Any, tokenizer: Any, args: Any) -> Any:
    """Return a function, or a model as one."""
    if isinstance(reward, str) and (reward in BUILT_IN or ":" in reward):
        return load_reward(reward)
    name = reward if isinstance(reward, str) else getattr(reward, "name_or_path", "")
    options = {"trust_remote_code": args.trust_remote_code} | dict(args.model_init_kwargs or {})
    options.pop("device_map", None)
    try:
        if isinstance(reward, str):
            reward = _models.from_pretrained(name, num_labels=1, **options)
        if not isinstance(reward, torch.nn.Module) or not hasattr(reward, "config"):
            return reward
        if tokenizer is None and name:
            source = {k: options[k] for k in ("revision", "trust_remote_code") if k in options}
            tokenizer = _tokenizers.from_pretrained(name, **source)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"reward_funcs: cannot load the reward model {name!r} ({reason}); expected a sequence classifier "
            "of the hub or in a folder, or a function"
        ) from None
    if tokenizer is None:
        raise ConfigError(
            f"reward_funcs: the model {type(reward).__name__} has no tokenizer; give it in reward_processing_classes"
        )
    return RewardModel(
        reward,
        tokenizer,
        device=args.device,
        template_args=args.chat_template_kwargs,
        rows=args.per_device_train_batch_size * args.steps_per_generation,
    )
