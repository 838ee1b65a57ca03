"""`keras-cg info`: versions, the installed backends, and the active one."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import platform
from typing import Any

import keras_cg
from keras_cg import backends
from keras_cg.command import messages, output, processes, versions
from keras_cg.engine import messages as engine_messages
from keras_cg.frontend import config

__all__ = ["run"]

# The import of a large framework from a cold disk is slow.
TIMEOUT = 120.0


def run(options: argparse.Namespace) -> int:
    """Shows versions and backends.

    Raises:
        UsageError: The active backend is unknown or not installed.
    """
    active, source = config.resolve()
    installed = backends.installed()
    found: list[dict[str, Any]] = [
        {"name": name, "installed": name in installed, "version": _version(name)} for name in backends.names()
    ]
    data: dict[str, Any] = {
        "python": platform.python_version(),
        "keras": _version("keras"),
        "active": active,
        "because": source,
        "backends": found,
        "untested": versions.untested(),
    }
    if not options.json:
        # Before the backends start, which may take a minute.
        _show_versions(data)
    answers = asyncio.run(processes.of_all(installed, _ask))
    for each in found:
        each.update(answers.get(each["name"], {}))
    problem = None
    if active not in backends.names():
        problem = messages.UsageError(str(engine_messages.unknown_backend(active, source, backends.names())))
    elif active not in installed:
        problem = messages.not_installed(active)
    if not options.json:
        _show(data)
    if problem is not None:
        problem.data = data
        raise problem
    if options.json:
        output.write_json(data)
    return 1 if any(each.get("problem") for each in found) else 0


def _show_versions(data: dict[str, Any]) -> None:
    """Prints everything that needs no import of a framework."""
    from rich.console import Console
    from rich.text import Text

    keras = f"Keras {data['keras']}" if data["keras"] else "Keras not installed"
    remedy = "; set KERAS_CG_BACKEND or KERAS_BACKEND" if data["because"] == "the default" else ""
    lines = (
        f"keras_cg {keras_cg.__version__}, Python {data['python']}, {keras}",
        f"active backend: {data['active']} (from {data['because']}{remedy})",
    )
    Console().print(Text("\n".join(lines)), soft_wrap=True)


def _version(name: str) -> str | None:
    """Returns the version of a framework, without importing it; None if it is not installed."""
    point = next((each for each in importlib.metadata.entry_points(group=backends.GROUP) if each.name == name), None)
    if point is not None and point.dist is not None:
        return point.dist.version
    # The distribution may have another name than the module: tensorflow-cpu.
    for distribution in importlib.metadata.packages_distributions().get(name, []):
        return importlib.metadata.version(distribution)
    return None


async def _ask(name: str) -> dict[str, Any]:
    """Returns the devices of a backend, or the reason why it does not start."""
    found: dict[str, Any] = {}

    def handle(event: dict[str, Any]) -> None:
        found.update({"devices": event["names"]} if event["event"] == "devices" else {"problem": event["message"]})

    death = await processes.follow({"task": "devices", "backend": name}, TIMEOUT, handle)
    if death is not None:
        found["problem"] = processes.obituary(name, death, TIMEOUT, "starting")
    return found


def _show(data: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.ROUNDED, border_style="dim")
    widest = max(len(each["name"]) for each in data["backends"])
    for column, width in (("backend", widest), ("version", len("not installed")), ("devices", 14), ("", len("active"))):
        table.add_column(column, header_style="dim", min_width=width, overflow="fold")
    for each in data["backends"]:
        active = each["name"] == data["active"]
        style = "bold green" if active else "" if each["installed"] else "dim"
        devices = ", ".join(each.get("devices", ())) if each["installed"] else messages.install(each["name"])
        if each.get("problem"):
            devices, style = "does not start", "red"
        version = (each["version"] or "?") if each["installed"] else "not installed"
        table.add_row(Text(each["name"], style), Text(version, style), Text(devices, style), "active" if active else "")
    console = Console()
    # On a narrow terminal the table is wider than the terminal, which wraps the lines: no text is lost.
    console.width = max(console.width, console.measure(table, options=console.options.update(max_width=10_000)).minimum)
    console.print(table)
    for each in data["backends"]:
        if each.get("problem"):
            console.print(Text(each["problem"], "red"), soft_wrap=True)
    for line in data["untested"]:
        console.print(Text(line, "yellow"), soft_wrap=True)
