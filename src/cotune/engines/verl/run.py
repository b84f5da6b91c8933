"""Train a run file on veRL, from its checks to the summary.

The trainer runs in this process; the policy's workers and the agent loops are Ray's.
"""

import contextlib
import logging
import os
import signal
import threading
import traceback
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import ray
import torch
import transfer_queue
from omegaconf import DictConfig, OmegaConf, open_dict
from ray.exceptions import RayActorError, RayError, RayTaskError
from rich.console import Console
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

from cotune.config.build import build_llm, initial_instruction
from cotune.engines.conclude import conclude
from cotune.engines.evaluation import Outcome, RunEvaluation
from cotune.engines.joint import Parts, check_identity
from cotune.engines.preflight import Preflight
from cotune.engines.run_settings import settings_of
from cotune.engines.run_start import begin_run, choose_checkpoint, method_of, opened_run, run_parts
from cotune.engines.verl.checkpoints import VerlBest, drop_later
from cotune.engines.verl.hooks import VerlJoint
from cotune.engines.verl.settings import resume_from, verl_config
from cotune.engines.verl.worker import SECTION, WORKERS, Worker
from cotune.errors import ConfigError, CotuneError, EngineError
from cotune.rollout.task_order import TaskOrder
from cotune.run.checkpoints import complete_checkpoints, load_state, step_of
from cotune.run.run_dir import RunDir
from cotune.types import Prompt
from cotune.utils.text import command_on, one_line

_LOOK_SECONDS = 10.0


@dataclass(frozen=True)
class VerlSetup:
    """A run file that is ready to be trained; nothing is written yet.

    Attributes:
        parts: the run's, silent until its folder is open.
        verl_config: veRL's configuration for a run from the start.
    """

    worker: Worker
    parts: Parts
    verl_config: DictConfig


def prepare(checked: Preflight, console: Console) -> VerlSetup:
    """Check a run file's veRL configuration; write nothing, start nothing.

    Args:
        checked: the preflight that the run file has passed.
        console: shows the run's progress.

    Raises:
        ConfigError: a field is invalid; the message names it.
    """
    config = checked.config
    environment = checked.environment
    codec = checked.codec
    context = checked.context_tokens
    settings = settings_of(config, console, tuple(checked.llm_calls))
    method = method_of(config)
    parts = run_parts(settings, method, environment, codec, config.limits, checked.rewards)
    values = verl_config(
        config,
        RunDir(config.output).checkpoints_path.absolute(),
        1 if config.training.single_gpu else max(1, torch.cuda.device_count()),
        bool(environment.stop),
        context,
    )
    auto_set_device(values)
    joins = joins_cluster(values.ray_kwargs.ray_init)
    if values.trainer.device == "cuda" and not (joins or torch.cuda.is_available()):
        raise ConfigError(
            "training.engine is verl, but there is no GPU here; start it on a machine with one, name a "
            "running Ray cluster by RAY_ADDRESS, or set training.engine: trl"
        )
    try:
        validate_config(
            config=values,
            use_reference_policy=need_reference_policy(values),
            use_critic=need_critic(values),
        )
    except (AssertionError, ValueError, NotImplementedError) as error:
        raise ConfigError(f"training: veRL rejects it: {one_line(str(error))[:300]}") from error
    worker = Worker(config, environment, checked.rewards, codec, context)
    return VerlSetup(worker, parts, values)


# ---- training


def train(setup: VerlSetup, *, resume: bool) -> None:
    """Train to the end, from the newest checkpoint or from the start; evaluate and keep the best.

    Raises:
        CotuneError: the error that ended the run.
    """
    worker = setup.worker
    config = worker.config
    values = setup.verl_config
    with opened_run(setup.parts.settings, config.training.steps, resume=resume) as run:
        folder = run.checkpoints_path.absolute()
        best = VerlBest(run.best_path, worker.codec.tokenizer, folder / "best")
        chosen = choose_checkpoint(complete_checkpoints(folder), best) if resume else None
        changed = begin_run(
            run, setup.parts.settings, best, chosen, lambda path: _check_state(setup, path)
        )
        llm = build_llm(config.proposer, config.seed, run, worker.environment)
        initial = Prompt(initial_instruction(config.instruction.text, worker.environment))
        evaluation = RunEvaluation(config.evaluation, initial, run, best, report_scores)
        joint = VerlJoint(replace(setup.parts, llm=llm, record=run), worker, evaluation)
        joint.changed = changed
        checkpoint = None if chosen is None else chosen.path
        if chosen is not None:
            joint.notices = chosen.notices
            drop_later(folder, -1 if checkpoint is None else step_of(checkpoint))
        if checkpoint is not None:
            resume_from(values, checkpoint)
        run_folder = str(run.path.absolute())
        # By this section, other processes find the run.
        section = {"run_folder": run_folder, "working_folder": os.getcwd()}
        with open_dict(values):
            values[SECTION] = section
            values.data[SECTION] = section
        WORKERS[run_folder] = worker
        with _on_ray(values, run.path, setup.parts.settings.console):
            outcome = _fit(joint, values, checkpoint)
        conclude(setup.parts.settings, run, outcome, worker.environment)


def _check_state(setup: VerlSetup, checkpoint: Path) -> None:
    """Raise ConfigError if a checkpoint is of a different run, or of a different number of ranks."""
    config = setup.worker.config
    values = setup.verl_config
    tasks = setup.worker.environment.tasks("train")
    order = TaskOrder(tasks, config.training.questions_per_step, config.seed)
    check_identity(load_state(checkpoint), {**order.identity, **setup.parts.settings.identity})
    if not str(values.actor_rollout_ref.actor.strategy).startswith("fsdp"):
        return
    ranks = int(values.trainer.n_gpus_per_node) * int(values.trainer.nnodes)
    shards = len(list((checkpoint / "actor").glob("model_world_size_*_rank_*.pt")))
    if shards != ranks:
        raise ConfigError(
            f"{checkpoint}: holds the shards of {shards} ranks, and this run has {ranks}; resume on as "
            "many GPUs (training.engine_args.trainer.n_gpus_per_node, nnodes)"
        )


