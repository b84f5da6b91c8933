"""Methods for a trainer of one's own: what is refused before anything is trained."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import cotune
from cotune.engines.trl.library_api import TrainerMethod
from cotune.engines.trl.library_run import LibraryRun
from cotune.errors import ConfigError
from cotune.methods.composed import InspoP2O
from cotune.methods.gepa.gepa import Gepa
from cotune.methods.inspo.inspo import Inspo
from cotune.methods.p2o.p2o import P2O
from cotune.run.ledger import Ledger
from cotune.testing import ScriptedLLM
from tests.config.test_run_checks import environment


@pytest.fixture(scope="module")
def geo() -> cotune.GeoEnvironment:
    return cotune.GeoEnvironment(cotune.GeoOptions(train=4, validation=3, test=3))


def test_options_as_fields_or_as_one(geo: cotune.GeoEnvironment) -> None:
    by_field = cotune.INSPO(environment=geo, population_size=3, window=2)
    as_one = cotune.INSPO(environment=geo, options=cotune.InspoOptions(population_size=3, window=2))
    assert by_field.options == as_one.options
    assert by_field.instruction == geo.initial_instruction


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"populationsize": 3},
            "populationsize is neither an argument.*did you mean population_size",
        ),
        ({"window": 0}, "INSPO: window is 0"),
        ({"window": 2, "options": cotune.InspoOptions()}, "given options and window"),
        ({"instruction": "Answer."}, "instruction names no <search>"),
        ({"llm": "sk-secret"}, r"^INSPO: llm is a text; expected cotune.OpenAIOptions\(model="),
        ({"llm": cotune.RulesLLM}, r"INSPO: llm is the class RulesLLM; .* an object with complete"),
        ({"llm": 3}, "INSPO: llm is of type int"),
        (
            {"llm": cotune.BankOptions(path=Path("x"), hints=Path("y"))},
            r"^INSPO: llm\.hints is set",
        ),
        ({"rewards": 3}, "INSPO: rewards is of type int; expected a function, or a list"),
        ({"environment": "geo"}, "INSPO: environment is a text; expected an environment"),
    ],
)
def test_what_is_refused(
    arguments: dict[str, Any], expected: str, geo: cotune.GeoEnvironment
) -> None:
    given: dict[str, Any] = {"environment": geo, **arguments}
    with pytest.raises(ConfigError, match=expected) as caught:
        cotune.INSPO(**given)
    assert "secret" not in str(caught.value)


def half(completions: list[str], **kwargs: object) -> list[float]:
    return [0.5] * len(completions)


@pytest.mark.parametrize("given", [half, [half], (half,), [(half, 1.0)]])
def test_a_reward_function_alone_is_a_list_of_one(given: Any, geo: cotune.GeoEnvironment) -> None:
    rewards = cotune.Static(environment=geo, rewards=given).rewards
    assert rewards is not None
    assert rewards.names == ("half",)


def test_static_needs_the_tags_too(geo: cotune.GeoEnvironment) -> None:
    with pytest.raises(ConfigError, match="instruction names no </answer>"):
        cotune.Static(environment=geo, instruction="<search> </search> <answer>")


@pytest.mark.parametrize("method", [cotune.INSPO, cotune.P2O, cotune.INSPOWithP2O, cotune.GEPA])
def test_the_rules_serve_the_bundled_worlds_only(
    method: type[Any], geo: cotune.GeoEnvironment
) -> None:
    assert isinstance(method(environment=geo).llm, cotune.RulesLLM)
    with pytest.raises(ConfigError, match=r"llm is None.*SearchEnvironment.*OpenAIOptions"):
        method(environment=environment("Who?"))
    method(environment=environment("Who?"), llm=ScriptedLLM([]))


def test_in_a_bundled_world_the_rules_write(geo: cotune.GeoEnvironment) -> None:
    sums = cotune.LadderEnvironment(cotune.LadderOptions(train=8, validation=4, test=4))
    for world in (geo, sums):
        for method in (cotune.INSPO, cotune.P2O, cotune.INSPOWithP2O, cotune.GEPA):
            assert isinstance(method(environment=world).llm, cotune.RulesLLM)


def test_options_of_p2o_and_of_both(geo: cotune.GeoEnvironment) -> None:
    p2o = cotune.P2OOptions(successes_below=3, hinted_per_group="half")
    assert cotune.P2O(environment=geo, successes_below=3, hinted_per_group="half").options == p2o
    hints = cotune.P2OOptions(successes_below=3)
    both = cotune.INSPOWithP2O(environment=geo, p2o=hints)
    assert both.options == cotune.ComposedOptions(p2o=hints)
    with pytest.raises(
        ConfigError, match=r"P2O: successesbelow is neither .*did you mean successes_bel"
    ):
        cotune.P2O(environment=geo, successesbelow=3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(
        ConfigError, match="INSPOWithP2O: population_size is neither an argument nor a"
    ):
        cotune.INSPOWithP2O(
            environment=geo,
            population_size=3,  # pyright: ignore[reportCallIssue]
        )
    with pytest.raises(ConfigError, match="P2O: options is of InspoOptions; expected P2OOptions"):
        cotune.P2O(environment=geo, options=cast(Any, cotune.InspoOptions()))


class Tokens:
    """A tokenizer's rules: a token a character."""

    control_tokens = ("<|im_end|>",)

    def count(self, text: str) -> int:
        return len(text)


