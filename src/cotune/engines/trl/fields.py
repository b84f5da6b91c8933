"""Every field of GRPOConfig that matters to a joint run: passed on, adjusted, or rejected, and why.

`checks.py` rejects fields by this table, and a documentation page is generated from it.
Written for TRL 1.16 and transformers 5.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Accepts = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Field:
    """The treatment of one field.

    Attributes:
        status: "supported" is passed on unchanged; "adjusted" has the meaning in `line`; "refused"
            raises an error when the joint run is made, unless `accepts` allows the value.
        line: the field's effect, how cotune changes it, or why it is rejected.
        fix: for a rejected field, the setting to use.
        accepts: for a rejected field, whether a value has no effect.
    """

    status: Literal["supported", "adjusted", "refused"]
    line: str
    fix: str = ""
    accepts: Accepts | None = None


def _ok(line: str) -> Field:
    return Field("supported", line)


def _adjusted(line: str) -> Field:
    return Field("adjusted", line)


def _refused(line: str, fix: str, accepts: Accepts) -> Field:
    return Field("refused", line, fix, accepts)


def _each(names: str, field: Field) -> dict[str, Field]:
    return dict.fromkeys(names.split(), field)


def _off(value: Any) -> bool:
    return not value


def _unset(value: Any) -> bool:
    return value is None


_NOT_THE_POLICYS = "log-probabilities would not be the policy's"
_VLLM = _ok("Read with `use_vllm` alone.")
_LOSS = _ok("Passed on to the loss.")
_ENTROPY = _ok("Passed on; rollouts without an advantage are then trained on, too.")
_SAMPLES_ITSELF = "cotune samples by itself and would not apply it"
_WHOLE_WEIGHTS = "ranks sample on their own from whole weights"

_MODEL: Mapping[str, Field] = {
    "model_init_kwargs": _ok("Used where the trainer is given the model's name."),
    "trust_remote_code": _ok("Used where the trainer is given the model's name."),
    "router_aux_loss_coef": _ok("Passed on; all rollouts are then trained on."),
    "disable_dropout": _ok("Passed on. Rollouts are sampled without dropout in any case."),
    "cast_lm_head_to_fp32": _ok("Passed on; rollouts are sampled with the same head."),
    "ds3_gather_for_generation": _ok("No effect: DeepSpeed's stage 3 is refused."),
    "gradient_checkpointing": _ok("Passed on; off while sampling."),
    "bf16": _ok("Passed on; with `fp16`, rollouts are sampled under the same autocast."),
    "use_liger_kernel": _ok("Passed on; TRL keeps its layer kernels alone."),
    "neftune_noise_alpha": _refused(
        "the policy would be trained with noise that it was not sampled with",
        "set neftune_noise_alpha=None",
        _unset,
    ),
    "torch_compile": _refused(
        "every turn of a rollout has another shape and would compile anew",
        "set torch_compile=False",
        _off,
    ),
}

_ROLLOUTS: Mapping[str, Field] = {
    "num_generations": _ok("G, rollouts of one question."),
    "num_generations_eval": _adjusted(
        "Evaluation is greedy: each question is rolled out once, and its group holds copies. "
        "1 saves TRL's own work on them."
    ),
    "max_completion_length": _adjusted(
        "`limits.trajectory_tokens` bounds a rollout. `loss_type='dr_grpo'` divides by this field "
        "all the same."
    ),
    "per_device_train_batch_size": _ok("Rollouts of one forward and backward pass."),
    "gradient_accumulation_steps": _ok("Must divide `steps_per_generation`."),
    "steps_per_generation": _ok(
        "A rollout batch holds `per_device_train_batch_size` × processes × this many rollouts; a "
        "multiple of `gradient_accumulation_steps`, so that it ends on an optimizer step."
    ),
    "generation_batch_size": _ok("Rollouts of a batch, as `steps_per_generation` says it."),
    "temperature": _ok("Of training and verification, above 0; evaluation is greedy."),
    "top_p": _refused(_NOT_THE_POLICYS, "set top_p=1.0", lambda value: value == 1.0),
    "top_k": _refused(_NOT_THE_POLICYS, "set top_k=0", lambda value: not value),
    "min_p": _refused(_NOT_THE_POLICYS, "set min_p=None", _unset),
    "repetition_penalty": _refused(
        _NOT_THE_POLICYS,
        "set repetition_penalty=1.0",
        lambda value: value == 1.0,
    ),
    "generation_kwargs": _refused(_SAMPLES_ITSELF, "set generation_kwargs=None", _off),
    "cache_implementation": _refused(
        "cotune keeps a cache of its own across the turns of a rollout",
        "set cache_implementation=None",
        _unset,
    ),
    "use_transformers_continuous_batching": _refused(
        _SAMPLES_ITSELF, "set use_transformers_continuous_batching=False", _off
    ),
    "use_transformers_paged": _refused(_SAMPLES_ITSELF, "set use_transformers_paged=False", _off),
    "transformers_continuous_batching_config": _ok("No effect without continuous batching."),
    "chat_template_kwargs": _adjusted(
        "Given to the chat template by cotune, which renders prompts."
    ),
    "max_tool_calling_iterations": _refused(
        "it bounds TRL's own tool loop, and the environment's turns are bounded by limits.turns",
        "set it to None and give limits=cotune.Limits(turns=…)",
        _unset,
    ),
    "mask_truncated_completions": _adjusted(
        "No rollout lacks an EOS; those that a limit of tokens cut off get no gradient instead."
    ),
    "pad_to_multiple_of": _ok("Passed on; `JointTrainer` trains without the padding."),
}

_VLLM_FIELDS: Mapping[str, Field] = {
    "use_vllm": _ok("vLLM samples the rollouts in place of the trainer's own model."),
    "vllm_mode": _ok('"colocate" or "server".'),
    "vllm_structured_outputs_regex": _refused(
        _NOT_THE_POLICYS,
        "set it to None and let the environment reject other actions",
        _unset,
    ),
    "vllm_tensor_parallel_size": _ok("A divisor of the processes that train."),
    **_each(
        "vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url vllm_server_host "
        "vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization "
        "vllm_max_model_length vllm_importance_sampling_correction "
        "vllm_importance_sampling_mode vllm_importance_sampling_clip_max "
        "vllm_importance_sampling_clip_min vllm_importance_sampling_cap",
        _VLLM,
    ),
}

_LOSSES: Mapping[str, Field] = {
    "beta": _ok(
        "Weight of the KL term; above 0 rollouts without an advantage are trained on, too."
    ),
    "use_bias_correction_kl": _LOSS,
    "num_iterations": _refused(
        "a run can be resumed exactly only where a batch is trained on once",
        "set num_iterations=1",
        lambda value: value == 1,
    ),
    **_each(
        "epsilon epsilon_high delta sapo_temperature_neg sapo_temperature_pos vespo_k_pos "
        "vespo_lambda_pos vespo_k_neg vespo_lambda_neg off_policy_mask_threshold",
        _LOSS,
    ),
    "loss_type": _ok(
        'All of TRL\'s; the papers\' loss is "grpo", TRL\'s default "dapo". `JointTrainer` leaves '
        'rollouts without an advantage out with "grpo", "dr_grpo", "dapo" and "cispo".'
    ),
    "importance_sampling_level": _ok(
        '"sequence" is refused with P²O\'s masked distillation: a token cannot be left out of the '
        "ratio of its sequence."
    ),
    "top_entropy_quantile": _ENTROPY,
    **_each(
        "entropy_coef use_adaptive_entropy entropy_coef_min entropy_coef_max "
        "entropy_coef_delta entropy_target",
        _ENTROPY,
    ),
    "scale_rewards": _ok("Passed on; strategies read rewards unscaled."),
    "multi_objective_aggregation": _ok(
        "Passed on; TRL sees one reward, the sum that the strategy sees."
    ),
    "reward_weights": _refused(
        "the environment's score is the only reward function that TRL sees",
        "set reward_weights=None",
        lambda value: value in (None, [1.0]),
    ),
    "sync_ref_model": _refused(
        "a checkpoint does not hold the synchronised reference, so that a resumed run would go on "
        "with the initial one",
        "set sync_ref_model=False",
        _off,
    ),
    "ref_model_mixup_alpha": _ok("No effect without `sync_ref_model`."),
    "ref_model_sync_steps": _ok("No effect without `sync_ref_model`."),
}

_ORDER: Mapping[str, Field] = {
    "max_steps": _ok(
        "Optimizer steps of the run; required, a multiple of those that a rollout batch takes."
    ),
    "num_train_epochs": _ok("Not used: `max_steps` says how long a run is."),
    "shuffle_dataset": _refused(
        "a resumed run would repeat the first epoch's order, and cotune orders the tasks itself",
        "set shuffle_dataset=False",
        _off,
    ),
    "train_sampling_strategy": _ok("No effect: `GRPOTrainer` has a sampler of its own."),
    "remove_unused_columns": _ok("Either; the data set holds task ids alone."),
    "seed": _adjusted(
        "Of dropout and new weights. Rollouts and orders follow the method's `seed`."
    ),
    "data_seed": _ok("No effect: the order follows the method's `seed`."),
    "ignore_data_skip": _refused(
        "a resumed run would begin with the first task again", "set ignore_data_skip=False", _off
    ),
    "dataloader_num_workers": _ok("Passed on; they carry task ids alone."),
    "dataloader_in_order": _refused(
        "batches would come in another order than the run's", "set dataloader_in_order=True", bool
    ),
    "dataloader_drop_last": _ok("An evaluation leaves out its last batch where it is not full."),
    "accelerator_config.split_batches": _refused(
        "the ranks would share a batch of one of them", "set split_batches to False", _off
    ),
    "accelerator_config.dispatch_batches": _refused(
        "every rank reads its own tasks", "set dispatch_batches to None", _off
    ),
    "accelerator_config.even_batches": _refused(
        "ranks roll out in lock-step, and one without tasks would leave the others waiting",
        "set even_batches to True",
        bool,
    ),
    "auto_find_batch_size": _refused(
        "a smaller batch would hold torn groups",
        "set auto_find_batch_size=False and lower per_device_train_batch_size",
        _off,
    ),
}

_SAVING: Mapping[str, Field] = {
    "output_dir": _ok("Checkpoints, and in `cotune/` the run folder."),
    "save_strategy": _ok(
        'Between rollout batches: "steps", "best" or "no"; "epoch" is refused, as the data set '
        "spans the run."
    ),
    "save_steps": _ok("A multiple of the optimizer steps that a rollout batch takes."),
    "save_total_limit": _ok("Passed on; cotune's half of a checkpoint goes with the trainer's."),
    "save_only_model": _refused(
        "a run cannot be resumed from a checkpoint without its optimizer",
        "set save_only_model=False",
        _off,
    ),
    "save_on_each_node": _refused(
        "cotune's half of a checkpoint is written once, on rank 0, for all to read",
        "set save_on_each_node=False and give output_dir on a file system that all nodes share",
        _off,
    ),
    "enable_jit_checkpoint": _refused(
        "it saves inside a rollout batch and without cotune's half",
        "set enable_jit_checkpoint=False",
        _off,
    ),
    "load_best_model_at_end": _ok(
        "The strategy goes back to the state of the same checkpoint, so that `best_prompt()` fits "
        "the weights."
    ),
    "metric_for_best_model": _ok(
        '"eval_reward", say; a loss is refused: it says nothing of a policy.'
    ),
    "greater_is_better": _ok("False is refused for a reward."),
    "restore_callback_states_from_checkpoint": _ok("Passed on."),
    "resume_from_checkpoint": _ok(
        "Not used by the trainer: `trainer.train(resume_from_checkpoint=True)`, from a checkpoint "
        "in `output_dir`."
    ),
    "push_to_hub": _refused(
        "it uploads output_dir with the run folder in it: questions, rollouts and costs",
        "set push_to_hub=False and push the trained model afterwards",
        _off,
    ),
}

_EVALUATING: Mapping[str, Field] = {
    "eval_strategy": _ok(
        '"steps" or "no", with `eval_dataset=joint.eval_dataset(…)`: greedy, under the best '
        'instruction, learnt from by nothing. "epoch" is refused, as the data set spans the run. '
        "Like any evaluation of the trainer's it moves torch's random state on, by which the rows "
        "of a batch are shuffled."
    ),
    "eval_steps": _ok("A multiple of the optimizer steps that a rollout batch takes."),
    "eval_on_start": _ok("Passed on; counted under step 0."),
    "eval_delay": _ok("Passed on."),
    "per_device_eval_batch_size": _ok("Rows of TRL's evaluation; a multiple of its group."),
}

_LOGGING: Mapping[str, Field] = {
    "report_to": _ok(
        "tensorboard, wandb and trackio also get the table of instructions: metrics.md lists names."
    ),
    "run_name": _ok("Passed on."),
    "project": _ok("Passed on."),
    "logging_strategy": _ok(
        '"steps" or "no", which leaves metrics.jsonl empty; "epoch" is refused, as the data set '
        "spans the run."
    ),
    "logging_steps": _ok(
        "metrics.jsonl has a row each time; trackers get TRL's means over the steps between."
    ),
    "log_completions": _ok("Passed on; the prompt that TRL shows is the task's id."),
    "log_multimodal": _ok("No effect: rollouts are text."),
    "num_completions_to_print": _ok("Passed on."),
    "log_unique_prompts": _ok("Passed on."),
    "log_completions_hub_repo": _ok("Passed on: TRL uploads completions to the repository named."),
}

_PROCESSES: Mapping[str, Field] = {
    "deepspeed": _ok("ZeRO stages 1 and 2; stage 3 is refused: no process holds whole weights."),
    "fsdp": _ok("FSDP2, which is torch's `fully_shard`; weights are gathered while sampling."),
    "fsdp_config": _ok("Passed on; version 1 and `cpu_ram_efficient_loading` are refused."),
    "parallelism_config": _refused(_WHOLE_WEIGHTS, "set parallelism_config=None", _unset),
    "ddp_find_unused_parameters": _ok("Passed on."),
    "ddp_timeout": _ok("Passed on; the other ranks wait this long for rank 0's proposals."),
    "use_cpu": _ok("Passed on."),
}

SECTIONS: Mapping[str, Mapping[str, Field]] = {
    "Rollouts": _ROLLOUTS,
    "The loss": _LOSSES,
    "Length and order": _ORDER,
    "Saving": _SAVING,
    "Evaluating": _EVALUATING,
    "Logging": _LOGGING,
    "The model": _MODEL,
    "Processes": _PROCESSES,
    "vLLM": _VLLM_FIELDS,
}
"""The fields by heading, as the documentation shows them."""

FIELDS: Mapping[str, Field] = {
    name: field for section in SECTIONS.values() for name, field in section.items()
}