def _fit(joint: VerlJoint, values: DictConfig, checkpoint: Path | None) -> Outcome:
    """Train from a checkpoint or from the start, and score the result."""
    # Imported here: they register things in veRL that need its workers' packages.
    from cotune.engines.verl.rollouts import Manager
    from cotune.engines.verl.trainer import JointTrainer

    make_trainer: Any = JointTrainer  # veRL registers its base by a decorator that hides the type
    trainer: JointTrainer = make_trainer(config=values)
    trainer.joint = joint
    failed = True
    try:
        trainer.init()
        manager = cast(
            Manager,
            Manager.create(
                config=values,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            ),
        )
        trainer.take_manager(manager)
        joint.begin(None if checkpoint is None else load_state(checkpoint))
        with watched(manager.agent_loop_workers):
            # If the budget has been raised since, it is no longer spent.
            if not (joint.ended and joint.budget_is_spent()):
                trainer.fit(manager)
            outcome = joint.evaluation.finish(joint)
        failed = False
    finally:
        if (tracking := getattr(trainer, "logger", None)) is not None:
            tracking.finish(exit_code=int(failed))
    return outcome


def report_scores(joint: VerlJoint, scores: Mapping[str, float]) -> None:
    """Log an evaluation's scores in veRL's trackers, as eval/em and test/em."""
    tracking = getattr(joint.trainer, "logger", None)
    if tracking is not None:
        tracked = {name.replace("_", "/", 1): value for name, value in scores.items()}
        tracking.log(data=tracked, step=joint.batches)


@contextlib.contextmanager
def watched(workers: Sequence[Any]) -> Generator[None]:
    """Interrupt the block if an agent loop's process dies; veRL would wait forever.

    Raises:
        EngineError: one has died.
    """
    over = threading.Event()
    deaths: list[str] = []

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            try:
                ray.get([worker.__ray_ready__.remote() for worker in workers])
            except RayActorError as error:
                deaths.append(one_line(str(error))[:300])
                # Unlike interrupt_main, it also wakes a main thread that waits for a lock.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return
            except RayError:
                return  # the run is over

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    except KeyboardInterrupt:
        if deaths:
            raise EngineError(f"a process of veRL's agent loops died: {deaths[0]}") from None
        raise
    finally:
        over.set()


# ---- Ray


@contextlib.contextmanager
def _on_ray(values: DictConfig, folder: Path, console: Console | None) -> Generator[None]:
    """Start Ray and veRL's queue for the block; what veRL prints goes to verl.log in the run folder.

    Raises:
        EngineError: an error of Ray's or veRL's.
    """
    from verl.utils.logging_utils import configure_verl_logging

    if console is not None:
        console.file = console.file  # this process's output, before it is redirected
    os.environ.setdefault("TENSORBOARD_DIR", str(folder / "tensorboard"))
    log = folder / "verl.log"
    with (
        log.open("a", encoding="utf-8") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        configure_verl_logging()
        try:
            _start_ray(values, folder)
            with open_dict(values):
                values.transfer_queue.enable = True
            OmegaConf.resolve(values)
            transfer_queue.init(values.transfer_queue)
            try:
                yield
            finally:
                transfer_queue.close()
        except Exception as error:
            # Ray's errors are of their cause's type, too.
            cause = error.cause if isinstance(error, RayTaskError) else error
            if isinstance(error, CotuneError | OSError) and not isinstance(error, RayError):
                raise
            if isinstance(cause, CotuneError):
                raise cause from None
            traceback.print_exc()
            raise EngineError(
                f"veRL ended: {type(cause).__name__}: {one_line(str(cause))[:300]}; its logs are in {log} and "
                "Ray's session folder"
            ) from error
        finally:
            ray.shutdown()
            logging.getLogger("verl").handlers.clear()  # they write to the file


def joins_cluster(ray_init: Mapping[str, Any]) -> bool:
    """Return whether a run joins an existing Ray cluster instead of starting one.

    Args:
        ray_init: `ray_kwargs.ray_init` of veRL's configuration, whose address wins over RAY_ADDRESS.
    """
    address = ray_init.get("address") or os.environ.get("RAY_ADDRESS")
    return bool(address) and address != "local"  # for which Ray starts a new cluster


def _start_ray(values: DictConfig, folder: Path) -> None:
    """Start or join Ray as veRL's `run_ppo` does."""
    rollout = values.actor_rollout_ref.rollout
    if rollout.full_determinism:
        os.environ["VERL_FULL_DETERMINISM"] = "1"
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
        os.environ["PYTHONHASHSEED"] = str(rollout.seed)
    options = values.ray_kwargs.ray_init
    runtime_env = OmegaConf.merge(get_ppo_ray_runtime_env(values), options.get("runtime_env", {}))
    arguments: Any = OmegaConf.to_container(
        OmegaConf.create({**options, "runtime_env": runtime_env})
    )
    try:
        ray.init(**arguments)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise EngineError(
            f"Ray could not be started or reached: {one_line(str(error))[:300]}; fix it "
            "(RAY_ADDRESS, training.engine_args.ray_kwargs.ray_init), then: "
            f"{command_on(folder, 'resume')}"
        ) from error
