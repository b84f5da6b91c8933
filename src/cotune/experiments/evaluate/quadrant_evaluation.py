"""Roll out a run's quadrants: {initial, trained weights} × {initial, best instruction}."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from cotune.config.build import initial_instruction, run_environment
from cotune.config.resuming import recorded_config
from cotune.config.run_checks import check_prompts
from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.experiments.evaluate.evaluating import (
    EvaluationOptions,
    kept_best,
    on_questions,
    show_as_trained,
    values_of,
)
from cotune.experiments.evaluate.quadrants import (
    Quadrants,
    hash_of_best,
    relative,
)
from cotune.experiments.evaluate.question_sets import question_sets
from cotune.experiments.evaluate.run_policy import run_policy
from cotune.rollout.coordinator import Coordinator
from cotune.run.run_dir import RunDir
from cotune.run.scores import measure_of
from cotune.types import Prompt, Trajectory


def check_options(options: EvaluationOptions) -> None:
    """Raise ConfigError for options that quadrants do not have."""
    if options.benchmarks or options.metrics:
        given = "--benchmark" if options.benchmarks else "--metric"
        raise ConfigError(
            f"{given} does not go with --quadrants, which score the run's own questions by its reward; "
            "leave one of them out"
        )
    if options.untrained:
        raise ConfigError(
            "--policy initial does not go with --quadrants, which score it and the best policy; "
            "leave one of them out"
        )
    if options.samples == 0:
        raise ConfigError("--samples is 0; with --quadrants expected 1 or more, or auto")


def evaluate_quadrants(
    config: RunConfig,
    run: RunDir,
    options: EvaluationOptions,
    since: RunDir | None = None,
) -> Quadrants:
    """Score both policies of a run under both instructions, greedily and sampled; write nothing.

    Draws are those of `evaluate_run`. Equal policies or instructions are rolled out once. Both policies
    are in memory at the same time, to compute the divergence between them.

    Args:
        config: the run file; its limits, seed and environment apply.
        run: the run folder; only best/ is read.
        options: its split, samples, temperature and limit apply.
        since: the first of several runs that each continued the one before: its policy and instruction
            are the initial ones. None is this run.

    Raises:
        ConfigError: there is no best policy, the questions are not available, or a prompt is too
            long; before any rollout.
    """
    check_options(options)
    # What the method found, even if the initial instruction is kept in its place.
    found_best = kept_best(run).as_found.instruction
    first = config if since is None else recorded_config(since)
    environment = run_environment(config)
    (questions,) = question_sets(config, environment, options.split, (), options.limit)
    if questions.rewards is not None:
        show_as_trained(questions.rewards, config.training)
    k = options.samples_of(len(questions.tasks))
    initial = initial_instruction(first.instruction, environment)
    prompts = {"plain": Prompt(initial), "prompted": Prompt(found_best)}
    trained = since is not None or not config.training.frozen
    started = config.model_copy(update={"policy": first.policy})
    policies = {"initial": _policy(started, environment, options, None)}
    if trained:
        policies["trained"] = _policy(config, environment, options, run.best_path)
    for policy in policies.values():
        for prompt in prompts.values():
            check_prompts(
                environment, policy.codec, prompt.instruction, policy.settings.limits,
                [questions.name], strategy="static",
            )  # fmt: skip
    temperature = options.temperature or config.training.temperature
    cost = Counter[str]()

    def roll_out(policy: Coordinator, prompt: Prompt) -> list[Trajectory]:
        """Add its rewards, and return one sampled rollout of each question."""
        coordinator, first = on_questions(policy, questions), list[Trajectory]()

        def keep(rollouts: Sequence[Trajectory]) -> None:
            tokens = sum(t.generated_tokens for t in rollouts)
            cost.update(rollouts=len(rollouts), generated_tokens=tokens)
            # Without its text, so that many fit into memory.
            first.extend(replace(t, turns=(), logprobs=()) for t in rollouts[::k])

        for decoding, size in (("greedy", 1), ("sampled", k)):
            first.clear()
            values = values_of(
                coordinator, questions, prompt, {"reward": lambda ts: [t.reward for t in ts]},
                size, greedy=decoding == "greedy", seen=keep,
            )  # fmt: skip
            rewards[policy, prompt][decoding] = [sum(each) / size for each in values["reward"]]
        return first

    rewards: dict[tuple[Coordinator, Prompt], dict[str, list[float]]] = defaultdict(dict)
    divergences: dict[Prompt, list[tuple[float, int]]] = {}
    for prompt in dict.fromkeys(prompts.values()):
        rollouts = [roll_out(policy, prompt) for policy in policies.values()]
        if trained:
            divergences[prompt] = _divergences(policies, rollouts[-1], temperature)
    return Quadrants.measured(
        split=questions.name,
        measure=measure_of(environment, questions.rewards),
        samples=k,
        temperature=temperature,
        initial=initial,
        best=found_best,
        trained=trained,
        questions=[task.id for task in questions.tasks],
        strata=[task.stratum for task in questions.tasks],
        rewards={
            f"{weights}_{name}": rewards[policies.get(weights, policies["initial"]), prompt]
            for weights in ("initial", "trained")
            for name, prompt in prompts.items()
        },
        divergences={name: divergences[p] for name, p in prompts.items() if p in divergences},
        since="" if since is None else relative(since.path, run.path),
        **cost,
        of=hash_of_best(run.path),
    )


def _policy(
    config: RunConfig, environment: Any, options: EvaluationOptions, best: Path | None
) -> Coordinator:
    return run_policy(config, environment, best=best, temperature=options.temperature)


def _divergences(
    policies: dict[str, Coordinator], rollouts: Sequence[Trajectory], temperature: float
) -> list[tuple[float, int]]:
    """Return the divergence of the trained policy from the initial one, as `Quadrants` has it."""
    from cotune.policy.divergence import rollout_divergences

    trained, initial = (cast(Any, policies[name].sampler) for name in ("trained", "initial"))
    with trained.model() as p, initial.model() as q, trained.casts():
        return rollout_divergences(p, q, rollouts, temperature)
