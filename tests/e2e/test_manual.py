"""The self-description of the command line: the reference, the manual pages, and the completions of a shell."""

import re

from conftest import CANTLE, ROOT, wait_until


def offered(cantle, *words):
    """The completions in bash for the last of these words."""
    env = cantle.env | {"COMPLETE": "bash", "_CLAP_IFS": "\n", "_CLAP_COMPLETE_INDEX": str(len(words))}
    asked = cantle.program(CANTLE, "--", "cantle", *words, env=env, check=True)
    assert asked.stderr == ""
    return asked.stdout.split()


def test_the_reference_is_current(cantle):
    page = (ROOT / "docs/reference/cli.md").read_text()
    assert page == cantle.cli("reference").stdout, "run: dist/bin/cantle reference > docs/reference/cli.md"


def test_every_command_has_a_manual_page(cantle, tmp_path):
    cantle.cli("man", tmp_path / "man1")
    commands = re.findall(r"^## `cantle ?(.*)`$", (ROOT / "docs/reference/cli.md").read_text(), re.M)
    assert "run" in commands and "daemon" in commands
    for command in commands:
        page = tmp_path / "man1" / ("-".join(["cantle", *command.split()]) + ".1")
        assert page.read_text().count(".SH") >= 3, page


def wait_offered(cantle, expected, *words):
    """Nobody waits for a completion: a server that has not answered within a second offers nothing, and on a busy machine it may need longer."""
    wait_until(lambda: offered(cantle, *words) == expected, 60, lambda: offered(cantle, *words))


def test_a_shell_is_offered_commands_queues_and_tasks(cantle):
    assert {"submit", "sim", "simulate"} <= set(offered(cantle, "s")) and "run" not in offered(cantle, "s")
    assert offered(cantle, "submit", "--queue", "") == [], "no server, nothing to offer"
    cantle.up("--queue", "half_gpu=0.5", "quarter_gpu=0.25")
    wait_offered(cantle, ["half_gpu", "quarter_gpu"], "submit", "--queue", "")
    wait_offered(cantle, ["quarter_gpu"], "submit", "--queue", "q")
    task = cantle.cli("-o", "name", "submit", "--queue", "half_gpu", "--", "true").stdout.strip()
    wait_offered(cantle, [task], "why", task[:4])


def test_completions_are_printed_for_the_usual_shells(cantle):
    for shell in ["bash", "zsh", "fish"]:
        assert "COMPLETE" in cantle.cli("completions", shell).stdout
    line = cantle.cli("completions", "tcsh", code=2).stderr
    assert "tcsh" in line and "bash" in line


def commands_below(cantle, *words):
    """The commands that the help lists, and those below them."""
    heads = "Commands" if words else "Tasks|Machines|Administration|More"
    listed = re.findall(rf"^(?:{heads}):\n((?:  .*\n|\n(?=  ))*)", cantle.cli(*words, "--help").stdout, re.M)
    names = re.findall(r"^  ([a-z][a-z-]*)", "".join(listed), re.M)
    for name in names:
        if name != "help":
            yield " ".join([*words, name])
            yield from commands_below(cantle, *words, name)


def test_the_reference_has_the_help_of_every_command_with_all_options(cantle):
    """The page is reviewed, so a change of words in any help is seen there."""
    page = (ROOT / "docs/reference/cli.md").read_text()
    sections = dict(re.findall(r"^## `cantle ?(.*)`\n((?:(?!^## ).*\n)*)", page, re.M))
    found = list(commands_below(cantle))
    assert len(found) > 40 and set(found) <= set(sections), set(found) - set(sections)
    for command in ["", *found]:
        help = cantle.cli(*command.split(), "--help").stdout
        options = set(re.findall(r"^ {2,6}(?:-\w, )?(--[a-z-]+)", help, re.M)) - {"--help", "--version"}
        words = command.split()
        # Options of a command hold for those below it.
        shown = "".join(sections[" ".join(words[:count])] for count in range(len(words) + 1))
        assert {option for option in options if f"`{option}" not in shown} == set(), command
