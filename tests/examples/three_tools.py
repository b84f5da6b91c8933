"""The folder of the example `three_tools`."""

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "three_tools"