@pytest.mark.parametrize(
    ("method", "kind", "strategy"),
    [
        (cotune.INSPO, "inspo", Inspo),
        (cotune.P2O, "p2o", P2O),
        (cotune.INSPOWithP2O, "inspo+p2o", InspoP2O),
        (cotune.GEPA, "gepa", Gepa),
    ],
)
def test_a_method_builds_its_strategy(
    method: type[Any], kind: str, strategy: type[Any], geo: cotune.GeoEnvironment
) -> None:
    made = method(environment=geo)
    built = made.build_strategy(Tokens())
    assert type(built) is strategy
    assert made.describe()["strategy"]["kind"] == kind
    assert built.best_prompt().instruction == geo.initial_instruction


@pytest.fixture
def run(tmp_path: Path, geo: cotune.GeoEnvironment) -> Iterator[LibraryRun]:
    begun = LibraryRun(tmp_path / "cotune", describe(cotune.Static(environment=geo)), 4)
    yield begun
    begun._close()  # pyright: ignore[reportPrivateUsage]


def describe(method: TrainerMethod[Any]) -> dict[str, Any]:
    return {
        "library": "trl",
        "name": "mine",
        **method.describe(),
        "batch": {"rollouts": 8, "group_size": 4},
    }


def test_any_llm_is_metered(run: LibraryRun, tmp_path: Path, geo: cotune.GeoEnvironment) -> None:
    reply = cotune.Completion("hello", prompt_tokens=3, completion_tokens=2)
    llm = cotune.INSPO(environment=geo, llm=ScriptedLLM([reply])).build_llm(run)
    with pytest.raises(RuntimeError, match="only while training runs"):
        llm.complete("too early")
    run.begin_attempt(None)
    assert llm.complete("now") == reply
    with Ledger(tmp_path / "cotune" / "ledger.sqlite") as ledger:
        assert [(r.model, r.prompt_tokens) for r in ledger.rows()] == [("ScriptedLLM", 3)]


