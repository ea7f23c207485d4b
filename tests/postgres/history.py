"""Checks whether any order of operations explains what callers saw of one task, without knowledge of the server.

A task is submitted, taken for a run, started, and done. Runs have numbers that grow. A taken task may go back to its queue before
it was started, unseen; after its start it belongs to that run until the run reports its end.
"""

from dataclasses import dataclass

FOREVER = float("inf")


@dataclass(frozen=True)
class Op:
    """It happened at one moment between its beginning and its end. Without an answer: at any moment since its beginning, or never."""

    begin: float
    end: float
    what: str
    run: int = 0
    answered: bool = True


def after(state, op):
    """The state after the operation; None: it is impossible there."""
    what, run = state
    match op.what:
        case "submit" if what == "nowhere":
            return ("waits", 0)
        # A reader that took it for a number between them never learned of it.
        case "take" if what in ("waits", "taken") and op.run > run:
            return ("taken", op.run)
        case "start" if what in ("taken", "started") and op.run == run:
            return ("started", run)
        case "done" if what in ("started", "done") and op.run == run:
            return ("done", run)
    return None


def explained(ops):
    """Does an order that agrees with the clock explain every answer, and end with the task done?"""
    seen = set()
    stack = [(frozenset(range(len(ops))), ("nowhere", 0))]
    while stack:
        left, state = stack.pop()
        if (left, state) in seen:
            continue
        seen.add((left, state))
        if state[0] == "done" and not any(ops[at].answered for at in left):
            return True
        # A call that ended before another one began happened before it.
        first_end = min((ops[at].end for at in left if ops[at].answered), default=FOREVER)
        for at in left:
            if ops[at].begin <= first_end and (state_after := after(state, ops[at])):
                stack.append((left - {at}, state_after))
    return False
