"""`cotune baseline`: run a method that trains nothing on a run file's test questions."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cotune.config import run_checks
from cotune.config.build import build_rewards, initial_instruction, run_environment
from cotune.config.run_file import LLMConfig, RunConfig, dump_config
from cotune.engines.run_summary import arm_figures
from cotune.environments.search import SearchEnvironment
from cotune.errors import ConfigError, Stopped
from cotune.experiments.baselines import BASELINES
from cotune.experiments.baselines.agent import Agent
from cotune.experiments.baselines.base import (
    UNSCORED,
    AnswerForm,
    Bench,
    Solved,
    answer_form,
    solve,
)
from cotune.experiments.baselines.chat import Chat, EndpointChat, PolicyChat
from cotune.experiments.evaluate.run_policy import run_policy
from cotune.llm.client import OPENAI_URL, OpenAIClient, OpenAIOptions
from cotune.rollout.episode import score_all
from cotune.run.full_disk import AGAIN, full_disk_explained
from cotune.run.journal import RunJournal, score_table, write_score
from cotune.run.ledger import Ledger
from cotune.run.run_dir import RunDir
from cotune.run.scores import Score, measure_of, score_trajectories
from cotune.types import Assignment, Limits, Prompt, StopReason, Trajectory

if TYPE_CHECKING:
    from cotune.rollout.coordinator import Coordinator

_STATEFUL = ("tools", "trl", "verifiers")
_TOGETHER = 32  # questions at an endpoint between two lines of progress


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The endpoint options of the command line; without a model there is no endpoint."""

    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None

    def options(self, llm: LLMConfig | None, limits: Limits) -> OpenAIOptions | None:
        """Return the client's options: greedy, replies within `limits.turn_tokens`.

        None without a model. If the run file's `llm` is an endpoint, its prices, budget, retries and
        time-out apply. Its key is only sent to its own `base_url`: another one needs its own key.

        Raises:
            ConfigError: an option is invalid; the message names it.
        """
        if self.model is None:
            given = {"--base-url": self.base_url, "--api-key-env": self.api_key_env}
            if names := [name for name, value in given.items() if value is not None]:
                raise ConfigError(f"{names[0]} is given without --model; add --model")
            return None
        try:
            base = llm if isinstance(llm, OpenAIOptions) else OpenAIOptions(model=self.model)
            url = self.base_url or base.base_url
            same = (url or OPENAI_URL).rstrip("/") == (base.base_url or OPENAI_URL).rstrip("/")
            key = self.api_key_env or (base.api_key_env if same else None)
            return replace(
                base,
                model=self.model,
                base_url=url,
                api_key_env=key,
                temperature=None if base.temperature is None else 0.0,
                max_tokens=limits.turn_tokens,
            )
        except ValueError as error:
            raise ConfigError(f"--model, --base-url or --api-key-env: {error}") from error


def run_baseline(name: str, config: RunConfig, console: Console, endpoint: Endpoint) -> Path:
    """Score a baseline and write its run folder; return the folder.

    Raises:
        ConfigError: an option or a field is invalid; nothing is written.
        LLMError, BudgetError: an endpoint did not answer one of the questions.
        Stopped: Ctrl-C.
    """
    if RunDir.is_run(config.output):
        raise ConfigError(
            f"output: {config.output} holds a run; choose another output, or remove the folder"
        )
    RunDir.check_free(config.output)

    def again() -> str:
        return f"remove {config.output}, and {AGAIN}" if RunDir.is_run(config.output) else AGAIN

    try:
        with full_disk_explained(config.output, again):
            return _run(_BaselineRun(name, config, endpoint), console)
    except KeyboardInterrupt:
        if RunDir.is_run(config.output):
            raise Stopped(f"stopped; remove {config.output} to start again") from None
        raise Stopped("stopped before anything was written") from None


def _run(ready: "_BaselineRun", console: Console) -> Path:
    name, config, endpoint = ready.name, ready.config, ready.endpoint
    run = RunDir.create(config.output, dump_config(config))
    where = f" at {endpoint.base_url or OPENAI_URL}" if endpoint else ""
    console.print(
        f"{config.name}: {name} on {config.environment.kind}, seed {config.seed}; model "
        f"{ready.model}{where}; {len(ready.tasks)} test questions; folder {run.path}",
        markup=False,
        highlight=False,
    )
    if ready.note:
        console.print(f"note: {ready.note}", markup=False, highlight=False, soft_wrap=True)
    with Ledger(run.ledger_path) as ledger:
        ledger.begin_attempt(None)
        result = ready.measure(run, ledger, console)
        ready.write_summary(run, result, ledger)
    from cotune.experiments.report import write_report

    report = write_report(run.path)
    console.print(score_table(f"Held-out {result.measure}", [(name, result)]))
    console.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)
    return run.path


