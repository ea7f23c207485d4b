"""Two processes in one slice that run the program named by the argument, the second when the first is full."""

import json
import pathlib
import subprocess
import sys

from telling import tell, tell_and_wait


def main():
    program = pathlib.Path(__file__).with_name(f"{sys.argv[1]}.py")
    children, records = [], []
    for _ in range(2):
        child = subprocess.Popen([sys.executable, program, *sys.argv[2:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        children.append(child)
        records.append(json.loads(child.stdout.readline()))
    tell_and_wait(records=records)
    # Both go on at once.
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    after = [json.loads(child.communicate()[0]) for child in children]
    tell(after=after, codes=[child.returncode for child in children])


main()
