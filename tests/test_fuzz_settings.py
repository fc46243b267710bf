"""Whatever a config holds, it becomes settings, or one line that names the key."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.settings import read_settings
from tests.config_files import CONFIG, SCHEMA, SECTIONS
from tests.fuzzing import damaged, read_or_refuse

ROOT = Path(__file__).resolve().parents[1]
CONFIG_FAULT = ("config_fault", "did_you_mean")
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
values = st.recursive(
    st.none() | st.booleans() | st.text() | st.floats() | st.integers()
    | st.sampled_from([10**400, -(10**400), 1e308, 5e-324, "nan", "s3d", "x.y:z", 1.0, 2**63]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


def paths(section: object, before: tuple = ()) -> list[tuple]:
    """The place of every value of a config, however deep."""
    inner = section.items() if isinstance(section, dict) else ()
    return [before, *(path for key, value in inner for path in paths(value, (*before, key)))]


@st.composite
def changed(draw: st.DrawFn, config: dict) -> dict:
    """The config with one to three values replaced, removed, or added under a new key."""
    config = json.loads(json.dumps(config))
    for _ in range(draw(st.integers(1, 3))):
        *path, key = draw(st.sampled_from(paths(config)[1:]))
        section = config
        for step in path:
            section = section[step]
        match draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"])):
            case "replace":
                section[key] = draw(values)
            case "remove":
                del section[key]
            case "add":
                section[draw(st.text())] = draw(values)
        if len(paths(config)) == 1:
            break
    return config


@pytest.fixture(scope="module")
def frozen(tmp_path_factory) -> Path:
    """Each example overwrites the frozen section of the one before it."""
    return tmp_path_factory.mktemp("fuzz") / "section.json"


@pytest.mark.parametrize("section", SECTIONS)
@given(data=st.data())
def test_a_frozen_section(frozen, section, data):
    cls, whole = SECTIONS[section], json.dumps(CONFIG[section])
    sections = changed(CONFIG[section]).map(json.dumps).map(str.encode)
    frozen.write_bytes(data.draw(sections | damaged([whole.encode()])))
    settings = read_or_refuse(lambda: read_settings(cls, frozen), naming=frozen)
    if section == "encode" and settings is not None:
        assert settings.grid.num_vectors(1000) >= 1


@pytest.fixture(scope="module")
def config_fault(tmp_path_factory):
    """The function of the workflow's rules, which no module holds."""
    text = (ROOT / "workflow/rules/checks.smk").read_text(encoding="utf-8")
    used = [n for n in ast.parse(text).body if getattr(n, "name", "") in CONFIG_FAULT]
    source = [ast.get_source_segment(text, node) for node in used]
    path = tmp_path_factory.mktemp("rules") / "config_fault.py"
    path.write_text("import difflib\n\n" + "\n\n\n".join(source) + "\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("config_fault", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.config_fault


@given(config=changed(CONFIG))
def test_the_workflow_s_config(config_fault, config):
    fault = jsonschema.exceptions.best_match(VALIDATOR.iter_errors(config))
    line = "" if fault is None else config_fault(fault)
    assert (fault is None) == (line == "")
    assert len(line) < 3000
    if fault is None:  # a config that passes reads the same after it was written and read
        assert (
            yaml.safe_load(yaml.safe_dump(config)) == config or "nan" in json.dumps(config).lower()
        )
