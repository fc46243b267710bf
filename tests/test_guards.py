"""Alarms, stall dumps, replay of a step that was not finite, start records and their comparison."""

from __future__ import annotations
