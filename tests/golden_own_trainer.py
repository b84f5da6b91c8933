"""examples/own_trainer.py on the world geo, which its golden run is from."""

import cotune
from cotune_lab.worlds.geo import GeoEnvironment, GeoOptions
from examples import own_trainer


def environment(questions: int) -> GeoEnvironment:
    return GeoEnvironment(GeoOptions(train=questions, validation=9, test=9))


own_trainer.POLICY = "bundled:geo"
own_trainer.LIMITS = cotune.Limits(
    turn_tokens=64, observation_tokens=200, trajectory_tokens=640, prompt_tokens=384
)
own_trainer.environment_of = environment
own_trainer.main()
