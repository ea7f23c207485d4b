"""What `kubectl get gpus.cantle.dev` shows, by the real kubectl."""

import re

from processes import wait_until

PATH = "/apis/cantle.dev/v1alpha1/gpus"


def rows(shell, words="gpus.cantle.dev"):
    """The table as a user sees it: a dict of each line; kubectl prints no head without a line."""
    # No value has more than one space in a row.
    table = [re.split(r" {2,}", line.strip()) for line in shell.run(f"kubectl get {words}").splitlines()]
    return [dict(zip(table[0], line, strict=True)) for line in table[1:]]


def wait_shown(shell, expected, log):
    """Until each GPU shows this: mode, free MiB, slices and health."""
    shown = lambda: [(row["MODE"], int(row["FREE"].removesuffix("Mi")), int(row["SLICES"]), row["HEALTH"]) for row in rows(shell)]
    wait_until(lambda: shown() == expected, 120, lambda: f"{shown()}, and not {expected}\n{log()}")
    return rows(shell)
