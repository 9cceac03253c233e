"""``smddp completion``: the words that the Tab key completes, as a function of the shell.

The function holds all words: a completion starts no Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any

import typer

_FUNCTION = """\
_smddp() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} command="" word
    for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD - 1))}}"; do
        case "$command $word" in
            {commands}) command="${{command:+$command }}$word" ;;
        esac
    done
    local options="--help" commands=""
    case "$command" in
{words}
    esac
    COMPREPLY=()
    if [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$current"))
    elif [[ $commands ]]; then
        COMPREPLY=($(compgen -W "$commands" -- "$current"))
    fi
}}
complete -o default -F _smddp smddp
"""
_FOR_ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"


class _Shell(str, Enum):
    BASH = "bash"
    ZSH = "zsh"


def completion(context: typer.Context, shell: Annotated[_Shell, typer.Argument(help="The shell.")]) -> None:
    """Print a function for a shell, with which the Tab key completes commands and options.

    In ~/.bashrc: eval "$(smddp completion bash)"
    """
    root = context.find_root()
    found = list(_commands("", root.command, root))
    words = [f'        "{name}") options="{options}" commands="{commands}" ;;' for name, options, commands in found]
    names = "|".join(f'"{parent} {name}"' for parent, _, commands in found for name in commands.split())
    typer.echo(
        (_FOR_ZSH if shell is _Shell.ZSH else "") + _FUNCTION.format(commands=names, words="\n".join(words)), nl=False
    )


def _commands(name: str, command: Any, context: Any) -> Iterator[tuple[str, str, str]]:
    """Yield each command's name, options and commands, beginning with the one given."""
    options = [each for parameter in command.get_params(context) for each in parameter.opts if each.startswith("--")]
    commands = command.list_commands(context) if hasattr(command, "list_commands") else []
    yield name, " ".join(options), " ".join(commands)
    for each in commands:
        yield from _commands(f"{name} {each}".strip(), command.get_command(context, each), context)
