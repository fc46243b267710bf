"""The config, its schema, and the settings class of each section."""

from __future__ import annotations

from pathlib import Path

import yaml

import pipeline.settings
import trainer.settings

ROOT = Path(__file__).resolve().parents[1]
CONFIG_TEXT = (ROOT / "config/config.yaml").read_text(encoding="utf-8")
CONFIG = yaml.safe_load(CONFIG_TEXT)
SCHEMA = yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text(encoding="utf-8"))
SECTIONS = {
    "plan": pipeline.settings.PlanSettings,
    "manifest": pipeline.settings.ManifestSettings,
    "captions": pipeline.settings.CaptionsSettings,
    "encode": pipeline.settings.EncodeSettings,
    "vocabulary": pipeline.settings.VocabularySettings,
    "bags": pipeline.settings.BagsSettings,
    "train": trainer.settings.TrainSettings,
    "evaluate": trainer.settings.EvaluateSettings,
    "report": pipeline.settings.ReportSettings,
}
