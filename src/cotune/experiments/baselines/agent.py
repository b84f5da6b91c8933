"""The untrained agent: the environment's protocol under the run file's instruction."""

from dataclasses import replace

from cotune.experiments.baselines.base import Baseline, Steps, act, ask, cut
from cotune.experiments.baselines.chat import Ask
from cotune.types import Action, Prompt, Task, Turn


class Agent(Baseline):
    """Roll out the run file's environment.

    A local policy is rolled out as in an evaluation. The steps here are for an endpoint: the same turns
    as a dialogue, with each observation in its own message.
    """

    description = "the environment's own agent under the run file's instruction, untrained"

    @property
    def instruction(self) -> str:
        return self.bench.instruction

    def steps(self, task: Task) -> Steps:
        bench, prompt = self.bench, Prompt(self.bench.instruction)
        asked = Ask(tuple(bench.environment.messages(task, prompt)), bench.environment.stop)
        turns: list[Turn] = []
        for left in reversed(range(self.limits.turns)):
            reply = yield from ask(asked)
            action = Action(task, tuple(turns), reply.text, last=not left, prompt=prompt)
            response = yield from act(action)
            seen = cut(bench.chat, response.observation, self.limits.observation_tokens)
            turns.append(Turn(reply.text, seen, response.action, response.error))
            asked = replace(asked, written=(*asked.written, (reply, seen)))
            if response.done or response.failed or bench.chat.size(asked) > bench.chat.room:
                break
        return turns
