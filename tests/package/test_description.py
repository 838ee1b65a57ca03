"""The description of the built package, as an index renders it: every link leads somewhere, and every picture shows.

`nox -s build` names the distributions in the environment variable DISTRIBUTIONS.
"""

import email
import os
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from readme_renderer import markdown

ROOT = Path(__file__).parents[2]
PLACES = (
    "https://github.com/keras-cg/keras-cg/blob/main/",
    "https://raw.githubusercontent.com/keras-cg/keras-cg/main/",
)
DISTRIBUTIONS = os.environ["DISTRIBUTIONS"].split(os.pathsep)


def metadata(path):
    if path.endswith(".whl"):
        with zipfile.ZipFile(path) as wheel:
            (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
            return email.message_from_bytes(wheel.read(name))
    with tarfile.open(path) as sdist:
        (member,) = [member for member in sdist.getmembers() if re.fullmatch(r"[^/]*/PKG-INFO", member.name)]
        return email.message_from_bytes(sdist.extractfile(member).read())


@pytest.mark.parametrize("path", DISTRIBUTIONS, ids=[Path(path).suffix for path in DISTRIBUTIONS])
def test_the_links_of_the_description(path):
    text = metadata(path).get_payload(decode=True).decode()
    page = markdown.render(text, variant="GFM")
    # Without the anchors of the headings, which the renderer adds.
    links = [link for link in re.findall(r'(?:href|src)="([^"]*)"', page) if not link.startswith("#user-content-")]
    assert len(links) == len(re.findall(r"\]\(", (ROOT / "README.md").read_text())) > 20
    for link in links:
        assert link.startswith("https://"), link
        for place in PLACES:
            if link.startswith(place):
                assert (ROOT / link.removeprefix(place).partition("#")[0]).exists(), link


@pytest.mark.parametrize("path", DISTRIBUTIONS, ids=[Path(path).suffix for path in DISTRIBUTIONS])
def test_the_addresses_of_the_project(path):
    found = dict(each.split(", ") for each in metadata(path).get_all("Project-URL"))
    assert set(found) == {"Changelog", "Documentation", "Issues", "Repository"}
    assert all(address.startswith("https://github.com/keras-cg/keras-cg") for address in found.values())
