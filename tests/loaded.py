"""Runs statements one after another, and prints the names of the modules loaded after each.

python -m tests.loaded STATEMENT …

The last line is a JSON list with a list for each statement.
"""

import json
import sys

if __name__ == "__main__":
    loaded: list[list[str]] = []
    for statement in sys.argv[1:]:
        exec(statement, {})
        loaded.append(sorted(sys.modules))
    print("\n" + json.dumps(loaded))
