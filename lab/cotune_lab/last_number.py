"""Read the answer of a reply that ends in a number, for policies too small to keep to a format."""

import re
from decimal import Decimal

# A minus after a digit or a bracket is an operation, not a sign.
_NUMBER = re.compile(r"(?:(?<![\d)\]])[-−])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")


def last_number(reply: str) -> Decimal | None:
    """Return the last number in a reply; None if it has none.

    >>> last_number("12 + 30 = 42."), last_number("It is -7"), last_number("25-17"), last_number("1,200")
    (Decimal('42'), Decimal('-7'), Decimal('17'), Decimal('1200'))
    """
    numbers = _NUMBER.findall(reply)
    return Decimal(numbers[-1].replace(",", "").replace("−", "-")) if numbers else None
