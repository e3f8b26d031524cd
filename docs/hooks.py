"""Fills the pages of the documentation with what the code says: tables of settings, and the command line's own help."""

import dataclasses
import re
from typing import Any

SETTINGS = re.compile(r"^<!-- settings of (\w+) -->$", re.MULTILINE)
COMMANDS = re.compile(r"^<!-- commands -->$", re.MULTILINE)


def _range(allowed: Any) -> str:
    words = {"gt": "> ", "ge": "≥ ", "lt": "< ", "le": "≤ "}
    limits = [f"{word}{allowed[k]:g}" for k, word in words.items() if k in allowed]
    choices = [f"`{c!r}`" for c in allowed.get("choices", ())]
    whole = ["whole"] if "whole" in allowed else []
    others = [allowed["also"][0]] if "also" in allowed else []
    return ", ".join(whole + limits + choices + others) or "any"


def settings_of(name: str) -> str:
    """The settings of an algorithm as a table: name, default, range, meaning."""
    import foedus as fd

    rows = ["| setting | default | range | what it is |", "|---|---|---|---|"]
    for f in dataclasses.fields(getattr(fd, name)):
        if f.metadata:
            doc = f.metadata["doc"].replace("|", "\\|")
            allowed = _range(f.metadata["allowed"])
            rows.append(f"| `{f.name}` | `{f.default!r}` | {allowed} | {doc} |")
    return "\n".join(rows)


def commands() -> str:
    """Every command with its arguments and options."""
    import typer

    from foedus.app.cli import app

    group: Any = typer.main.get_command(app)
    parts = []
    for name, command in group.commands.items():
        given = " ".join(p.name.upper() for p in command.params if p.param_type_name == "argument")
        parts.append(f"## foedus {name}\n\n{command.help}\n\n`foedus {name} {given} [options]`\n".replace("  ", " "))
        rows = ["| option | default | what it does |", "|---|---|---|"]
        for p in command.params:
            if p.param_type_name == "option" and p.name != "help":
                shown = "" if p.default is None or p.default is False else f"`{p.default}`"
                help_ = (p.help or "").replace("|", "\\|")
                rows.append(f"| {', '.join(f'`{o}`' for o in [*p.opts, *p.secondary_opts])} | {shown} | {help_} |")
        parts.append("\n".join(rows) if len(rows) > 2 else "")
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    markdown = SETTINGS.sub(lambda found: settings_of(found[1]), markdown)
    return COMMANDS.sub(lambda _: commands(), markdown)
