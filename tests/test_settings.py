"""config.yaml, the schema and the settings classes are one list of keys, told three times."""

from __future__ import annotations

import dataclasses
import re

import jsonschema
import pytest
import yaml

from pipeline.formats.recipe import PRESETS, TAILS, Sampling
from pipeline.formats.settings import settings_from
from pipeline.formats.videos import SPLITS, VideoEntry
from tests.config_files import CONFIG, CONFIG_TEXT, ROOT, SCHEMA, SECTIONS


def _objects(schema: dict, where: str = "config"):
    """Yield (place, schema) of every object with properties, however deep."""
    if "properties" in schema:
        yield where, schema
        for name, inner in schema["properties"].items():
            yield from _objects(inner, f"{where}.{name}")
    for branch in ("then", "else"):
        if branch in schema:
            yield from _objects(schema[branch], where)


def test_sections_are_the_settings_classes_and_run():
    assert list(CONFIG) == [*SECTIONS, "run"] == list(SCHEMA["properties"])


@pytest.mark.parametrize("section", SECTIONS)
def test_keys_are_equal_in_config_schema_and_class(section):
    fields = [field.name for field in dataclasses.fields(SECTIONS[section])]
    assert list(CONFIG[section]) == fields
    assert list(SCHEMA["properties"][section]["properties"]) == fields


def test_keys_of_run_are_equal_in_config_and_schema():
    run = SCHEMA["properties"]["run"]["properties"]
    assert list(CONFIG["run"]) == list(run)
    for part in ("encode", "train"):
        assert list(CONFIG["run"][part]) == list(run[part]["properties"])


def test_every_object_of_the_schema_is_closed_and_complete():
    places = dict(_objects(SCHEMA))
    assert "config.encode.sampling" in places
    for where, schema in places.items():
        assert schema["additionalProperties"] is False, where
        assert schema["required"] == list(schema["properties"]), where


def test_every_key_of_the_schema_has_a_description():
    for where, schema in _objects(SCHEMA):
        for name, inner in schema["properties"].items():
            assert inner.get("description"), f"{where}.{name}"


def test_every_key_of_the_config_has_a_comment_above_it():
    lines = CONFIG_TEXT.splitlines()
    inside_sampling = False
    for above, line in zip(["", *lines], lines, strict=False):
        found = re.match(r"( *)(\w+):", line)
        if not found:
            continue
        deep = len(found.group(1)) == 4
        inside_sampling = found.group(2) == "sampling" or (inside_sampling and deep)
        if not (inside_sampling and deep):  # the four keys of sampling share a comment
            assert above.strip().startswith("#"), line


def test_defaults_satisfy_the_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(CONFIG)


@pytest.mark.parametrize("section", SECTIONS)
def test_defaults_satisfy_the_class(section):
    settings_from(SECTIONS[section], CONFIG[section], where="config")


@pytest.mark.parametrize("name", ["tests/config.yaml", "tests/trial_config.yaml"])
def test_configs_of_the_tests_fit_the_schema_and_the_classes(name):
    overrides = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    assert overrides.keys() <= CONFIG.keys()
    for section, values in overrides.items():
        if section != "run":
            merged = _laid_over(CONFIG[section], values)
            settings_from(SECTIONS[section], merged, where=name)
            jsonschema.validate(merged, SCHEMA["properties"][section])


def _choices():
    for section in SECTIONS:
        for key, schema in SCHEMA["properties"][section]["properties"].items():
            if "enum" in schema:
                yield section, key, schema["enum"]


@pytest.mark.parametrize(("section", "key", "allowed"), list(_choices()))
def test_choices_of_the_schema_are_those_of_the_class(section, key, allowed):
    for value in allowed:
        settings_from(SECTIONS[section], CONFIG[section] | {key: value}, where="config")
    other = 99 if isinstance(allowed[0], int) else "other"
    with pytest.raises(ValueError, match="allowed"):
        settings_from(SECTIONS[section], CONFIG[section] | {key: other}, where="config")


def test_sampling_in_the_schema_is_the_recipe_s():
    sampling = SCHEMA["properties"]["encode"]["properties"]["sampling"]
    assert sampling["then"]["enum"] == sorted(PRESETS)
    assert list(sampling["else"]["properties"]) == [
        field.name for field in dataclasses.fields(Sampling)
    ]
    assert set(sampling["else"]["properties"]["tail"]["enum"]) == set(TAILS)


def test_columns_of_the_videos_schema_are_those_of_the_table():
    path = ROOT / "workflow/schemas/videos.schema.yaml"
    schema = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert list(schema["properties"]) == [field.name for field in dataclasses.fields(VideoEntry)]
    assert tuple(schema["properties"]["split"]["enum"]) == SPLITS
    jsonschema.validate({"video_id": "a b", "path": ""}, schema)
    for bad in ({"video_id": "a\tb", "path": ""}, {"video_id": "", "path": "x"}, {"path": "x"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)


def test_every_key_of_run_reaches_a_rule():
    rules = "".join(path.read_text() for path in sorted((ROOT / "workflow/rules").glob("*.smk")))
    run = CONFIG["run"]
    # train_resources passes the others on under their own names.
    passed = {key for key in run["train"] if f"{{resources.train_{key}}}" in rules}
    keys = {*run, *run["encode"], *run["train"]} - passed
    unused = [key for key in sorted(keys) if not re.search(f"[\"']{key}[\"']", rules)]
    assert unused == []


def _laid_over(base: dict, top: dict) -> dict:
    """What Snakemake makes of two config files."""
    merged = dict(base)
    for key, value in top.items():
        inner = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = _laid_over(base[key], value) if inner else value
    return merged


@pytest.mark.parametrize("overlay", ["config/howto100m.yaml", "tests/config.yaml"])
def test_overlays_give_a_config_that_every_stage_accepts(overlay):
    merged = _laid_over(CONFIG, yaml.safe_load((ROOT / overlay).read_text(encoding="utf-8")))
    jsonschema.validate(merged, SCHEMA)
    for section, cls in SECTIONS.items():
        settings_from(cls, merged[section], where=overlay)


def test_sampling_and_protocols_are_checked_as_their_sections_are():
    odd = {"frame_rate": 1e308, "frames": 2, "stride_seconds": 1e308, "tail": "zero"}
    for sampling in (odd, odd | {"frames": "2"}, {"frames": 2}):
        with pytest.raises(ValueError, match=r"^config: "):
            settings_from(
                SECTIONS["encode"], CONFIG["encode"] | {"sampling": sampling}, where="config"
            )
    evaluate = CONFIG["evaluate"] | {"protocols": {"mine": 5}}
    with pytest.raises(ValueError, match=r"protocols\.mine must be a section of keys or null"):
        settings_from(SECTIONS["evaluate"], evaluate, where="config")
