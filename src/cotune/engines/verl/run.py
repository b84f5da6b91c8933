"""Train a run file on veRL, from its checks to the summary."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import ray
import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from ray.exceptions import RayActorError, RayError, RayTaskError
from rich.console import Console
from verl.trainer.main_ppo import run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

from cotune.config.build import build_llm, initial_instruction
from cotune.config.run_file import RunConfig
from cotune.config.strategy import build_strategy
from cotune.engines.conclude import conclude
from cotune.engines.evaluation import Outcome, RunEvaluation
from cotune.engines.joint import check_identity
from cotune.engines.preflight import Preflight
from cotune.engines.run_start import (
    RunSettings,
    begin_run,
    choose_checkpoint,
    method_of,
    opened_run,
    run_parts,
    settings_of,
)
from cotune.engines.undamaged import Chosen
from cotune.engines.verl.arguments import check_no_teacher
from cotune.engines.verl.checkpoints import (
    VerlBest,
    complete_checkpoints,
    drop_later,
    load_state,
)
from cotune.engines.verl.cluster import check_copy, on_cluster
from cotune.engines.verl.hooks import VerlJoint
from cotune.engines.verl.settings import resume_from, verl_config
from cotune.engines.verl.worker import SECTION, Worker, make_worker, worker_of
from cotune.errors import ConfigError, CotuneError, EngineError
from cotune.experiments.report import ReportListener
from cotune.policy.policy_files import only_local, policy_path
from cotune.rollout.task_order import TaskOrder
from cotune.run.console import ConsoleListener
from cotune.run.record import Record
from cotune.run.run_dir import RunDir
from cotune.types import Distillation, Prompt
from cotune.utils.text import command_on, one_line

_CONSOLE = "console.log"
_LOOK_SECONDS = 10.0


@dataclass(frozen=True)
class VerlSetup:
    """veRL's configuration of a run file, checked before anything is written.

    Attributes:
        verl_config: veRL's configuration for a run from the start.
    """

    settings: RunSettings
    worker: Worker
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
    folder = RunDir(config.output).checkpoints_path
    check_copy(folder.parent)
    worker = make_worker(config, checked.environment)
    strategy = build_strategy(
        config.strategy,
        worker.environment,
        instruction=checked.instruction,
        seed=config.seed,
        limits=config.limits,
        tokens=worker.codec,
    )
    check_no_teacher(strategy.has_teacher)
    settings = settings_of(config, console, tuple(checked.llm_calls))
    return VerlSetup(settings, worker, _checked(config, folder, worker, strategy.distillation))


def _checked(
    config: RunConfig, folder: Path, worker: Worker, distillation: Distillation
) -> DictConfig:
    """Return veRL's configuration, validated by veRL itself."""
    found = verl_config(
        config,
        folder.absolute(),
        1 if config.training.single_gpu else max(1, torch.cuda.device_count()),
        bool(worker.environment.stop),
        distillation,
        worker.context_tokens,
    )
    auto_set_device(found)
    elsewhere = on_cluster(found.ray_kwargs.ray_init)
    if not elsewhere:
        only_local(policy_path(config.policy.path))  # weights and all
    if found.trainer.device == "cuda" and not (elsewhere or torch.cuda.is_available()):
        raise ConfigError(
            "training.engine is verl, but there is no GPU here; start it on a machine with one, name a "
            "running Ray cluster by RAY_ADDRESS, or set training.engine: trl"
        )
    try:
        validate_config(
            config=found,
            use_reference_policy=need_reference_policy(found),
            use_critic=need_critic(found),
        )
    except (AssertionError, ValueError, NotImplementedError) as error:
        raise ConfigError(f"training: veRL rejects it: {one_line(str(error))[:300]}") from error
    return found


