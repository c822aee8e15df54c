"""completion: the script that lets a shell complete verbs, options, pipelines, savepoints, tables and routes."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from rivertwice.cli.frame import example, say
from rivertwice.core import ServiceError

VARIABLE = "_RIVERTWICE_COMPLETE"


@click.command(
    epilog=example(
        'eval "$(rivertwice completion bash)"',
        "rivertwice completion bash > ~/.local/share/bash-completion/completions/rivertwice",
        "rivertwice completion zsh > ~/.zfunc/_rivertwice",
        "rivertwice completion fish > ~/.config/fish/completions/rivertwice.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands in a shell.

    Verbs and options are completed, and the names of pipelines, versions, savepoints, tables and routes of the project and home
    that are set where the shell stands.
    """
    made = get_completion_class(shell)
    if made is None:
        message = f"click has no completion for {shell}, so there is no script; use bash, zsh or fish"
        raise ServiceError(message)
    say(made(ctx.find_root().command, {}, "rivertwice", VARIABLE).source())
