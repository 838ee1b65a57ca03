"""Every function of the array API standard on every backend, compared with array-api-strict; and docs/ops.md."""

import functools
import inspect
import re

import array_api_strict
import numpy as np
import pytest
from standard import comparison, report
from standard.differences import DIFFERENCES, NO_GRADIENT

from keras_cg import ops
from keras_cg.frontend import config
from keras_cg.namespaces import standard


@functools.cache
def page(backend):
    return report.column(backend)


@pytest.mark.parametrize("name", standard.FUNCTIONS)
def test_a_function(backend, name):
    outcome, found = comparison.compare(backend, name)
    if (backend, name) in DIFFERENCES:
        assert outcome == comparison.DIFFERS, "it does as the standard says: take it out of DIFFERENCES"
    else:
        assert outcome != comparison.DIFFERS, found
    assert page(backend)[name] == report.cell(backend, name, outcome), "write docs/ops.md again with `nox -s ops`"


def test_the_constants_and_dtypes(backend):
    assert (ops.e, ops.pi, ops.inf, ops.newaxis) == (np.e, np.pi, np.inf, None)
    assert np.isnan(ops.nan)
    with config.active.double_precision():
        for name in standard.DTYPES:
            assert config.active.dtype(ops.zeros(1, dtype=getattr(ops, name))) == name
    x = ops.zeros((2, 3), dtype=ops.float32)
    assert tuple(x[ops.newaxis, ...].shape) == (1, 2, 3)


def test_the_inspection_functions(backend):
    info = ops.__array_namespace_info__()
    with config.active.double_precision():
        assert {"float32", "int32", "bool"} <= {*info.dtypes()} <= {*standard.DTYPES}
        assert info.dtypes(kind="bool").keys() == {"bool"} and "int8" not in info.dtypes(kind="real floating")
        defaults = info.default_dtypes()
        assert {*defaults} == {"real floating", "complex floating", "integral", "indexing"}
        assert all(config.active.dtype(ops.zeros(1, dtype=dtype)) in standard.DTYPES for dtype in defaults.values())
    assert {"boolean indexing", "data-dependent shapes"} <= info.capabilities().keys()
    assert info.default_device() in [*info.devices(), None]
    assert ops.__array_api_version__ == standard.VERSION


@pytest.mark.only("numpy")
def test_the_table_is_the_standard():
    """Names, and parameters with their kinds and defaults, of what array-api-strict has in that version."""
    later = {"isin", "broadcast_shapes"}  # of 2025.12
    for prefix, module in (
        ("", array_api_strict),
        ("linalg.", array_api_strict.linalg),
        ("fft.", array_api_strict.fft),
    ):
        functions = {name for name in module.__all__ if inspect.isfunction(getattr(module, name))}
        functions = {name for name in functions if "flags" not in name} - later - {"__array_namespace_info__"}
        ours = {
            name.removeprefix(prefix) for name in standard.FUNCTIONS if name.rpartition(".")[0] == prefix.rstrip(".")
        }
        assert ours == functions
        for name in functions - {"expand_dims"}:  # array-api-strict has that of 2025.12
            theirs = inspect.signature(getattr(module, name)).parameters.values()
            mine = standard.parameters(standard.FUNCTIONS[prefix + name])
            assert [(each.name, each.kind) for each in mine] == [(each.name, each.kind) for each in theirs], name
            for own, their in zip(mine, theirs, strict=True):
                is_undefined = "UNDEF" in str(their.default)
                assert is_undefined or own.default == their.default or own.empty in (own.default, their.default), name


@pytest.mark.only("numpy")
def test_the_page_is_made_of_the_tables():
    text = report.PAGE.read_text("utf-8")
    assert text.startswith(report.INTRO + report.LEGEND)
    names = re.findall(r"\[`([\w.]+)`\]\(https://data-apis", text)
    assert sorted(names) == sorted(standard.FUNCTIONS)
    for backend, name in (*DIFFERENCES, *NO_GRADIENT):
        assert report.column(backend)[name] != comparison.SAME


@pytest.mark.only("numpy")
def test_the_tables_name_functions():
    for backend, name in (*DIFFERENCES, *NO_GRADIENT):
        assert backend in report.BACKENDS and name in standard.FUNCTIONS