def _check_ranks(found: DictConfig, checkpoint: Path) -> None:
    """Raise ConfigError if a checkpoint was sharded over a different number of ranks."""
    if not str(found.actor_rollout_ref.actor.strategy).startswith("fsdp"):
        return
    ranks = int(found.trainer.n_gpus_per_node) * int(found.trainer.nnodes)
    shards = len(list((checkpoint / "actor").glob("model_world_size_*_rank_*.pt")))
    if shards != ranks:
        raise ConfigError(
            f"{checkpoint}: holds the shards of {shards} ranks, and this run has {ranks}; resume on as "
            "many GPUs (training.engine_args.trainer.n_gpus_per_node, nnodes)"
        )


def _best(run: RunDir, worker: Worker) -> VerlBest:
    return VerlBest(run.best_path, worker.tokenizer, run.checkpoints_path.absolute() / "best")


def train(setup: VerlSetup, *, resume: bool) -> None:
    """Train to the end, from the newest checkpoint or from the start; evaluate and keep the best.

    The run itself takes place in a Ray actor, which writes the run folder and concludes the run;
    this process displays its output.

    Raises:
        CotuneError: the error that ended the run, as raised in the actor.
    """
    with opened_run(setup.settings, setup.worker.config.training.steps, resume=resume) as run:
        best = _best(run, setup.worker)
        folder = run.checkpoints_path.absolute()
        chosen = choose_checkpoint(complete_checkpoints(folder), best) if resume else None
        begin_run(run, setup.settings, best, chosen, lambda path: _check_state(setup, path))
        _train(run, chosen or Chosen(), setup, resume)


def _check_state(setup: VerlSetup, checkpoint: Path) -> None:
    """Raise ConfigError if a checkpoint is of a different run, or of a different number of ranks."""
    config = setup.worker.config
    tasks = setup.worker.environment.tasks("train")
    order = TaskOrder(tasks, config.training.questions_per_step, config.seed)
    if (state := load_state(checkpoint)) is not None:
        check_identity(state, {**order.identity, **setup.settings.identity})
    _check_ranks(setup.verl_config, checkpoint)


def _train(run: RunDir, chosen: Chosen, setup: VerlSetup, resume: bool) -> None:
    console = setup.settings.console
    assert console is not None  # a run file has one
    checkpoint = chosen.path
    if resume:
        drop_later(run.checkpoints_path.absolute(), _step_of(checkpoint))
    found = setup.verl_config
    if checkpoint is not None:
        resume_from(found, checkpoint)
    ours = {
        "run_folder": str(run.path.absolute()),
        "working_folder": os.getcwd(),
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "notices": list(chosen.notices),
        "terminal": console.is_terminal,
        "width": console.width,
    }
    with open_dict(found):
        found[SECTION] = ours
        found.data[SECTION] = ours
    with _following(run.path / _CONSOLE, console), _logged(run.path / "verl.log"):
        try:
            run_ppo(found, task_runner_class=ray.remote(Runner))
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            if isinstance(cause, CotuneError):
                raise cause from None
            raise EngineError(
                f"veRL ended: {type(cause).__name__}: {one_line(str(cause))[:300]}; its logs "
                f"are in {run.path / 'verl.log'} and Ray's session folder"
            ) from error
        except (ConnectionError, RuntimeError, ValueError) as error:
            if ray.is_initialized():
                raise
            raise EngineError(
                f"Ray could not be started or reached: {one_line(str(error))[:300]}; fix it "
                "(RAY_ADDRESS, training.engine_args.ray_kwargs.ray_init), then: "
                f"{command_on(run.path, 'resume')}"
            ) from error
        finally:
            ray.shutdown()


class Runner:
    """The trainer's process: a Ray actor that `run_ppo` starts."""

    def run(self, config: DictConfig) -> None:
        """Run from start to finish."""
        import transfer_queue as tq
        from verl.utils.logging_utils import configure_verl_logging

        configure_verl_logging()
        os.environ.setdefault(
            "TENSORBOARD_DIR", str(Path(config[SECTION].run_folder) / "tensorboard")
        )
        with open_dict(config):
            config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        ours = config[SECTION]
        worker = worker_of(ours)
        folder = Path(ours.run_folder)
        with (folder / _CONSOLE).open("a", encoding="utf-8") as file:
            console = Console(
                file=file, force_terminal=bool(ours.terminal), width=int(ours.width) or None
            )
            steps = worker.config.training.steps
            run = Record.open(
                folder,
                listeners=[ConsoleListener(console, steps), ReportListener(folder)],
                rollouts_every=worker.config.logging.trajectories_every,
                total_steps=steps,
            )
            tq.init(config.transfer_queue)
            try:
                _run(worker.config, run, worker, config, console)
            finally:
                tq.close()


