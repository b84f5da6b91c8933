"""Load a run file's policy into this process, to roll out."""

from collections.abc import Callable
from pathlib import Path

from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.policy.policy_files import check_whole, policy_path
from cotune.protocols import Environment, Rewards
from cotune.rollout.coordinator import Coordinator, RolloutSettings
from cotune.run.best import BestRecord, read_best
from cotune.run.run_dir import RunDir
from cotune.utils.progress import begin

OpenPolicy = Callable[..., Coordinator]
"""`run_policy`, or another engine's `Engine.open_policy`."""


def run_policy(
    config: RunConfig,
    environment: Environment,
    *,
    rewards: Rewards | None = None,
    best: Path | None = None,
    temperature: float | None = None,
) -> Coordinator:
    """Return a coordinator of the policy, with the run file's limits, seed and chat template.

    Args:
        rewards: score instead of the environment.
        best: the run's `best/`, to load instead of the policy that training starts from.
        temperature: None for that of training.

    Raises:
        ConfigError: the policy cannot be loaded, or cannot call the environment's tools.
    """
    start = policy_path(config.policy.path)
    begin("loading the policy")
    import torch

    from cotune.policy.local_policy import local_coordinator
    from cotune.policy.precision import casting, weights_dtype

    if config.threads is not None:
        torch.set_num_threads(config.threads)
    policy = config.policy
    training = config.training
    sampled = temperature or training.temperature
    return local_coordinator(
        best or start,
        environment,
        "",  # each rollout has its prompt
        RolloutSettings(config.limits, sampled, config.seed, training.rows_per_call),
        dtype=weights_dtype(policy, training.precision),
        # The run folder may come from another machine, with the local base in another place.
        base=start if best else None,
        template_args=policy.template_args,
        chat_template=None if best else policy.chat_template,  # best/ has it
        rewards=rewards,
        casts=casting(policy, training.precision, training.engine_args),
    )


def best_record(run: RunDir) -> BestRecord:
    """Return the record of a run's best policy. Raises ConfigError if there is none, or it is damaged."""
    record = read_best(run.best_path)
    if record is None:
        raise ConfigError(
            f"{run.path}: has no best policy yet; finish it with: {run.how_to_resume()}"
        )
    check_whole(run.best_path)
    return record
