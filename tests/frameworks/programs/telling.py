"""How a program talks to the test."""

import json


def tell(**record):
    print(json.dumps(record), flush=True)


def tell_and_wait(**record):
    """The test looks at the card while we wait."""
    tell(**record)
    input()
