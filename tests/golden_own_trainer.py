"""examples/own_trainer.py on the world geo, which its golden run is from."""

from typing import Any

import cotune
from cotune_lab.worlds.geo import GeoEnvironment, GeoOptions
from examples import own_trainer


def environment_of(questions: int) -> GeoEnvironment:
    return GeoEnvironment(GeoOptions(train=questions, validation=9, test=9))


GEO: dict[str, Any] = {
    "POLICY": "bundled:geo",
    "LIMITS": cotune.Limits(
        turn_tokens=64, observation_tokens=200, trajectory_tokens=640, prompt_tokens=384
    ),
    "environment_of": environment_of,
}
"""What the example has instead."""

if __name__ == "__main__":
    for name, value in GEO.items():
        setattr(own_trainer, name, value)
    own_trainer.main()