def _run(
    config: RunConfig,
    run: Record,
    worker: Worker,
    found: DictConfig,
    console: Console,
) -> None:
    from cotune.engines.verl.rollouts import Manager
    from cotune.engines.verl.trainer import JointTrainer

    ours = found[SECTION]
    checkpoint = None if ours.checkpoint is None else Path(ours.checkpoint)
    settings, method, environment = (
        settings_of(config, console),
        method_of(config),
        worker.environment,
    )
    initial = Prompt(initial_instruction(method.instruction, environment))
    evaluation = RunEvaluation(config.evaluation, initial, run, _best(run, worker), report_scores)
    parts = run_parts(
        settings,
        method,
        environment,
        worker.codec,
        config.limits,
        worker.rewards,
        llm=build_llm(config.proposer, config.seed, run),
        record=run,
    )
    joint = VerlJoint(parts, worker, evaluation)
    joint.notices = tuple(ours.notices)
    made: Any = JointTrainer  # veRL registers its base by a decorator that hides the type
    trainer: JointTrainer = made(config=found)
    trainer.joint, failed = joint, True
    try:
        trainer.init()
        manager = cast(
            Manager,
            Manager.create(
                config=found,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            ),
        )
        trainer.take_manager(manager)
        joint.began(None if checkpoint is None else load_state(checkpoint))
        watch(manager.agent_loop_workers, console)
        # If the budget has been raised since, it is no longer spent.
        if not (joint.ended and joint.budget_is_spent()):
            trainer.fit(manager)
        outcome: Outcome = evaluation.finish(joint)
        failed = False
    finally:
        if (tracking := getattr(trainer, "logger", None)) is not None:
            tracking.finish(exit_code=int(failed))
    conclude(settings, run, outcome, environment)


def report_scores(joint: VerlJoint, scores: Mapping[str, float]) -> None:
    """Log an evaluation's scores in veRL's trackers, as eval/em and test/em."""
    tracking = getattr(joint.trainer, "logger", None)
    if tracking is not None:
        named = {name.replace("_", "/", 1): value for name, value in scores.items()}
        tracking.log(data=named, step=joint.batches)


def watch(workers: Sequence[Any], console: Console) -> None:
    """End this process if an agent loop's process dies; veRL would wait forever."""

    def look() -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            try:
                ray.get([worker.__ray_ready__.remote() for worker in workers])
            except RayActorError as error:
                reason = one_line(str(error))[:300]
                console.print(f"a process of veRL's agent loops died: {reason}", markup=False)
                os._exit(1)
            except RayError:
                return  # the run is over

    threading.Thread(target=look, daemon=True).start()


def _step_of(checkpoint: Path | None) -> int:
    return -1 if checkpoint is None else int(checkpoint.name.rpartition("_")[2])


@contextlib.contextmanager
def _following(path: Path, shown: Console) -> Generator[None]:
    """Display what is appended to a file while the block runs."""
    path.touch()
    begin = path.stat().st_size
    over = threading.Event()
    stream = shown.file  # before this process's output is redirected

    def follow() -> None:
        with path.open(encoding="utf-8", errors="replace") as file:
            file.seek(begin)
            while True:
                last = over.wait(0.2)
                if (text := file.read()) and not shown.quiet:
                    stream.write(text)
                    stream.flush()
                if last:
                    return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def _logged(path: Path) -> Generator[None]:
    """Redirect what veRL prints in this process to a file."""
    with path.open("a", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        yield
    sys.stdout.flush()
