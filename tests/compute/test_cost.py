"""What the gate costs per launch, compared with the same program outside of any slice and without a gate, in the same run."""

import json
import subprocess

from tenants import CANTLE


def test_a_launch_costs_a_few_nanoseconds_more_and_none_where_even(box):
    def best_ns(*prefix):
        done = subprocess.run(box.command(*prefix, box.load, "cost", 0, 1), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])["ns"]

    run = [CANTLE, "-q", "run", "--gpu", "0.5", "--compute"]
    # The program takes the best of many rounds itself. Where all processors are busy none may be good, so the best of several programs count.
    native = even = fair = float("inf")
    for _ in range(12):
        native, even, fair = min(native, best_ns()), min(even, best_ns(*run, "even", "--")), min(fair, best_ns(*run, "fair", "--"))
        print(f"native {native} ns, even {even} ns, fair {fair} ns")
        if fair - native <= 8 and even - native <= 1:
            return
    raise AssertionError(f"native {native} ns, even {even} ns, fair {fair} ns")
