"""Known misspellings, and British spellings, in everything that is tracked. A word that is right by intent is in `_typos.toml`."""

import subprocess

from conftest import ROOT, tracked


def misspelled(directory, files):
    command = [ROOT / ".venv/bin/typos", "--config", ROOT / "_typos.toml", "--force-exclude", "--format=brief", "--file-list", "-"]
    done = subprocess.run(command, cwd=directory, input="\n".join(map(str, files)), capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 2), done.stderr
    return done.stdout.splitlines()


def test_everything_that_is_tracked():
    files = tracked()
    assert len(files) > 900
    assert misspelled(ROOT, files) == []


def test_a_misspelling_and_a_british_spelling_are_found(tmp_path):
    (tmp_path / "page.md").write_text("Programs recieve a slice.\nThe color of the licence.\n")
    found = misspelled(tmp_path, ["page.md"])
    assert [line.split("error: ")[1] for line in found] == ["`recieve` should be `receive`", "`licence` should be `license`"]
