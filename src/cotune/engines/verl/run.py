"""Train a run file on veRL, from its checks to the summary: the joint run, and how it is started.

The trainer runs in this process; the policy's workers and the agent loops are Ray's.
"""

import contextlib
import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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

from cotune.config.build import initial_instruction
from cotune.engines.evaluation import Outcome, RunEvaluation, conclude
from cotune.engines.joint import Joint, Parts
from cotune.engines.preflight import Preflight
from cotune.engines.run_start import begin_joint, opened_run, run_file_parts
from cotune.engines.verl.checkpoints import VerlBest, keep_newest
from cotune.engines.verl.processes import LOADED_RUNS, SECTION, LoadedRun
from cotune.engines.verl.settings import verl_config
from cotune.errors import ConfigError, CotuneError, EngineError
from cotune.rollout.task_order import TaskOrder
from cotune.run.checkpoints import save_state
from cotune.run.run_dir import RunDir
from cotune.types import Assignment, Prompt, Sampling, Task, Trajectory
from cotune.utils.text import one_line

if TYPE_CHECKING:
    from cotune.engines.verl.trainer import JointTrainer

_LOOK_SECONDS = 10.0
# veRL's metrics, by the names that runs of every engine use.
_NAMES = {
    "actor/pg_loss": "loss",
    "actor/grad_norm": "grad_norm",
    "actor/entropy": "entropy",
    "actor/kl_loss": "kl",
    "actor/lr": "learning_rate",
    "actor/signed_masked_share": "p2o/ratio_masked_share",
}


class VerlJoint(Joint):
    """Run a strategy at veRL's hooks, in the trainer's process only.

    Attributes:
        evaluation: evaluates before a step's rollouts, if due; set once the run folder is open.
        trainer: veRL's trainer; set by `bind`, as is what rolls out outside its batches.
    """

    evaluation: RunEvaluation
    trainer: "JointTrainer"
    _apart: Callable[..., list[Trajectory]]

    def __init__(self, parts: Parts, loaded_run: LoadedRun, verl_config: DictConfig) -> None:
        training = loaded_run.config.training
        tasks = parts.environment.tasks("train")
        order = TaskOrder(tasks, training.questions_per_step, parts.settings.seed)
        super().__init__(
            parts,
            order,
            training.steps,
            training.group_size,
            training.temperature,
            lambda *rollouts: self._apart(*rollouts),
        )
        self.loaded_run = loaded_run
        self.verl_config = verl_config
        self.metrics: dict[str, float] = {}
        self._sent = 0.0

    def bind(self, trainer: "JointTrainer", apart: Callable[..., list[Trajectory]]) -> None:
        """Bind the trainer, and the function that rolls out outside its batches."""
        self.trainer = trainer
        self._apart = apart

    # ---- a step, in the order of veRL's hooks

    def begin_step(self) -> None:
        """Evolve, then evaluate: weights are synced and no rollout has been requested yet."""
        self.metrics = self.coordinator.evolve(self.progress(self.batches + 1))
        self.evaluation(self, self.batches)

    def assign(self, task_ids: Sequence[str]) -> tuple[list[Assignment], Sampling]:
        """Return the assignments of a step's questions, and their sampling parameters."""
        step = self.batches + 1
        tasks: list[Task] = self.order.step(step)
        if list(task_ids) != [task.id for task in tasks]:
            raise EngineError(f"veRL's data loader did not send the questions of step {step}")
        self._sent = time.monotonic()
        assignments = self.coordinator.assign(tasks, self.group_size, self.progress(step))
        return assignments, self.coordinator.next_sampling("train")

    def take(self, trajectories: Sequence[Trajectory]) -> None:
        """Record a step's rollouts, which have returned but are not trained on yet."""
        progress = self.progress(self.batches + 1)  # whose `rollouts_left` includes this batch
        self.coordinator.count("train", trajectories, time.monotonic() - self._sent)
        self.metrics.update(self.coordinator.observe(trajectories, self.group_size, progress))

    def end_step(self, metrics: dict[str, Any]) -> bool:
        """Finish a step after training; return whether it is the last one within the budget."""
        self.batches += 1
        verl_metrics = {k: float(v) for k, v in metrics.items() if isinstance(v, int | float)}
        renamed = {_NAMES[name]: value for name, value in verl_metrics.items() if name in _NAMES}
        optimizer_step = float(self.batches * self.loaded_run.config.training.mini_batches)
        row = {**verl_metrics, **renamed, **self.metrics, "optimizer_step": optimizer_step}
        self.parts.record.metrics(self.batches, row)
        metrics.update(self.metrics)
        self.ended = self.budget_is_spent()
        return self.ended

    def save(self, checkpoint: Path) -> None:
        """Save cotune's state after veRL has written its half of a checkpoint."""
        save_state(checkpoint, self.state_dict())
        keep_newest(checkpoint.parent, self.loaded_run.config.training.keep_checkpoints)
        self.parts.record.event("saved", self.batches)


