"""docs/errors.md has a section for each message of the package, under the words that the message begins with.

messages.txt has the whole text of each; other tests look for a few words and for what is filled in. Read what changed
there after `python tests/docs/test_errors_page.py` has written it again.
"""

import inspect
import pathlib
import re
import typing

import programs
import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGE, TEXTS = ROOT / "docs" / "errors.md", pathlib.Path(__file__).with_name("messages.txt")
FOLDERS = ("frontend", "bridge", "engine", "autodiff", "namespaces", "recipes", "keras")
MODULES = [f"keras_cg.{folder}.messages" for folder in FOLDERS]
# Functions that return a note, which is added to an error of the framework or of the user's function.
NOTES = ("got_whole", "list_of_numbers", "wrong_shape_at_run_time")
# The name of the functions that `errors.message` returns, which take texts.
FILLED = "message.<locals>.fill"
# A value for each annotation of a parameter, of which none is among the words of a heading.
VALUES = {"str": "NAME", "int": 3, "object": 0.5, "Sequence": ["NAME", "OTHER"], "Iterable": ["NAME", "OTHER"]}

pytestmark = pytest.mark.only("numpy")


def value_of(parameter):
    if parameter.default is not parameter.empty:
        return parameter.default
    (name,) = [name for name in VALUES if str(parameter.annotation).startswith(name)] or ["object"]
    return VALUES[name]


def messages():
    """The text of each message, by the name of the function that writes it."""
    found = {}
    for place in MODULES:
        # By itself: `keras_cg.keras` imports Keras, which not every environment has.
        module = programs.load(ROOT / f"{place.replace('.', '/')}.py", place)
        for name, function in vars(module).items():
            if not inspect.isfunction(function) or name.startswith("_"):
                continue
            if function.__qualname__ == FILLED:
                found[f"{place}.{name}"] = str(function("NAME", "OTHER", "THIRD", "FOURTH", "FIFTH"))
                continue
            if function.__module__ != place:
                continue
            returned = typing.get_type_hints(function)["return"]
            if name in NOTES or (inspect.isclass(returned) and issubclass(returned, Exception)):
                parameters = inspect.signature(function).parameters.values()
                arguments = {each.name: value_of(each) for each in parameters}
                if "error" in arguments:
                    arguments["error"] = ImportError("NAME")
                if "argument" in arguments:
                    arguments["argument"] = "NAME"
                found[f"{place}.{name}"] = str(function(**arguments))
    return found


MESSAGES = messages()
HEADINGS = re.findall(r"^### (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def is_begin(heading, message):
    """Whether a message begins with the words of a heading, in which `…` stands for any words."""
    heading, message = (" ".join(text.replace("`", "").split()) for text in (heading, message))
    pattern = r"\s*.+?\s*".join(re.escape(part.strip()) for part in heading.split("…"))
    return re.match(pattern, message) is not None


def texts():
    return "\n\n".join(f"{name.removeprefix('keras_cg.')}\n{text}" for name, text in MESSAGES.items()) + "\n"


def test_the_texts():
    assert texts() == TEXTS.read_text(encoding="utf-8")


def test_all_messages_are_found():
    assert len(MESSAGES) > 80
    assert {name.rpartition(".")[0] for name in MESSAGES} == set(MODULES)


@pytest.mark.parametrize("name", MESSAGES)
def test_every_message_has_a_section(name):
    message = MESSAGES[name]
    assert any(is_begin(heading, message) for heading in HEADINGS), f"no heading for: {message}"


@pytest.mark.parametrize("heading", HEADINGS)
def test_every_section_is_about_a_message(heading):
    assert any(is_begin(heading, message) for message in MESSAGES.values())


def test_every_section_has_cause_and_fix():
    sections = PAGE.read_text(encoding="utf-8").split("\n### ")[1:]
    assert len(sections) == len(HEADINGS)
    for section in sections:
        assert "\n**Cause:** " in section and "\n**Fix:** " in section, section


if __name__ == "__main__":
    TEXTS.write_text(texts(), encoding="utf-8")
