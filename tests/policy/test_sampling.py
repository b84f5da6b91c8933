"""Both samplers against the model itself, on tiny models with a token a character."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import GPTNeoConfig, GPTNeoForCausalLM, MistralConfig, MistralForCausalLM

from cotune.errors import EngineError
from cotune.policy.codec import HFCodec
from cotune.policy.sampling import CachedSampler, GenerateSampler, StopFinder, draw, policy_sampler
from cotune.protocols import Sampler
from cotune.rollout.drivers import run_episodes
from cotune.rollout.episode import new_episodes
from cotune.types import Assignment, Limits, Prompt, Sample, SampleRequest, Sampling, Trajectory
from tests.policy.tiny import Letters, opens, tiny_model, tiny_tokenizer
from tests.scripted import CharacterCodec

TOKENIZER = tiny_tokenizer()
CODEC = HFCodec(TOKENIZER)
PAD = int(TOKENIZER.pad_token_id)  # type: ignore[arg-type]
MODEL = tiny_model(TOKENIZER, layers=3)
WORLD = Letters()
LIMITS = Limits(turns=4, turn_tokens=16, observation_tokens=8, trajectory_tokens=64)
INSTRUCTIONS = ("abc de. ", "a", "fed cba fed cba fed cba. ")
ASSIGNMENTS = [
    Assignment(task, Prompt(text, "bee. " * (group % 2)), Prompt(text), "i0", group)
    for group, (task, text) in enumerate(
        (task, text) for task in WORLD.tasks("train")[:3] for text in INSTRUCTIONS
    )
    for _ in range(2)
]


def cached(model: Any = MODEL) -> CachedSampler:
    return CachedSampler(opens(model), CODEC, PAD)


def generating(model: Any = MODEL, pad: int = PAD) -> GenerateSampler:
    return GenerateSampler(opens(model), CODEC, pad)


def roll(
    sampler: Sampler, sampling: Sampling, rows: Iterable[int] = range(len(ASSIGNMENTS))
) -> dict[int, Trajectory]:
    """Episodes of some rows of ASSIGNMENTS, sampled together, by row."""
    rollouts: dict[int, Trajectory] = {}
    episodes = [new_episodes([ASSIGNMENTS[r]], WORLD, CODEC, LIMITS, r)[0] for r in rows]
    session = sampler.open(sampling)
    for episode, trajectory in zip(episodes, run_episodes(episodes, WORLD, session), strict=True):
        rollouts[episode.row] = trajectory
    session.close()
    return rollouts


def forward_logprobs(model: Any, context: Iterable[int], ids: Iterable[int], t: float) -> Any:
    """log π of each of `ids` after `context`, by one plain forward pass without any padding."""
    context, ids = list(context), list(ids)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([context + ids])).logits[0, len(context) - 1 : -1]
    logprobs = torch.log_softmax(logits.float() / t, -1)
    return logprobs.gather(-1, torch.tensor(ids)[:, None])[:, 0]


def check_logprobs(rollouts: dict[int, Trajectory], model: Any, temperature: float = 1.0) -> None:
    """Compare the reported log-probabilities of the policy's tokens with those of a plain forward pass."""
    for rollout in rollouts.values():
        mask = torch.tensor(rollout.mask) == 1
        expected = forward_logprobs(
            model, rollout.sampled_prompt_ids, rollout.completion_ids, temperature
        )
        reported = torch.tensor(rollout.logprobs)
        torch.testing.assert_close(reported[mask], expected[mask], atol=1e-4, rtol=0)


@pytest.fixture
def fed() -> Iterator[list[tuple[int, int]]]:
    """The shape of what `MODEL` is fed, call by call."""
    shapes: list[tuple[int, int]] = []
    hook = MODEL.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)),
        with_kwargs=True,
    )
    yield shapes
    hook.remove()


