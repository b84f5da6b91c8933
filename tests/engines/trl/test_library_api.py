"""Methods for a trainer of one's own: what is refused before anything is trained."""

from pathlib import Path
from typing import Any, cast

import pytest

import cotune
from cotune.errors import ConfigError
from cotune.methods.composed import InspoP2O
from cotune.methods.fst.gepa import Gepa
from cotune.methods.inspo.inspo import Inspo
from cotune.methods.p2o.p2o import P2O
from cotune.run.record import Record
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
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "cotune", {"name": "mine"})


def test_any_llm_is_metered(record: Record, tmp_path: Path, geo: cotune.GeoEnvironment) -> None:
    reply = cotune.Completion("hello", prompt_tokens=3, completion_tokens=2)
    llm = cotune.INSPO(environment=geo, llm=ScriptedLLM([reply])).build_llm(record)
    with pytest.raises(RuntimeError, match="only while training runs"):
        llm.complete("too early")
    record.begin_attempt(None)
    assert llm.complete("now") == reply
    costs = cotune.open_run(tmp_path / "cotune").read_costs()
    assert [(row.model, row.prompt_tokens) for row in costs] == [("ScriptedLLM", 3)]
    record.close()


def test_an_endpoint_needs_its_key(
    record: Record, geo: cotune.GeoEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    method = cotune.INSPO(environment=geo, llm=cotune.OpenAIOptions(model="m"))
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set"):
        method.build_llm(record)
