"""The command line of every command: an id or a path may begin with a dash."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn


class CommandLine(argparse.ArgumentParser):
    """A parser that takes `--video -tCQ4tCQdWE`: one in 64 of YouTube's ids begins so."""

    def parse_known_args(  # type: ignore[override]  # argparse has two forms of it
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Parse as argparse does, once `--video -id` is `--video=-id`."""
        self._words = self._joined(list(sys.argv[1:] if args is None else args))
        return super().parse_known_args(self._words, namespace)

    def error(self, message: str) -> NoReturn:
        """End with the message, and with what helps where a word by itself begins with a dash."""
        odd = [word for word in self._words if self._is_value(word) and word[1] != "-"]
        if odd and "--" not in self._words:
            message += f"; what is no option and begins with a dash goes behind --: -- {odd[0]}"
        super().error(message)

    def _is_value(self, word: str) -> bool:
        """Whether a word begins as an option does and is none."""
        known = word.partition("=")[0] in self._option_string_actions
        return word.startswith("-") and word not in ("-", "--") and not known

    def _joined(self, words: list[str]) -> list[str]:
        joined: list[str] = []
        for at, word in enumerate(words):
            if word == "--":
                return joined + words[at:]
            option = self._option_string_actions.get(joined[-1]) if joined else None
            if option and option.nargs is None and self._is_value(word):
                joined[-1] += f"={word}"
            else:
                joined.append(word)
        return joined
