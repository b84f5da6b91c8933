"""The baselines of INSPO's Table 1 that train nothing, one short module each."""

from cotune.experiments.baselines.agent import Agent
from cotune.experiments.baselines.base import Baseline
from cotune.experiments.baselines.direct import RAG, Direct
from cotune.experiments.baselines.ircot import IRCoT
from cotune.experiments.baselines.search_o1 import SearchO1

__all__ = ["BASELINES"]

BASELINES: dict[str, type[Baseline]] = {
    "direct": Direct,
    "rag": RAG,
    "ircot": IRCoT,
    "search-o1": SearchO1,
    "agent": Agent,
}
"""The baselines by name; each has a `description`."""
