"""The fields of GRPOConfig that cotune refuses, and those that it restricts or gives another meaning.

`checks.py` applies the refusals, and a documentation page lists both tables. Every other field is
passed on to TRL. Written for TRL 1.16 and transformers 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "luspo", "cispo", "sapo", "vespo")
"""TRL's loss types."""

_NOT_THE_POLICYS = "log-probabilities would not be the policy's"
_SAMPLES_ITSELF = "cotune does its own sampling and would not apply it"
_OFF = (False, None)


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that raises an error when the joint run is made, unless its value has no effect.

    Attributes:
        name: the field, with a dot before a field of its own.
        why: the reason.
        allowed: the values that are not refused; the first is the one to set.
        instead: what to do, if that is more than to set the first allowed value.
    """

    name: str
    why: str
    allowed: tuple[Any, ...]
    instead: str = ""

    @property
    def fix(self) -> str:
        return self.instead or f"set {self.name}={self.allowed[0]!r}"


_REFUSED = (
    # Sampling.
    Refused("top_p", _NOT_THE_POLICYS, (1.0,)),
    Refused("top_k", _NOT_THE_POLICYS, (0, None)),
    Refused("min_p", _NOT_THE_POLICYS, (None,)),
    Refused("repetition_penalty", _NOT_THE_POLICYS, (1.0,)),
    Refused(
        "vllm_structured_outputs_regex",
        _NOT_THE_POLICYS,
        (None,),
        "set it to None and let the environment reject other actions",
    ),
    Refused("generation_kwargs", _SAMPLES_ITSELF, (None, {})),
    Refused("use_transformers_continuous_batching", _SAMPLES_ITSELF, _OFF),
    Refused("use_transformers_paged", _SAMPLES_ITSELF, _OFF),
    Refused(
        "cache_implementation", "cotune keeps its own cache across the turns of a rollout", (None,)
    ),
    Refused(
        "max_tool_calling_iterations",
        "it bounds TRL's own tool loop, but the environment's turns are bounded by limits.turns",
        (None,),
        "set it to None and give limits=cotune.Limits(turns=…)",
    ),
    # The loss.
    Refused("num_iterations", "exact resume needs each batch to be trained on only once", (1,)),
    Refused(
        "reward_weights",
        "the environment's score is the only reward function that TRL sees",
        (None, [1.0]),
    ),
    Refused(
        "sync_ref_model",
        "a checkpoint does not hold the synchronised reference, so a resumed run would use the "
        "initial one",
        _OFF,
    ),
    Refused(
        "neftune_noise_alpha",
        "the policy would be trained with noise that it was not sampled with",
        (None,),
    ),
    Refused(
        "torch_compile",
        "every turn of a rollout has a different shape and would be compiled again",
        _OFF,
    ),
    # The order of tasks.
    Refused(
        "shuffle_dataset",
        "a resumed run would repeat the first epoch's order, and cotune orders the tasks itself",
        _OFF,
    ),
    Refused("ignore_data_skip", "a resumed run would begin with the first task again", _OFF),
    Refused(
        "dataloader_in_order", "batches would come in a different order than the run's", (True,)
    ),
    Refused(
        "accelerator_config.split_batches", "the ranks would share a batch of one of them", _OFF
    ),
    Refused("accelerator_config.dispatch_batches", "every rank reads its own tasks", (None, False)),
    Refused(
        "accelerator_config.even_batches",
        "ranks roll out in lock-step, and a rank without tasks would leave the others waiting",
        (True,),
    ),
    Refused(
        "auto_find_batch_size",
        "a smaller batch would split groups",
        _OFF,
        "set auto_find_batch_size=False and lower per_device_train_batch_size",
    ),
    Refused("parallelism_config", "ranks sample on their own from whole weights", (None,)),
    # Saving.
    Refused(
        "save_only_model", "a run cannot be resumed from a checkpoint without its optimizer", _OFF
    ),
    Refused(
        "save_on_each_node",
        "cotune's half of a checkpoint is written once, on rank 0, for all to read",
        _OFF,
        "set save_on_each_node=False and give output_dir on a file system that all nodes share",
    ),
    Refused(
        "enable_jit_checkpoint", "it saves inside a rollout batch and without cotune's half", _OFF
    ),
    Refused(
        "push_to_hub",
        "it uploads output_dir with the run folder in it: questions, rollouts and costs",
        _OFF,
        "set push_to_hub=False and push the trained model afterwards",
    ),
)
REFUSED: Mapping[str, Refused] = {field.name: field for field in _REFUSED}

_PER_BATCH = "A multiple of the optimizer steps that a rollout batch takes."
_NO_EPOCHS = '"epoch" is refused, because the data set spans the run.'
_PLAIN_ROWS = "Above 0, rollouts without an advantage are also trained on."

ADJUSTED: Mapping[str, str] = {
    "max_steps": f"Required. {_PER_BATCH} `num_train_epochs` is not used.",
    "steps_per_generation": "A multiple of `gradient_accumulation_steps`. A rollout batch holds "
    "`per_device_train_batch_size` × processes × this many rollouts.",
    "temperature": "Used for training and verification, above 0; evaluation is greedy.",
    "max_completion_length": "`limits.trajectory_tokens` bounds a rollout; "
    '`loss_type="dr_grpo"` still divides by this field.',
    "mask_truncated_completions": "Rollouts that a token limit cut off get no gradient. (All of "
    "them end with an EOS, by which TRL would judge.)",
    "chat_template_kwargs": "Given to the chat template by cotune, which renders the prompts.",
    "loss_type": 'The papers\' loss is "grpo", TRL\'s default "dapo". `JointTrainer` leaves out '
    'rollouts without an advantage with "grpo", "dr_grpo", "dapo" and "cispo".',
    "importance_sampling_level": '"sequence" is refused with P²O\'s masked distillation: a token '
    "cannot be left out of the ratio of its sequence.",
    "beta": _PLAIN_ROWS,
    "entropy_coef": _PLAIN_ROWS,
    "seed": "Seeds dropout and new weights. Rollouts and the order of tasks follow the method's "
    "`seed`; `data_seed` has no effect.",
    "save_strategy": f'"steps", "best" or "no"; {_NO_EPOCHS}',
    "save_steps": _PER_BATCH,
    "load_best_model_at_end": "Also restores the strategy from the same checkpoint, so that "
    "`best_prompt()` fits the weights. `save_steps` and `eval_steps` must be equal.",
    "metric_for_best_model": 'For example "eval_reward", with `greater_is_better=True`; a loss is '
    "refused.",
    "resume_from_checkpoint": "Not read by the trainer: call "
    "`trainer.train(resume_from_checkpoint=True)`.",
    "eval_strategy": f'"steps" or "no", with `eval_dataset=joint.eval_dataset(…)`; {_NO_EPOCHS} '
    "Evaluation is greedy, under the best instruction; nothing is learnt from it. It advances "
    "torch's random state, which shuffles the rows of a batch.",
    "eval_steps": _PER_BATCH,
    "num_generations_eval": "Each question is rolled out once, and its group holds copies; 1 saves "
    "TRL's own work on them.",
    "logging_strategy": f'"steps" or "no", which leaves metrics.jsonl empty; {_NO_EPOCHS}',
    "report_to": "wandb and trackio also get a table of the instructions; metrics.md "
    "lists the names.",
    "log_completions": "The prompt that TRL shows is the task's id.",
    "deepspeed": "ZeRO stages 1 and 2; stage 3 is refused: no process holds whole weights.",
    "fsdp": "FSDP2, which is torch's `fully_shard`; weights are gathered while sampling.",
    "fsdp_config": "Version 1 and `cpu_ram_efficient_loading` are refused.",
    "vllm_tensor_parallel_size": "A divisor of the processes that train.",
    "ddp_timeout": "The other ranks wait this long for rank 0's proposals.",
}
"""By field, a condition on its value, or what cotune does instead of TRL."""
