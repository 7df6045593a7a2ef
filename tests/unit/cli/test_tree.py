"""The tree of commands: every one can be asked for help, by all its names, and none costs what another needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from determined.cli import main, nouns


def walk(words: list[str], group: nouns.Verbs) -> Iterator[list[str]]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if isinstance(command, nouns.Verbs):
            yield from walk([*words, name], command)
        else:
            yield from ([*words, each] for each in (name, *group.other_names(name)))


def commands() -> Iterator[list[str]]:
    for noun in nouns.NOUNS:
        command = nouns.load(noun)
        if isinstance(command, nouns.Verbs):
            yield from walk([noun.name], command)
        else:
            yield [noun.name]


ALL = list(commands())


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_explains_itself(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([*words, "--help"]) == main.DONE
    shown = capsys.readouterr().out
    assert f"Usage: det {' '.join(words)}" in shown
    body = shown.partition("\n\n")[2]
    assert body.strip() and not body.startswith("Options:"), "it must say what it does"


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_option_and_argument_says_what_it_is_for(words: list[str]) -> None:
    noun = next(noun for noun in nouns.NOUNS if noun.name == words[0])
    command = nouns.load(noun)
    for word in words[1:]:
        command = command.get_command(None, word)
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    assert [each.opts for each in options if not each.help] == []


@pytest.mark.parametrize("noun", nouns.NOUNS, ids=lambda noun: noun.name)
def test_short_names_are_the_same_noun(noun: nouns.Noun, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (noun.name, *noun.aliases):
        assert main.main([name, "--help"]) == main.DONE
        assert f"Usage: det {name}" in capsys.readouterr().out


def test_no_name_is_given_twice() -> None:
    names = [name for noun in nouns.NOUNS for name in (noun.name, *noun.aliases)]
    assert len(names) == len(set(names))
    assert len({" ".join(words) for words in ALL}) == len(ALL)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["experimnt"], "did you mean experiment?"),
        (["e", "lits"], "did you mean list"),
        (["e", "set", "nmae"], "did you mean name?"),
    ],
)
def test_a_slip_is_answered_with_a_guess(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(words) == main.USAGE
    assert hint in capsys.readouterr().err


def modules_after(*words: str) -> set[str]:
    """What a command has imported when it is done."""
    code = (
        "import sys; from determined.cli import main; code = main.main(sys.argv[1:]); "
        "print('\\n'.join(sys.modules), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [["--help"], ["experiment", "--help"], ["experiment", "create", "--help"]])
def test_help_imports_little(words: list[str]) -> None:
    loaded = modules_after(*words)
    assert not loaded & {"torch", "httpx", "numpy", "yaml", "rich.console", "determined.config", "determined.client"}


def test_help_of_the_root_imports_no_noun() -> None:
    loaded = modules_after("--help")
    assert not loaded & {f"determined.cli.{noun.module}" for noun in nouns.NOUNS}


def complete(line: str) -> list[str]:
    words = line.split(" ")
    environ = {**os.environ, "_DET_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run([sys.executable, "-m", "determined.cli.main"], env=environ, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "among"),
    [
        ("det exp", "experiment"),
        ("det experiment list-", "list-trials"),
        ("det e set ", "gc-policy"),
        ("det --mas", "--master"),
    ],
)
def test_the_shell_is_told_what_could_come_next(line: str, among: str) -> None:
    assert among in complete(line)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["completion", "show", shell]) == main.DONE
    assert "_DET_COMPLETE" in capsys.readouterr().out