def test_an_endpoint_needs_its_key(
    run: LibraryRun, geo: cotune.GeoEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    method = cotune.INSPO(environment=geo, llm=cotune.OpenAIOptions(model="m"))
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set"):
        method.build_llm(run)


def test_nothing_is_written_before_training(run: LibraryRun, tmp_path: Path) -> None:
    run.event("saved", 0)
    run.metrics(0, {"loss": 1.0})
    run.trajectories(0, "train", [])
    run.set_step(1)
    run.add_rollouts("evaluate", 3, 10)
    assert list(tmp_path.iterdir()) == []


def log_a_loss(run: LibraryRun) -> None:
    run.metrics(1, {"loss": 1.0})


def save(run: LibraryRun) -> None:
    run.event("saved", 1)


def roll_out_twice(run: LibraryRun) -> None:
    for step in (1, 2):
        run.set_step(step)
        run.add_rollouts("train", 8, 80)


@pytest.mark.parametrize("trained", [log_a_loss, save, roll_out_twice])
def test_a_folder_is_begun_once(
    run: LibraryRun, tmp_path: Path, trained: Callable[[LibraryRun], None]
) -> None:
    assert run.begin_attempt(None) == 1
    trained(run)
    before = (tmp_path / "cotune" / "events.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"resume_from_checkpoint=True.*output_dir"):
        run.begin_attempt(None)
    assert (tmp_path / "cotune" / "events.jsonl").read_bytes() == before


def test_what_is_in_the_way_is_named(run: LibraryRun, tmp_path: Path) -> None:
    (tmp_path / "cotune").write_text("a file", encoding="utf-8")
    with pytest.raises(ConfigError, match="is a file"):
        run.begin_attempt(None)


def test_two_processes_do_not_train_in_one_folder(run: LibraryRun, tmp_path: Path) -> None:
    run.begin_attempt(None)
    code = f"from pathlib import Path\nfrom cotune.run.locks import run_locked\nwith run_locked(Path({str(tmp_path / 'cotune')!r})): pass"

    def other() -> str:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        ).stderr

    assert "is being trained by another process" in other()
    assert run.begin_attempt(None) == 2  # this one may begin again: nothing was trained
    run.finish(4, "i0", "Search.")
    assert not other()


def test_a_resume_goes_on_in_its_folder(run: LibraryRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run folder is not there"):
        run.begin_attempt(2)
    run.begin_attempt(None)
    for step in (1, 2, 3):
        run.set_step(step)
        run.metrics(step, {"loss": float(step)})
        run.add_rollouts("train", 8, 80)
    assert run.begin_attempt(2) == 2
    run.cut_back(2)
    kept = cotune.open_run(tmp_path / "cotune")
    assert [row["step"] for row in kept.read_metrics()] == [1, 2]
    with Ledger(tmp_path / "cotune" / "ledger.sqlite") as ledger:
        assert ledger.totals().rollouts["train"] == 16


def test_a_resume_with_other_settings_is_refused(
    run: LibraryRun, tmp_path: Path, geo: cotune.GeoEnvironment
) -> None:
    run.begin_attempt(None)
    other = describe(cotune.Static(environment=geo, seed=5))
    with pytest.raises(ConfigError, match=r"seed is 5, but the run in .* was started with 0"):
        LibraryRun(tmp_path / "cotune", other, 4).begin_attempt(1)
    longer = LibraryRun(tmp_path / "cotune", describe(cotune.Static(environment=geo)), 99)
    assert longer.begin_attempt(1) == 2


def test_the_best_instruction_is_kept(run: LibraryRun, tmp_path: Path) -> None:
    run.begin_attempt(None)
    run.finish(4, "i2", "Search – then answer.")
    best = tmp_path / "cotune" / "best" / "instruction.txt"
    assert best.read_text(encoding="utf-8") == "Search – then answer.\n"
    *_, last = cotune.open_run(tmp_path / "cotune").read_events()
    assert (last["kind"], last["step"], last["instruction_id"]) == ("run_finished", 4, "i2")


def test_what_follows_the_end_is_counted_too(run: LibraryRun, tmp_path: Path) -> None:
    run.begin_attempt(None)
    run.set_step(4)
    run.finish(4, "i0", "Search.")
    run.add_rollouts("evaluate", 3, 30)
    run.event("evaluated", 4, em=0.5)
    assert [e["kind"] for e in cotune.open_run(tmp_path / "cotune").read_events()] == [
        "run_started",
        "run_finished",
        "evaluated",
    ]
    with Ledger(tmp_path / "cotune" / "ledger.sqlite") as ledger:
        assert ledger.totals().rollouts["evaluate"] == 3


def test_what_is_said_is_one_line_of_text(
    run: LibraryRun, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "cotune")
    run.begin_attempt(None)
    hostile = "[red]Search[/red]\n\x1b[31mthen\u202e answer"
    run.event("instruction_born", 1, id="i1", origin="rewrite", text=hostile, score=None)
    run.event("notice", 1, text="population of 2")
    run.event("hint_progress", 2, evaluations=3, budget=9, hints=2, best_mean_dev_score=0.5)
    run.event("population", 2, members=[])
    said = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "cotune"]
    assert said == [
        ("INFO", "step 1: + i1 (rewrite): [red]Search[/red] [31mthen answer"),
        ("WARNING", "step 1: population of 2"),
        ("DEBUG", "step 2: hints: 3/9 evaluations, 1 hints, best 0.50"),
    ]
