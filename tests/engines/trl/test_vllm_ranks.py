"""Ranks that share a vLLM server or an engine call it equally often with equally many rows."""

import inspect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from trl.generation.vllm_generation import VLLMGeneration

from cotune.engines.trl.vllm_sampler import SharedSession
from cotune.policy.codec import HFCodec
from cotune.types import Sample, SampleRequest, Sampling
from tests.engines.trl.fake_vllm import Engine, install
from tests.engines.trl.ranks import on_two_ranks
from tests.engines.trl.setup import Run, start
from tests.engines.trl.test_two_ranks import SIZES, fingerprint, rollout_row
from tests.policy.tiny import Letters, tiny_tokenizer
from tests.thread_ranks import ThreadRank, Threads

CODEC = HFCodec(tiny_tokenizer())


class Generation:
    """Writes each prompt's last token until the limit, over and over; holds ranks to equal calls."""

    mode = "colocate"
    tensor_parallel_size = 2

    def __init__(self, comm: ThreadRank) -> None:
        self._comm = comm
        self.generation_kwargs: dict[str, Any] = {}
        self.calls: list[tuple[int, int]] = []

    def generate(
        self, prompts: Any, images: Any, num_generations: int, profiler: Any = None
    ) -> tuple[Any, Any, Any, Any]:
        assert num_generations == 1
        limit = self.generation_kwargs["max_tokens"]
        self.calls.append((limit, len(prompts)))
        assert set(self._comm.gather((limit, len(prompts)))) == {(limit, len(prompts))}
        ids = [[prompt[-1]] * limit for prompt in prompts]
        logprobs = [[[-float(n)] for n in range(limit)] for _ in prompts]
        return prompts, ids, logprobs, [[[token] for token in row] for row in ids]


def test_the_stand_in_is_called_as_trls_class_is() -> None:
    fake, real = (inspect.signature(c.generate).parameters for c in (Generation, VLLMGeneration))
    assert list(fake) == list(real)
    assert [p.default for p in fake.values()] == [p.default for p in real.values()]


Turns = Sequence[Sequence[SampleRequest]]


def in_step(
    ranks: Sequence[Turns], context: int | None = None, fails: int | None = None
) -> tuple[list[list[list[Sample]]], list[list[tuple[int, int]]]]:
    """What each rank's turns brought, and its calls (limit, rows); `fails` leaves after one turn."""
    threads = Threads(len(ranks))
    calls: list[list[tuple[int, int]]] = [[] for _ in ranks]

    def work(rank: int) -> list[list[Sample]]:
        comm = threads.rank_of(rank)
        generation = Generation(comm)
        calls[rank] = generation.calls
        session = SharedSession(
            cast(VLLMGeneration, generation), CODEC, Sampling(0.0), cast(Any, comm), context
        )
        samples: list[list[Sample]] = []
        try:
            for turn in ranks[rank]:
                if fails == rank and samples:
                    break
                samples.append(session.generate(turn))
        finally:
            session.close()
        return samples

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(work, range(len(ranks)))), calls


def row(name: int, length: int, limit: int) -> SampleRequest:
    return SampleRequest(name, tuple([5] * (length - 1) + [6 + name]), limit)


def test_ranks_that_share_an_engine_call_it_alike() -> None:
    # A rank that is done or never began still calls.
    turns = [[[row(0, 4, 3), row(1, 4, 3)], [row(0, 9, 3)], [row(0, 14, 2)]], [[row(2, 4, 3)]], []]
    samples, calls = in_step(turns)
    assert calls == [[(3, 2), (3, 1), (2, 1)]] * 3
    assert [[s.ids for s in turn] for turn in samples[0]] == [
        [(6,) * 3, (7,) * 3],
        [(6,) * 3],
        [(6,) * 2],
    ]
    assert [[s.ids for s in turn] for turn in samples[1]] == [[(8,) * 3]]
    assert samples[2] == []
    # The largest limit of all ranks is asked for, and each row keeps its own.
    samples, calls = in_step([[[row(0, 4, 2)]], [[row(1, 4, 7), row(2, 4, 1)]]])
    assert calls == [[(7, 2)]] * 2
    assert [s.ids for s in samples[0][0]] == [(6,) * 2]
    assert [s.ids for s in samples[1][0]] == [(7,) * 7, (8,)]
    assert samples[0][0][0].logprobs == (-0.0, -1.0)
    # Another rank's limit pushes no row out of its context.
    samples, calls = in_step([[[row(0, 95, 5), row(1, 10, 5)]], [[row(2, 10, 50)]]], context=100)
    assert calls == [[(50, 1), (5, 1)]] * 2  # the row of rank 1 was done with the first
    assert [s.ids for s in samples[0][0]] == [(6,) * 5, (7,) * 5]
    assert [s.ids for s in samples[1][0]] == [(8,) * 50]
    # It says what is wrong; waiting for a call that the row fits into would never end.
    samples, calls = in_step([[[row(0, 8, 5)]], []], context=10)
    assert calls == [[(5, 1)]] * 2
    assert len(samples[0][0][0].ids) == 5
    # A rank whose episodes fail lets the others end theirs.
    turns = [[[row(0, 4, 3)], [row(0, 9, 3)], [row(0, 14, 3)]], [[row(1, 4, 3)], [row(1, 9, 3)]]]
    samples, calls = in_step(turns, fails=1)
    assert len(samples[0]) == 3
    assert calls[0] == calls[1] == [(3, 1)] * 3


