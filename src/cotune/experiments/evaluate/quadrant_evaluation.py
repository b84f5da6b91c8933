"""Roll out a run's quadrants: {initial, trained weights} × {initial, best instruction}."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from cotune.config.build import initial_instruction, run_environment
from cotune.config.resuming import recorded_config
from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.experiments.evaluate.evaluating import EvaluationOptions, best_record, evaluate
from cotune.experiments.evaluate.quadrants import WEIGHTS, Quadrants, hash_of_best, relative
from cotune.experiments.evaluate.question_sets import question_sets
from cotune.experiments.evaluate.run_policy import run_policy
from cotune.rollout.coordinator import Coordinator
from cotune.run.run_dir import RunDir
from cotune.run.scores import measure_of
from cotune.types import Prompt, Trajectory


def check_options(options: EvaluationOptions) -> None:
    """Raise ConfigError for options that quadrants do not have."""
    other = "--benchmark" if options.benchmarks else ""
    other = "--policy initial" if options.policy == "initial" else other
    if other:
        raise ConfigError(
            f"{other} does not go with --quadrants, which score both policies on the run's own questions; "
            "leave one of them out"
        )
    if len(options.questions) + (options.split is not None) > 1:
        raise ConfigError("--quadrants score one set of questions; give --split or one --questions")
    if options.samples == 0:
        raise ConfigError("--samples is 0; with --quadrants expected 1 or more")


def evaluate_quadrants(
    config: RunConfig, run: RunDir, options: EvaluationOptions, since: RunDir | None = None
) -> Quadrants:
    """Score both policies of a run under both instructions, greedily and sampled; write nothing.

    Equal policies or instructions are rolled out once. Both policies are in memory at the same time, to
    compute the divergence between them.

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
    # The method's own best, even if the initial instruction is kept in its place.
    best = best_record(run).method_best.instruction
    first = config if since is None else recorded_config(since)
    environment = run_environment(config)
    (questions,) = question_sets(config, environment, options)
    k = options.samples
    initial = initial_instruction(first.instruction.text, environment)
    prompts = {"plain": Prompt(initial), "prompted": Prompt(best)}
    trained = since is not None or not config.training.frozen
    began = config.model_copy(update={"policy": first.policy})
    temperature = options.temperature
    policies = {"initial": run_policy(began, environment, temperature=temperature)}
    if trained:
        policies["trained"] = run_policy(
            config, environment, best=run.best_path, temperature=temperature
        )
    cost = Counter[str]()
    sampled: dict[Prompt, list[Trajectory]] = {}

    def count(prompt: Prompt, greedy: bool, rollouts: Sequence[Trajectory]) -> None:
        tokens = sum(rollout.generated_tokens for rollout in rollouts)
        cost.update(rollouts=len(rollouts), generated_tokens=tokens)
        if not greedy:
            # One of each question, without its text, so that many fit into memory.
            slim = [replace(rollout, turns=(), logprobs=()) for rollout in rollouts[::k]]
            sampled.setdefault(prompt, []).extend(slim)

    scores = {}
    for weights, policy in policies.items():
        sampled.clear()
        reward = {"reward": lambda rollouts: [rollout.reward for rollout in rollouts]}
        scores[weights] = evaluate(policy, prompts.values(), questions, k, reward, count)
    divergences: dict[Prompt, list[tuple[float, int]]] = {}
    if trained:
        at = temperature or config.training.temperature
        pair = policies["trained"], policies["initial"]
        divergences = {prompt: policy_divergences(*pair, sampled[prompt], at) for prompt in sampled}
    rewards = {
        f"{weights}_{name}": {
            decoding: [sum(row) / len(row) for row in rows]
            for decoding, rows in scores.get(weights, scores["initial"])[prompt]["reward"].items()
        }
        for weights in WEIGHTS
        for name, prompt in prompts.items()
    }
    by_prompt = {name: divergences[p] for name, p in prompts.items() if p in divergences}
    return Quadrants(
        split=questions.name,
        measure=measure_of(environment, questions.rewards),
        samples=k,
        temperature=temperature or config.training.temperature,
        initial=initial,
        best=best,
        trained=trained,
        questions=tuple(task.id for task in questions.tasks),
        strata=tuple(task.stratum for task in questions.tasks),
        rewards=cast(Any, rewards),  # pydantic makes tuples of the lists
        divergences=cast(Any, by_prompt),
        since="" if since is None else relative(since.path, run.path),
        **cost,
        of=hash_of_best(run.path),
    )


def policy_divergences(
    trained: Coordinator,
    initial: Coordinator,
    rollouts: Sequence[Trajectory],
    temperature: float,
) -> list[tuple[float, int]]:
    """Return the divergence of a policy from the initial one on rollouts of its own, as `Quadrants` has it."""
    from cotune.policy.divergence import rollout_divergences

    samplers = cast(Any, trained.sampler), cast(Any, initial.sampler)
    with samplers[0].model() as p, samplers[1].model() as q, samplers[0].casts():
        return rollout_divergences(p, q, rollouts, temperature)