def same_tokens(a: dict[int, Trajectory], b: dict[int, Trajectory]) -> bool:
    return all(
        a[row].completion_ids == b[row].completion_ids and a[row].mask == b[row].mask
        for row in a.keys() & b.keys()
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.6])
def test_both_samplers_write_the_same_and_report_the_models_own_logprobs(
    temperature: float,
) -> None:
    sampling = Sampling(temperature, WORLD.stop, seed=3)
    fast, slow = roll(cached(), sampling), roll(generating(), sampling)
    assert same_tokens(fast, slow)
    assert max(len(t.turns) for t in fast.values()) >= 3
    assert len({len(t.turns) for t in fast.values()}) > 1  # so rows were dropped on the way
    for rollouts in (fast, slow):
        check_logprobs(rollouts, MODEL, temperature or 1.0)


@pytest.mark.parametrize("kind", [cached, generating])
def test_a_rows_tokens_do_not_depend_on_the_rows_beside_it(kind: Any) -> None:
    sampling = Sampling(1.0, WORLD.stop, seed=11)
    together = roll(kind(), sampling)
    for rows in ([5], [0, 7, 17], range(9, 18), reversed(range(18))):
        assert same_tokens(roll(kind(), sampling, rows), together)
    twins = [(together[r], together[r + 1]) for r in range(0, 18, 2)]
    assert sum(a.completion_ids != b.completion_ids for a, b in twins) >= 8
    assert not same_tokens(roll(kind(), Sampling(1.0, WORLD.stop, seed=12)), together)


@pytest.mark.parametrize("kind", [cached, generating])
def test_a_turns_draws_depend_on_its_position(kind: Any) -> None:
    """A policy that likes all tokens alike shows the draws themselves."""
    model = tiny_model(TOKENIZER, layers=3)
    torch.nn.init.zeros_(model.lm_head.weight)

    def sample_ids(row: int, context: tuple[int, ...]) -> tuple[int, ...]:
        request = SampleRequest(row, context, 6)
        return kind(model).open(Sampling(1.0, seed=1)).generate([request])[0].ids

    assert sample_ids(0, (4, 5)) == sample_ids(0, (5, 4))
    assert len({sample_ids(0, (4, 5)), sample_ids(0, (4, 5, 6)), sample_ids(1, (4, 5))}) == 3


@pytest.mark.parametrize("kind", [cached, generating])
def test_a_turn_ends_by_stop_string_eos_or_budget_and_for_no_other_reason(kind: Any) -> None:
    requests = [SampleRequest(row, (4 + row % 5, 6), 1 + row % 9) for row in range(60)]
    samples = kind().open(Sampling(1.0, ("de", "f"), seed=4)).generate(requests)
    reasons: set[str] = set()
    for request, sample in zip(requests, samples, strict=True):
        text = CODEC.decode(sample.ids)
        assert 1 <= len(sample.ids) == len(sample.logprobs) <= request.max_tokens
        if sample.ids[-1] == CODEC.eos_id:
            reasons.add("eos")
        elif text.endswith(("de", "f")):
            reasons.add("stop")
        else:
            assert len(sample.ids) == request.max_tokens
            reasons.add("budget")
        assert CODEC.eos_id not in sample.ids[:-1]
        assert not any(stop in CODEC.decode(sample.ids[:-1]) for stop in ("de", "f"))
    assert reasons == {"eos", "stop", "budget"}


def test_rows_may_leave_and_come_back() -> None:
    def play(sampler: Sampler) -> list[Sample]:
        session = sampler.open(Sampling(1.0, seed=7))
        contexts = {row: [4 + row, 5, 6][: 2 + row % 2] for row in range(4)}
        samples: list[Sample] = []
        for rows in ([0, 1, 2, 3], [1, 3], [3], [0, 2, 3], [2, 1, 0]):
            requests = [SampleRequest(r, tuple(contexts[r]), 3 + r) for r in rows]
            for request, sample in zip(requests, session.generate(requests), strict=True):
                contexts[request.row] += [*sample.ids, 7, 8]
                samples.append(sample)
        session.close()
        return samples

    fast, slow = play(cached()), play(generating())
    assert [s.ids for s in fast] == [s.ids for s in slow]
    for sample, reference in zip(fast, slow, strict=True):
        assert sample.logprobs == pytest.approx(reference.logprobs, abs=1e-4)


