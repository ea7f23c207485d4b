"""How late this machine is at any moment, measured beside a test: the time of a process that does nothing. On an idle machine it is a few
milliseconds; where others compute it grows as much as the times of what is tested."""

import contextlib
import statistics
import subprocess
import threading
import time


class Lateness:
    def __init__(self):
        # When each process ended, and how long it took, in seconds.
        self.seen, self.is_over = [], threading.Event()

    def measure(self):
        while not self.is_over.wait(0.05):
            begin = time.monotonic()
            subprocess.run(["true"], check=True)
            end = time.monotonic()
            self.seen.append((end, end - begin))

    def worst_since(self, begin):
        """The longest time since this moment, with one measurement after it."""
        now = time.monotonic()
        while not self.seen or self.seen[-1][0] < now:
            time.sleep(0.01)
        return max(took for end, took in self.seen if end >= begin)

    def usual(self):
        return statistics.median(took for _, took in self.seen)


@contextlib.contextmanager
def lateness():
    found = Lateness()
    thread = threading.Thread(target=found.measure)
    thread.start()
    try:
        yield found
    finally:
        found.is_over.set()
        thread.join()
