"""veRL as an `Engine`: its trainer on Ray, in separate processes. `training.engine_args` are checked without veRL."""

from functools import partial
from typing import TYPE_CHECKING, Any

from packaging.version import Version
from rich.console import Console

from cotune.config.run_file import RunConfig
from cotune.engines.engine import Engine, check_package
from cotune.engines.preflight import Check, Preflight
from cotune.errors import ConfigError
from cotune.utils.packages import installed
from cotune.utils.text import flat

if TYPE_CHECKING:
    from cotune.engines.verl.run import VerlJoint

# veRL 0.9 fails to import beside this TRL version or later ones: TRL removed a class it imports.
BREAKS_VERL = Version("1.16")
# Keys that a run file sets elsewhere, by the field; another value would train in silence on something else.
_SET_ELSEWHERE = {
    "data.custom_cls": "environment",
    "data.max_prompt_length": "limits.prompt_tokens",
    "data.max_response_length": "limits.trajectory_tokens",
    "data.shuffle": "seed",
    "data.train_batch_size": "training.questions_per_step",
    "actor_rollout_ref.model.path": "policy.path",
    "actor_rollout_ref.model.lora_adapter_path": "policy.path",
    "actor_rollout_ref.model.lora_alpha": "policy.lora.alpha",
    "actor_rollout_ref.model.lora_rank": "policy.lora.rank",
    "actor_rollout_ref.model.target_modules": "policy.lora.target_modules",
    "actor_rollout_ref.rollout.n": "training.group_size",
    "actor_rollout_ref.rollout.temperature": "training.temperature",
    "actor_rollout_ref.rollout.top_k": "cotune, which samples from the whole distribution",
    "actor_rollout_ref.rollout.top_p": "cotune, which samples from the whole distribution",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "training.mini_batches",
    "algorithm.adv_estimator": "strategy",
    "algorithm.rollout_correction": "strategy.distillation",
    # engine_args are written into run.yaml and logs
    "ray_kwargs.ray_init.runtime_env.env_vars": "variables of the shell",
    "trainer.default_local_dir": "output",
    "trainer.max_actor_ckpt_to_keep": "training.keep_checkpoints",
    "trainer.resume_mode": "cotune resume",
    "trainer.resume_from_path": "cotune resume",
    "trainer.save_freq": "training.save_every",
    "trainer.test_freq": "evaluation.every",
    "trainer.total_epochs": "training.steps",
    "trainer.total_training_steps": "training.steps",
    "trainer.val_before_train": "evaluation.before",
}
# veRL's name of each schedule
SCHEDULES = {"cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}


def checked_arguments(config: RunConfig) -> dict[str, Any]:
    """Return `training.engine_args` as veRL's dotted keys; a + before any part of a key moves to the front."""
    _check_supported(config)
    engine_args = {
        f"+{name.replace('+', '')}" if "+" in name else name: value
        for name, value in flat(config.training.engine_args).items()
    }
    for name in engine_args:
        bare = name.lstrip("+")
        for key, field in _SET_ELSEWHERE.items():
            if bare == key or bare.startswith(f"{key}."):
                raise ConfigError(
                    f"training.engine_args.{name}: set by {field}; remove it from engine_args"
                )
    return engine_args


def _check_supported(config: RunConfig) -> None:
    """Raise ConfigError for settings that veRL's public hooks do not support; name the field."""
    training = config.training
    refused = {
        "training.frozen": training.frozen,
        f"training.precision {training.precision}": training.precision != "auto",
        "policy.lora.dropout": config.policy.lora is not None and config.policy.lora.dropout > 0,
        # A last stage needs a teacher, which veRL's public hooks do not offer.
        "strategy.distil_steps": getattr(config.strategy, "distil_steps", 0) > 0,
        f"training.schedule {training.schedule}": training.schedule not in SCHEDULES,
        # veRL counts mini-batches in questions.
        f"training.mini_batches {training.mini_batches}, no divisor of questions_per_step,": (
            training.questions_per_step % training.mini_batches > 0
        ),
    }
    for field, is_set in refused.items():
        if is_set:
            raise ConfigError(
                f"{field} is not supported by training.engine verl; change it, or set training.engine: trl"
            )


class VeRL(Engine):
    """Train in Ray actors."""

    def check_installed(self) -> None:
        check_package("verl")
        trl = installed("trl")
        if trl is not None and Version(trl) >= BREAKS_VERL:
            raise ConfigError(
                f"engine verl: trl {trl} and verl {installed('verl')} are installed together, and veRL then fails "
                "at import: pip install 'cotune[verl]' into an environment without trl"
            )

    def installation(self) -> str:
        self.check_installed()
        return f"engine verl: verl {installed('verl')}"

    def check(self, checked: Preflight) -> list[Check]:
        return [Check("training", partial(_arguments, checked.config))]

    def prepare(self, checked: Preflight, console: Console) -> "VerlJoint":
        from cotune.engines.verl.run import prepare

        return prepare(checked, console)

    def train(self, setup: "VerlJoint", *, resume: bool) -> None:
        from cotune.engines.verl.run import train

        train(setup, resume=resume)


def _arguments(config: RunConfig) -> None:
    """Check the veRL fields of a run file, against veRL's own files if it is installed."""
    folder = config.output.absolute()
    # Ray deletes its copy with the session's folder, on whichever node it is.
    if any(part.startswith("_ray_pkg_") for part in folder.parts):
        raise ConfigError(
            f"output: {folder} lies in the copy that Ray made of the job's --working-dir, and would be "
            "lost with it; expected an absolute path, where all nodes see it"
        )
    if installed("verl") is None:
        checked_arguments(config)
        return
    from cotune.engines.verl.settings import verl_config

    # How many GPUs there are, and the policy's context, are checked when the run is prepared.
    verl_config(config, config.output, 1)


ENGINE = VeRL()
