"""Reads shell text as far as the checks of a command need: its simple commands, and what each is ended by.

No shell grammar: quotes, comments, operators, here-documents and expansions are told apart, so that an `&` in a string
or in `2>&1` is no background job and `FOO=1` as an argument is no assignment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

_TOKENS = re.compile(
    r"""(?P<space>(?:[ \t\r]|\\\n)+)
    | (?P<comment>(?<![^\s;&|()])\#[^\n]*)
    | (?P<heredoc><<-?[ \t]*(?P<mark>'[^'\n]+'|"[^"\n]+"|\\?\w+))
    | (?P<redirect>\d*(?:<<<|&>>|&>|>&|<&|>>|>\||<>|[<>])(?:-|\d+(?!\w))?)
    | (?P<operator>&&|\|\||\|&|;;&|;;|;&|[;&|\n()])
    | (?P<word>(?:
          \\. | '[^']*' | "(?:\\.|[^"\\])*" | `(?:\\.|[^`\\])*`
        | \$\(\((?:[^()]|\([^()]*\))*\)\) | \$\{[^}]*\}
        | [^\s;&|()<>'"\\`] | ['"`\\]
      )+)""",
    re.VERBOSE | re.DOTALL,
)
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")
_KEYWORDS = {"if", "then", "elif", "else", "while", "until", "do", "done", "fi", "esac", "{", "}", "!", "time"}
_PREFIXES = {
    "exec", "command", "builtin", "env", "nice", "ionice", "stdbuf", "sudo", "chrt", "numactl", "taskset", "timeout",
}  # fmt: skip
_SHELLS = {"sh", "bash", "dash", "zsh"}


@dataclass(frozen=True)
class SimpleCommand:
    """One command: its words without quotes, and the operator after it ("" at the end of the text)."""

    words: tuple[str, ...]
    end: str

    @property
    def assigned(self) -> list[str]:
        """The variables that it sets for itself or for what follows."""
        own = [match[1] for word in self._prefix() if (match := _ASSIGNMENT.match(word))]
        if self.name in ("export", "declare", "typeset", "readonly"):
            own += [match[1] for word in self.words if (match := _ASSIGNMENT.match(word))]
        return own

    @property
    def name(self) -> str:
        """What runs, without assignments and what only wraps it (exec, env, nice, …); "" where nothing does."""
        rest = self.words[len(self._prefix()) :]
        return PurePosixPath(rest[0]).name if rest else ""

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.words[len(self._prefix()) + 1 :]

    def _prefix(self) -> tuple[str, ...]:
        """Assignments, keywords and wrappers in front. A wrapper's options are skipped, and numbers after them."""
        wrapped = False
        for index, word in enumerate(self.words):
            if _ASSIGNMENT.match(word) or word in _KEYWORDS:
                continue
            if PurePosixPath(word).name in _PREFIXES:
                wrapped = True
                continue
            if wrapped and (word.startswith("-") or re.fullmatch(r"[\d.,-]+[smhd]?", word)):
                continue
            return self.words[:index]
        return self.words


def simple_commands(text: str) -> list[SimpleCommand]:
    """The simple commands of `text` in order; those of `sh -c TEXT` follow it."""
    found: list[SimpleCommand] = []
    words: list[str] = []
    for kind, token in _tokens(text):
        if kind == "word":
            words.append(_unquoted(token))
        elif kind == "operator":
            _take(words, token, found)
    _take(words, "", found)
    return found


def in_background(text: str) -> bool:
    """Whether the last thing that `text` starts is left running: a trailing `&`, also before `done`, `}` or `)`."""
    last = ""
    for kind, piece in _tokens(text):
        if kind == "word" and piece not in ("done", "fi", "esac", "}"):
            last = "word"
        elif kind == "operator" and piece not in ("\n", ";", ")"):
            last = piece
    return last == "&"


def takes_arguments(text: str) -> bool:
    """Whether words that are put behind `text` reach what it runs: it is one simple command, on one line, that no
    comment follows and no `sh -c` wraps."""
    only_words = all(kind == "word" for kind, _ in _tokens(text.strip(), all_kinds=True))
    commands = simple_commands(text)
    return only_words and len(commands) == 1 and commands[0].words[0] not in _KEYWORDS


def _take(words: list[str], end: str, found: list[SimpleCommand]) -> None:
    if words:
        command = SimpleCommand(tuple(words), end)
        found.append(command)
        if command.name in _SHELLS:
            found += [inner for text in _texts_of_c(command.arguments) for inner in simple_commands(text)]
    words.clear()


def _texts_of_c(arguments: tuple[str, ...]) -> Iterator[str]:
    """The text of `sh -c TEXT`, `bash -lc TEXT`."""
    for option, text in pairwise(arguments):
        if re.fullmatch("-[a-z]*c", option):
            yield text
            return


def _tokens(text: str, *, all_kinds: bool = False) -> Iterator[tuple[str, str]]:
    """(kind, token) of words and operators in order; here-documents' bodies are left out, the file after a redirection
    too. With `all_kinds`, comments and here-documents are told as well."""
    position, pending, after_redirect = 0, list[str](), False
    while position < len(text):
        match = _TOKENS.match(text, position)
        if match is None:  # nothing known: one character that matters to no check
            position += 1
            continue
        position, kind = match.end(), match.lastgroup or ""
        if all_kinds and kind in ("comment", "heredoc"):
            yield kind, match.group()
        if match["heredoc"]:
            pending.append(match["mark"].strip("'\"\\"))
            continue
        if kind == "redirect":
            after_redirect = match.group()[-1] in "<>&|"
            continue
        if kind == "word" and after_redirect:
            after_redirect = False
            continue
        if kind in ("word", "operator"):
            after_redirect = False
            yield kind, match.group()
        if match.group() == "\n":
            while pending:
                position = _after_heredoc(text, position, pending.pop(0))


def _after_heredoc(text: str, position: int, mark: str) -> int:
    end = re.compile(rf"^\t*{re.escape(mark)}$", re.MULTILINE).search(text, position)
    return end.end() if end else len(text)


def _unquoted(word: str) -> str:
    """A word without its quotes; expansions stay as they are."""
    return re.sub(r"\\(.)|'([^']*)'|\"((?:\\.|[^\"\\])*)\"", lambda match: match[1] or match[2] or match[3] or "", word)
