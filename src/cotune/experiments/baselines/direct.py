"""Direct inference and retrieval-augmented generation: one response."""

from cotune.experiments.baselines.base import Baseline, Steps, ask, retrieved, search
from cotune.types import Task, Turn


class Direct(Baseline):
    """The question alone, no tool, one response (INSPO's "direct inference")."""

    description = "the question alone: no tool, one response"

    def steps(self, task: Task) -> Steps:
        form = self.bench.form
        reply = yield from ask(self.prompt(task, form.instruction, stop=form.stop))
        return [Turn(reply.text, action="answer")]


class RAG(Baseline):
    """Retrieval-augmented generation (arXiv 2005.11401): one search with the question."""

    description = "one search with the question, its passages in the prompt, one response"
    retrieves = True

    @property
    def instruction(self) -> str:
        return (
            "Answer the given question by the passages between <information> and </information>. "
            f"{self.bench.form.brief}"
        )

    def steps(self, task: Task) -> Steps:
        found = yield from search(task.question)
        stop = self.bench.form.stop
        reply = yield from ask(self.prompt(task, self.instruction, found.passages, stop=stop))
        return [retrieved(found), Turn(reply.text, action="answer")]
