"""The workflows of GitHub run every session of the noxfile."""

import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]
PATH = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}


def shell(step, folder=ROOT, **variables):
    """What a step prints, run as GitHub runs it."""
    options = ("--noprofile", "--norc", "-eo", "pipefail") if step.get("shell") == "bash" else ("-e",)
    environment = {**os.environ, "PATH": PATH, **variables}
    command = ("bash", *options, "-c", step["run"])
    return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


def sessions():
    """Each session of the noxfile, whether it is a default one or not."""
    return json.loads(shell({"run": "nox --list --json -k True"}))


def filled(text, values):
    """A text with expressions of GitHub, those that have a value replaced."""
    return re.sub(r"\$\{\{ *(.*?) *\}\}", lambda found: str(values.get(found[1], found[0])), text)


def outputs(job, folder):
    """What a job hands to the others, from its steps that have a name for it."""
    values = {}
    for step in job["steps"]:
        if "id" in step and "run" in step:
            file = folder / step["id"]
            shell(step, GITHUB_OUTPUT=str(file))
            for line in file.read_text().splitlines():
                name, _, value = line.partition("=")
                values[f"steps.{step['id']}.outputs.{name}"] = value
    return {name: filled(text, values) for name, text in job["outputs"].items()}


def elements(job, values):
    """Each element of a job's matrix, as values of expressions."""
    axes = []
    for name, listed in job.get("strategy", {}).get("matrix", {}).items():
        if isinstance(listed, str):
            listed = json.loads(filled(listed, values))
        axes.append([(f"matrix.{name}", each) for each in listed])
    return map(dict, itertools.product(*axes))


def commands(workflow, folder):
    """Each command of a workflow on Linux, once for each element of its job's matrix."""
    values = {}
    for name, job in workflow["jobs"].items():
        for output, value in outputs(job, folder).items() if "outputs" in job else ():
            values |= {f"needs.{name}.outputs.{output}": value, f"fromJson(needs.{name}.outputs.{output})": value}
    for job in workflow["jobs"].values():
        if job["runs-on"] == "ubuntu-latest":
            for element in elements(job, values):
                yield from (filled(step["run"], element) for step in job["steps"] if "run" in step)


def test_every_session_is_run_by_a_workflow(tmp_path):
    run = {
        session
        for workflow in WORKFLOWS.values()
        for command in commands(workflow, tmp_path)
        for session in command.partition(" -s ")[2].partition(" -- ")[0].strip('"').split('" "')
        if command.startswith("nox ") and " -s " in command
    }
    # What other sessions require runs with them.
    every = {each["session"]: each["tags"] for each in sessions() if each["session"] != "frameworks"}
    by_hand = {session for session, tags in every.items() if "by_hand" in tags}
    assert "tests(numpy)" in every
    assert run | by_hand == set(every)
    assert by_hand.isdisjoint(run)


@pytest.mark.parametrize(
    ("kind", "name", "is_released", "expected"),
    [
        ("tag", "v0.4.0", True, ["deploy --push --update-aliases 0.4.0 latest", "set-default --push latest"]),
        ("branch", "main", True, ["deploy --push dev", "list latest"]),
        ("branch", "main", False, ["deploy --push dev", "list latest", "set-default --push dev"]),
    ],
)
def test_each_release_has_its_folder_of_the_site(tmp_path, kind, name, is_released, expected):
    """With programs that write down how they are called, in the place of Mike and git."""
    (step,) = (each for each in WORKFLOWS["docs"]["jobs"]["publish"]["steps"] if each.get("name") == "publish")
    for name_of_program in ("bin/git", ".nox/docs/bin/mike"):
        program = tmp_path / name_of_program
        program.parent.mkdir(parents=True)
        # `mike list latest` fails where there is no release.
        program.write_text(f'#!/bin/sh\necho "$@" >> {program}.txt\n[ "$1" != list ] || {str(is_released).lower()}\n')
        program.chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    shell(step, tmp_path, PATH=path, GITHUB_REF_TYPE=kind, GITHUB_REF_NAME=name)
    assert (tmp_path / ".nox/docs/bin/mike.txt").read_text().splitlines() == expected
