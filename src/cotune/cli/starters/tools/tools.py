"""Tools: typed functions; the policy reads their names, docstrings and arguments.

An error raised by a tool is shown to the policy as its answer. Calls from several rollouts run
concurrently, so a tool that keeps state must allow for that.
"""

PRICES = {
    "lamp": 24.5,
    "chair": 61.0,
    "desk": 149.0,
    "shelf": 38.75,
    "rug": 82.2,
    "mirror": 45.9,
    "clock": 17.3,
    "stool": 29.0,
    "sofa": 540.0,
    "vase": 12.6,
}


def price(article: str) -> float:
    """The price of one piece of an article.

    Args:
        article: its name, such as "lamp".
    """
    return PRICES[article.lower()]


async def multiply(a: float, b: float) -> float:
    """The product of two numbers.

    Args:
        a: the first number.
        b: the second number.
    """
    return round(a * b, 2)