def test_the_cached_sampler_feeds_each_prompt_once_and_only_new_tokens_after(fed: Any) -> None:
    session = cached().open(Sampling(1.0, seed=2))
    samples = session.generate([SampleRequest(row, (4, 5, 6, 7, 8), 2) for row in range(6)])
    assert fed[0] == (1, 5)  # six equal prompts, one row
    fed.clear()
    contexts = [(4, 5, 6, 7, 8, *s.ids, 9, 9) for s in samples]
    session.generate([SampleRequest(row, context, 1) for row, context in enumerate(contexts)])
    assert fed == [(6, 3)]  # the last own token and the two observed ones
    # What all prompts begin with is fed once.
    fed.clear()
    # The second prompt is the beginning of the first; its last token is fed for its logits.
    prompts = ((4, 5, 6, 7, 8, 9), (4, 5, 6), (4, 5, 6, 9, 9))
    requests = [SampleRequest(row, prompt, 6) for row, prompt in enumerate(prompts)]
    samples = cached().open(Sampling(1.0, seed=2)).generate(requests)
    assert fed[:2] == [(1, 2), (3, 4)]
    expected = generating().open(Sampling(1.0, seed=2)).generate(requests)
    assert [s.ids for s in samples] == [s.ids for s in expected]
    for sample, reference in zip(samples, expected, strict=True):
        assert sample.logprobs == pytest.approx(reference.logprobs, abs=1e-4)


def test_a_sampler_ignores_the_policys_own_generation_defaults_and_keeps_them() -> None:
    model = tiny_model(TOKENIZER, layers=3)
    plain = roll(generating(model), Sampling(1.0, WORLD.stop, 5), range(4))
    defaults = model.generation_config
    model.generation_config.repetition_penalty = 5.0
    model.generation_config.suppress_tokens = [4, 5]
    assert same_tokens(roll(generating(model), Sampling(1.0, WORLD.stop, 5), range(4)), plain)
    assert model.generation_config is defaults
    # Padding that is the EOS is not taken for the policy's.
    sampling = Sampling(1.0, WORLD.stop, seed=3)
    assert same_tokens(roll(generating(pad=CODEC.eos_id), sampling), roll(cached(), sampling))


def test_windows_of_attention_are_honoured_by_the_sampler_that_is_chosen() -> None:
    model = tiny_model(TOKENIZER, window=6, layers=3)
    assert "sliding_attention" in model.config.layer_types
    sampler = policy_sampler(opens(model), CODEC, TOKENIZER)
    assert isinstance(sampler, GenerateSampler)
    check_logprobs(roll(sampler, Sampling(1.0, WORLD.stop, seed=1)), model)
    # Eager attention is masked as well.
    eager = copy.deepcopy(MODEL)
    eager.set_attn_implementation("eager")
    check_logprobs(roll(cached(eager), Sampling(1.0, WORLD.stop, seed=1)), MODEL)


def test_the_cache_is_used_where_every_layer_attends_to_everything() -> None:
    assert isinstance(policy_sampler(opens(MODEL), CODEC, TOKENIZER), CachedSampler)
    shape = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    local = GPTNeoConfig(vocab_size=20, hidden_size=8, num_layers=2, num_heads=2,
        attention_types=[[["global", "local"], 1]])  # fmt: skip
    neo = GPTNeoForCausalLM(local)
    assert isinstance(policy_sampler(opens(neo), CODEC, TOKENIZER), GenerateSampler)
    for window, kind in ((None, CachedSampler), (16, GenerateSampler)):
        mistral = MistralForCausalLM(MistralConfig(**shape, **heads, sliding_window=window))
        assert isinstance(policy_sampler(opens(mistral), CODEC, TOKENIZER), kind)


@pytest.mark.parametrize("size", [4, 1400])  # the larger is searched in blocks
def test_draws_follow_the_distribution(size: int) -> None:
    logits = torch.cat([torch.tensor([0.0, 1.0, 2.0]), torch.full((size - 3,), -50.0)])[None]
    logits = logits[:, torch.arange(size) * 3 % size]  # 0, 1 and 2 lie in different blocks
    uniforms = [(i + 0.5) / 1000 for i in range(1000)]
    for temperature in (1.0, 0.5):
        tokens, logprobs = draw(logits.repeat(1000, 1), temperature, uniforms)
        expected = torch.softmax(logits[0] / temperature, -1)
        counts = torch.bincount(torch.tensor(tokens), minlength=size) / 1000
        torch.testing.assert_close(counts, expected, atol=2e-3, rtol=0)
        assert logprobs[0] == pytest.approx(expected[tokens[0]].log().item(), abs=1e-5)
    assert tokens == sorted(tokens)  # the cumulative distribution, inverted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_policy_that_has_diverged_is_not_sampled(temperature: float, value: float) -> None:
    logits = torch.zeros(2, 4)
    logits[1, 2] = value
    with pytest.raises(EngineError, match="logits are not finite: training has diverged"):
        draw(logits, temperature, [0.5, 0.5])