class _BaselineRun:
    """A baseline with everything it needs, loaded and checked, cheap checks first.

    Raises ConfigError for an option or a field that is invalid. Writes nothing until `measure`.

    Attributes:
        endpoint: the endpoint that answers; None for the run file's policy.
        model: the model's name, as given.
        coordinator: rolls out a local policy; None for an endpoint.
    """

    def __init__(self, name: str, config: RunConfig, endpoint: Endpoint) -> None:
        if name not in BASELINES:
            raise ConfigError(f"baseline is {name!r}; expected one of {', '.join(BASELINES)}")
        self.name, self.config = name, config
        self.endpoint = endpoint.options(config.llm, config.limits)
        run_checks.check_tokens(config.training.engine_args)
        kind, method = config.environment.kind, BASELINES[name]
        environment = run_environment(config)
        self.environment, self.rewards = environment, build_rewards(config.rewards)
        instruction = initial_instruction(config.instruction, environment)
        searched = isinstance(environment, SearchEnvironment) and environment.retriever is not None
        if method.retrieves and not searched:
            raise ConfigError(
                f"environment.kind is {kind}, which has no retriever for {name}; expected geo or "
                "search, with a search engine"
            )
        self.agent = method is Agent
        if self.agent and self.endpoint is not None and (environment.tools or kind in _STATEFUL):
            raise ConfigError(
                f"environment.kind is {kind}, whose tools are called through a chat template; agent "
                "with --model expects geo, scaffold, search, math or another without tools"
            )
        form = AnswerForm("") if self.agent else answer_form(environment, instruction, kind)
        run_checks.check_instruction(environment, instruction)
        run_checks.check_rewards(self.rewards, environment, instruction, ("test",))
        run_checks.check_retriever(environment)
        self.tasks = environment.tasks("test")
        if not self.tasks:
            raise ConfigError(
                "the test split has no questions, and a baseline is scored on it; add some"
            )
        self.coordinator = None if self.endpoint else self._local(instruction)
        with Ledger(":memory:") as trial:  # an endpoint's key is checked before anything is written
            self.chat = self._chat(trial)
        self.baseline = method(Bench(environment, instruction, form, config.limits, self.chat))
        self.model = self.endpoint.model if self.endpoint else config.policy.path

    @property
    def note(self) -> str:
        """A warning if the scores say little about the method; "" otherwise."""
        # A single response under the run file's instruction is what its environment asks for.
        own = self.agent or not (self.baseline.retrieves or self.baseline.bench.form.brief)
        if own or self.coordinator is None or not self.model.startswith("bundled:"):
            return ""
        return (
            f"the bundled policy was not trained on the prompt of {self.name}: its score shows that "
            "the baseline runs, and nothing about the method"
        )

    def _chat(self, ledger: Ledger) -> Chat:
        limits = self.config.limits
        if self.endpoint is not None:
            return EndpointChat(OpenAIClient(self.endpoint, ledger), limits)
        assert self.coordinator is not None
        codec, sampler = self.coordinator.codec, self.coordinator.sampler
        return PolicyChat(codec, sampler, limits, self.config.training.rows_per_call)

    def _local(self, instruction: str) -> "Coordinator":
        """Load the run file's policy into this process; check that episodes fit into its context."""
        config, environment, limits = self.config, self.environment, self.config.limits
        coordinator = run_policy(config, environment, instruction, rewards=self.rewards)
        run_checks.check_context(coordinator.settings.context_tokens, limits)
        if self.agent:
            run_checks.check_prompts(
                environment, coordinator.codec, instruction, limits, ("test",), strategy="static"
            )
        return coordinator

    def measure(self, run: RunDir, ledger: Ledger, console: Console) -> Score:
        """Answer and score the test questions; write events and trajectories into the folder."""
        self.chat = self._chat(ledger)
        journal = RunJournal(run, console, total_steps=0, trajectories_every=0)
        name = self.name
        journal.event("run_started", 0, config=self.config.name, strategy=name, baseline=name)
        if self.note:
            run.event("notice", 0, text=self.note)
        trajectories = self._rolled_out(ledger, console)
        result = score_trajectories(trajectories, measure_of(self.environment, self.rewards))
        write_score(journal, 0, trajectories, result, "test", "after", trained=0)
        journal.event("run_finished", 0)
        return result

    def _rolled_out(self, ledger: Ledger, console: Console) -> list[Trajectory]:
        """Return the scored trajectories of the test questions, answered some at a time."""
        tasks, started = self.tasks, time.monotonic()
        together = self.config.training.rows_per_call if self.coordinator else _TOGETHER
        done: list[Trajectory] = []
        retriever, top_k = None, 3
        if isinstance(self.environment, SearchEnvironment):
            retriever, top_k = self.environment.retriever, self.environment.top_k

        def tell(finished: int, asked: int) -> None:
            seconds = int(time.monotonic() - started)
            console.print(
                f"  [dim]{seconds // 60:02d}:{seconds % 60:02d}[/] {len(done) + finished} of "
                f"{len(tasks)} questions finished; {asked} asked",
                highlight=False,
            )

        for first in range(0, len(tasks), together):
            part, begun = tasks[first : first + together], time.monotonic()
            if self.agent and self.coordinator is not None:
                found = self.coordinator.evaluate(part)
                tell(len(part), len(part))
                tokens = sum(t.generated_tokens for t in found)
            else:
                solved = solve(self.baseline, part, self.chat, retriever, top_k, tell)
                found = self._scored(solved, first)
                tokens = sum(reply.tokens for one in solved for reply in one.replies)
            ledger.add_rollouts("evaluate", len(part), tokens, time.monotonic() - begun)
            done += found
        return done

    def _scored(self, solved: Sequence[Solved], first: int) -> list[Trajectory]:
        """Return trajectories with all turns, scored by the turns that give the answer."""
        instruction = self.baseline.instruction
        whole = [trajectory(one, instruction, i) for i, one in enumerate(solved, first)]
        answering = [_answering(t, one) for t, one in zip(whole, solved, strict=True)]
        scored = score_all(answering, self.environment)
        if self.rewards is not None:
            scored = self.rewards(scored, self.environment)
        return [
            replace(
                t,
                reward=found.reward,
                answer=found.answer,
                parts=found.parts,
                feedback=found.feedback,
                logged=found.logged,
                stop=StopReason.TURN_LIMIT if found.answer is None else StopReason.ANSWERED,
            )
            for t, found in zip(whole, scored, strict=True)
        ]

    def write_summary(self, run: RunDir, result: Score, ledger: Ledger) -> None:
        """Write summary.json in the format of a trained run's."""
        config, instruction = self.config, self.baseline.instruction if self.agent else None
        plain = result if self.agent else None
        arm = arm_figures(run, ledger, result, None, plain, steps=0, instruction=instruction)
        run.write_summary(
            {
                "name": config.name,
                "strategy": self.name,
                "baseline": self.name,
                "seed": config.seed,
                "llm": self.model if self.endpoint else "none",
                "policy": None if self.endpoint else config.policy.path,
                "model": self.model,
                "note": self.note,
                "arms": {self.name: {**arm, "compute": "none"}},
                "best_instruction": instruction,
            }
        )


