"""Numbers that code of the user's returned."""

import math
from typing import Any


def finite(value: Any) -> float | None:
    """Return a value as a float; None if it is not finite, or not a number (such as a text).

    >>> finite(True), finite("1"), finite(None), finite(float("nan"))
    (1.0, None, None, None)
    """
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except Exception:  # noqa: BLE001  # a huge integer, or the user's own class
        return None
    return number if math.isfinite(number) else None