def prepare(checked: Preflight, console: Console) -> VerlJoint:
    """Check a run file's veRL configuration; write nothing, start nothing."""
    config = checked.config
    context = checked.context_tokens
    parts = run_file_parts(checked, console)
    folder = RunDir(config.output).checkpoints_path.absolute()
    gpus = 1 if config.training.single_gpu else max(1, torch.cuda.device_count())
    values = verl_config(config, folder, gpus, context)
    auto_set_device(values)
    try:
        validate_config(
            config=values,
            use_reference_policy=need_reference_policy(values),
            use_critic=need_critic(values),
        )
    except (AssertionError, ValueError, NotImplementedError) as error:
        raise ConfigError(f"training: veRL rejects it: {one_line(str(error))[:300]}") from error
    loaded_run = LoadedRun(config, checked.environment, checked.rewards, checked.codec, context)
    return VerlJoint(parts, loaded_run, values)


# ---- training


def train(joint: VerlJoint, *, resume: bool) -> None:
    """Train to the end, from the newest checkpoint or from the start; evaluate and keep the best."""
    loaded_run = joint.loaded_run
    config = loaded_run.config
    values = joint.verl_config
    settings = joint.parts.settings
    with opened_run(settings, config.training.steps, resume=resume) as record:
        kept_pieces = record.checkpoints_path.absolute() / "best"
        best = VerlBest(record.best_path, loaded_run.codec.tokenizer, kept_pieces)
        checkpoint = begin_joint(joint, config, record, best, resume=resume)
        if checkpoint is not None:
            values.trainer.resume_mode = "resume_path"
            values.trainer.resume_from_path = str(checkpoint.absolute())
        initial = Prompt(initial_instruction(config.instruction.text, loaded_run.environment))
        joint.evaluation = RunEvaluation(config.evaluation, initial, record, best, report_scores)
        run_folder = str(record.path.absolute())
        # By this section, other processes find the run.
        section = {"run_folder": run_folder, "working_folder": os.getcwd()}
        with open_dict(values):
            values[SECTION] = section
            values.data[SECTION] = section
        LOADED_RUNS[run_folder] = loaded_run
        with _on_ray(values, record.path, settings.console):
            outcome = _fit(joint)
        conclude(settings, record, outcome, loaded_run.environment)


def _fit(joint: VerlJoint) -> Outcome:
    """Train, and score the result."""
    # Imported here: they register things in veRL that need its workers' packages.
    from cotune.engines.verl.trainer import JointTrainer, Manager

    make_trainer: Any = JointTrainer  # veRL registers its base by a decorator that hides the type
    trainer: JointTrainer = make_trainer(config=joint.verl_config)
    trainer.joint = joint
    failed = True
    try:
        trainer.init()
        manager = cast(
            Manager,
            Manager.create(
                config=joint.verl_config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            ),
        )
        trainer.take_manager(manager)
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
    """Interrupt the block if an agent loop's process dies; veRL would wait forever."""
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
    """Start Ray and veRL's queue for the block; what veRL prints goes to verl.log in the run folder."""
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
            _start_ray(values)
            with open_dict(values):
                values.transfer_queue.enable = True
            OmegaConf.resolve(values)
            transfer_queue.init(values.transfer_queue)
            try:
                yield
            finally:
                transfer_queue.close()
        except Exception as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            # Errors that users can fix, such as a full disk, which has a number.
            if isinstance(cause, CotuneError) or getattr(cause, "errno", None):
                raise cause from None
            traceback.print_exc()
            raise EngineError(
                f"veRL ended: {type(cause).__name__}: {one_line(str(cause))[:300]}; its logs are in {log} and "
                "Ray's session folder"
            ) from error
        finally:
            ray.shutdown()
            logging.getLogger("verl").handlers.clear()  # they write to the file


def _start_ray(values: DictConfig) -> None:
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
    ray.init(**arguments)