def trajectory(solved: Solved, instruction: str, group: int) -> Trajectory:
    """Return a question's turns as an unscored trajectory.

    Its prompt is the first request's, and its completion all that the model generated; both are empty
    for an endpoint, which returns no token ids.
    """
    prompt = Prompt(instruction)
    ids = tuple(token for reply in solved.replies for token in reply.ids)
    asked = solved.replies[0].prompt_ids if solved.replies else ()
    return Trajectory(
        assignment=Assignment(solved.task, prompt, prompt, "i0", group),
        sampled_prompt_ids=asked,
        prompt_ids=asked,
        completion_ids=ids,
        mask=(1,) * len(ids),
        logprobs=(0.0,) * len(ids),
        turns=solved.turns,
        stop=StopReason.ANSWERED,
        row=group,
    )


def _answering(whole: Trajectory, solved: Solved) -> Trajectory:
    """Return the trajectory of the turns that an answer is read from."""
    written = [turn for turn in solved.turns if turn.action != "retrieve"]
    pairs = list(zip(written, solved.replies, strict=True))
    kept = [(turn, reply) for turn, reply in pairs if turn.action not in UNSCORED]
    ids = tuple(token for _, reply in kept for token in reply.ids)
    return replace(
        whole,
        turns=tuple(turn for turn, _ in kept),
        completion_ids=ids,
        mask=(1,) * len(ids),
        logprobs=(0.0,) * len(ids),
    )
