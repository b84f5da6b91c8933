"""What costs tests time and tells them nothing."""

import os
import sys
from functools import cache
from typing import Any


def save_time() -> None:
    """Sync no file to the disk, and look for a package once. To be called after the imports.

    What a test writes need not outlast a failure of the power: a killed process leaves it to the system. And
    accelerate reads the metadata of packages several times a step.
    """
    os.fsync = lambda descriptor: None
    imports: Any = sys.modules.get("accelerate.utils.imports")
    if imports is not None:
        imports._is_package_available = cache(imports._is_package_available)
