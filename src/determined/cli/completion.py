"""`det completion`: what a shell needs to complete commands."""

from __future__ import annotations

import enum

from determined.cli.nouns import noun_app, verb

app = noun_app("Let the shell complete commands: bash, zsh, fish.")


class Shell(str, enum.Enum):
    """A shell that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@verb(app, "show")
def show(shell: Shell) -> None:
    """Print the script; for bash: eval "$(det completion show bash)"."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    print(get_completion_script(prog_name="det", complete_var="_DET_COMPLETE", shell=shell.value))


@verb(app, "install")
def install(shell: Shell) -> None:
    """Write the script where the shell finds it when it starts."""
    from typer.completion import install as install_script  # type: ignore[attr-defined]

    _, path = install_script(shell=shell.value, prog_name="det", complete_var="_DET_COMPLETE")
    print(f"{shell.value} completes det from its next start ({path})")