def test_draws_at_the_edges() -> None:
    for first, last in ((1, 2), (3, 255), (256, 511), (300, 1398)):
        logits = torch.full((2, max(4, 1400 * (last > 2))), -torch.inf)
        logits[:, [first, last]] = 0.0
        assert draw(logits, 1.0, [0.0, 1 - 2**-53])[0] == [first, last]  # never an impossible token
    assert draw(torch.tensor([[0.0, 3.0, 1.0]]), 0.0, [0.99])[0] == [1]


def test_a_stop_string_is_found_within_a_turn_only_and_in_any_token() -> None:
    finder = StopFinder(CharacterCodec(), ("ab", "xyz"))
    encode = CharacterCodec().encode
    assert finder.completes(encode("..ab"))
    assert finder.completes(encode("wxyz"))
    assert not finder.completes(encode("b"))  # its "a" would be of the turn before
    assert not finder.completes(encode("a.b"))
    assert not finder.completes(encode("aba"))
    assert not StopFinder(CharacterCodec(), ()).completes([1])

    class Pieces(CharacterCodec):
        def decode(self, ids: Any) -> str:
            return "".join(["", "a", "b>", "", "c"][i] for i in ids)

    class Bytes(CharacterCodec):
        def decode(self, ids: Any) -> str:
            return bytes(ids).decode(errors="replace")

    inside = StopFinder(Bytes(), ("終。",))  # a token a byte, as in byte-level tokenizers
    assert inside.completes(list("..終。".encode()))
    assert not inside.completes(list("..終。".encode())[:-1])

    pieces = StopFinder(Pieces(), ("ab",))
    assert pieces.completes([1, 2])  # completed in the middle of a token
    assert pieces.completes([4, 1, 3, 0, 2])  # over tokens that show nothing
    assert not pieces.completes([4, 2])


def test_a_frozen_head_in_bfloat16_is_given_the_last_states_alone() -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer).to(torch.bfloat16).requires_grad_(False)  # pyright: ignore[reportArgumentType]
    inputs: list[torch.Tensor] = []
    model.lm_head.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    sampler = CachedSampler(opens(model), HFCodec(tokenizer), 0)
    sampler.open(Sampling()).generate([SampleRequest(i, (4 + i, 5, 6), 2) for i in range(3)])
    assert [tuple(states.shape[:2]) for states in inputs] == [(3, 1), (3, 1)]
    assert all(states.is_contiguous() for states in inputs)


@pytest.mark.parametrize("kind", [CachedSampler, GenerateSampler])
def test_one_autocast_is_open_for_all_tokens_of_a_call(kind: Any) -> None:
    opened, cast = [0], []

    @contextmanager
    def casts() -> Iterator[None]:
        opened[0] += 1
        with torch.autocast("cpu", torch.bfloat16):
            yield

    hook = MODEL.register_forward_pre_hook(lambda *_: cast.append(torch.is_autocast_enabled("cpu")))
    session = kind(opens(MODEL), CODEC, PAD, casts).open(Sampling(1.0, (), 3))
    assert not torch.is_autocast_enabled("cpu")  # while the environment answers
    ids = tuple(CODEC.encode("abc"))
    (sample,) = session.generate([SampleRequest(0, ids, 6)])
    session.close()
    hook.remove()
    assert opened == [1]
    assert len(cast) > 1
    assert all(cast)
    with torch.autocast("cpu", torch.bfloat16):
        expected = forward_logprobs(MODEL, ids, sample.ids, 1.0)
    torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=0.05, rtol=0.0)


def test_whoever_samples_does_not_use_cudnns_attention() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    policy_sampler(opens(MODEL), CODEC, TOKENIZER)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