# ---- two ranks above the fake engine

MODES: dict[str, dict[str, Any]] = {
    "server": {"vllm_mode": "server"},
    "colocate": {"vllm_mode": "colocate"},
    "shared": {"vllm_mode": "colocate", "vllm_tensor_parallel_size": 2},
}


def evaluations(run: Run, engine: Engine) -> dict[str, Any]:
    """Rollouts of one task, which leave rank 1 without any, and of seven."""
    rollouts: list[list[dict[str, Any]]] = []
    calls: list[list[int]] = []
    tasks = [task for split in ("train", "test") for task in Letters().tasks(split)]
    for count in (1, 7):
        coordinator, first_call = run.joint.coordinator, len(engine.calls)
        rollouts.append([rollout_row(t) for t in coordinator.evaluate(tasks[:count])])
        calls.append([rows for _, rows in engine.calls[first_call:]])
    return {"evaluations": rollouts, "calls_of_evaluations": calls}


def train(folder: Path, engine: Engine, **changes: Any) -> dict[str, Any]:
    """Trains three batches and evaluates what came of it."""
    run = start(folder, use_vllm=True, **SIZES, **changes)
    run.trainer.train()
    return {
        "batches": [[rollout_row(t) for t in batch] for batch in run.trajectories],
        "weights": fingerprint(run),
        **evaluations(run, engine),
        "calls": [(params.max_tokens, rows) for params, rows in engine.calls],
        "syncs": engine.syncs,
    }


def train_in_each_mode(folder: Path, rank: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for mode, changes in MODES.items():
        rank_folder, out = folder / mode / f"rank{rank}", str(folder / mode / "out")
        results[mode] = train(rank_folder, install(tiny_tokenizer()), output_dir=out, **changes)
    fail(folder, rank, install(tiny_tokenizer()))
    return results


def fail(folder: Path, rank: int, engine: Engine) -> None:
    """The server fails in two ways; both ranks hear of it."""
    changes = {**SIZES, "use_vllm": True, "vllm_mode": "server", "output_dir": str(folder / "out")}
    for name in ("server", "weights"):
        run = start(folder / f"{name}{rank}", **changes)
        engine.fails_at = len(engine.calls) + 1 if name == "server" else -1
        try:
            if name == "weights":
                run.folder.begin_attempt(None)
                engine.refuses_weights = True
                run.joint.coordinator.evaluate(Letters().tasks("train"))
            run.trainer.train()
        except Exception as error:  # noqa: BLE001 - it is what the test looks at
            (folder / f"{name}{rank}.txt").write_text(f"{type(error).__name__}: {error}")
        engine.refuses_weights = False


def check_mode(mode: str, first: dict[str, Any], second: dict[str, Any]) -> None:
    """Both ranks train and evaluate the same policy."""
    for name in ("batches", "weights", "evaluations"):
        assert first[name] == second[name]
    of_one, of_seven = first["evaluations"]
    assert (len(of_one), len(of_seven)) == (1, 7)
    assert of_one[0] == of_seven[0]
    for batch in first["batches"]:
        assert [t["group"] for t in batch] == [0, 0, 1, 1, 2, 2]
    lengths = {len(t["ids"]) for batch in first["batches"] for t in batch}
    assert len(lengths) > 2  # episodes ended at different turns
    for_one, for_seven = first["calls_of_evaluations"]
    if mode == "colocate":
        assert set(for_one) == set(for_seven) == {1}
        assert second["calls_of_evaluations"][0] == []  # nobody waits for the other
    else:
        # One row of each rank, then four: one of them each time in the place of a row that is not.
        assert (for_one[0], for_seven[0]) == (2, 8)
        assert all(rows % 2 == 0 for call in first["calls_of_evaluations"] for rows in call)
    if mode == "server":  # rank 0 alone speaks with it
        assert (first["syncs"], second["syncs"], second["calls"]) == (4, 0, [])
    elif mode == "shared":
        assert first["calls"] == second["calls"]
        assert (first["syncs"], second["syncs"]) == (4, 4)


@pytest.mark.slow
def test_two_ranks_train_and_evaluate_the_same_policy(tmp_path: Path) -> None:
    """TRL's own gathering and slicing over ranks, above the fake engine."""
    first, second = on_two_ranks(train_in_each_mode, tmp_path)
    for mode in MODES:
        check_mode(mode, first[mode], second[mode])
    # A failure of the server ends both with its message.
    texts = {path.stem: path.read_text() for path in tmp_path.glob("*.txt")}
    server = (
        "RolloutFailed: a rollout failed; rank 0: HTTPError: Request failed: 500, the engine died; "
        "rank 1: EngineError: rank 0 got nothing from the vLLM server"
    )
    weights = "EngineError: the weights could not be sent to vLLM; rank 0: HTTPError: no update"
    weights = f"RolloutFailed: a rollout failed; rank 0: {weights}; rank 1: {weights}"
    assert texts == {"server0": server, "server1": server, "weights0": weights, "weights1": weights}
