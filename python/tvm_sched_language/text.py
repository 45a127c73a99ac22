"""`Text`: between text and tokens, with the tokenizer and the chat template that the artifact holds."""

from __future__ import annotations

import base64
import importlib
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

from tvm_sched_runtime.errors import InputError

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class Text:
    """Tokenizer and chat template of an artifact.

    Parameters
    ----------
    about : mapping
        The entry ``generation`` of the artifact's metadata (``docs/formats/language_model.md``).
    where : str
        Name of the artifact, for messages.
    """

    def __init__(self, about: Mapping[str, Any], where: str) -> None:
        self._about, self._where = about, where

    @cached_property
    def tokenizer(self) -> Any:
        """The ``tokenizers.Tokenizer``.

        Raises
        ------
        InputError
            The artifact has none, or the package is not installed.
        """
        if "tokenizer" not in self._about:
            raise InputError(
                f"{self._where}: has no tokenizer, because the model's folder had no tokenizer.json; give tokens instead "
                "of text"
            )
        content = zlib.decompress(base64.b64decode(self._about["tokenizer"]))
        return _package("tokenizers", self._where).Tokenizer.from_str(content.decode("utf-8"))

    @property
    def has_tokenizer(self) -> bool:
        """Whether the artifact has a tokenizer."""
        return "tokenizer" in self._about

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return the tokens of a text; ``special`` adds those that the model expects around it.

        Raises
        ------
        InputError
            The text has bytes that are no characters (lone surrogates).
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"the prompt has bytes that are no UTF-8 text, the first as character {error.start + 1}; convert it"
            ) from None
        return list(self.tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt for the next message of the assistant, by the model's chat template.

        Parameters
        ----------
        messages : sequence of mappings
            Each has ``role`` (``system``, ``user``, ``assistant``) and ``content``.

        Raises
        ------
        InputError
            The model has no chat template, it refuses the messages, or the package jinja2 is not installed.
        """
        if "chat_template" not in self._about:
            raise InputError(
                f"{self._where}: has no chat template, because the model's folder had none; give a plain prompt"
            )
        sandbox = _package("jinja2.sandbox", self._where)

        def refuse(message: str) -> None:
            raise InputError(f"{self._where}: its chat template refuses the messages: {message}")

        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = refuse
        try:
            template = environment.from_string(self._about["chat_template"])
            values = {"messages": [dict(m) for m in messages], "add_generation_prompt": True}
            return str(template.render(**values, **self._about.get("special", {})))
        except InputError:
            raise
        except Exception as error:  # the template is the model's: any error of any class
            raise InputError(f"{self._where}: its chat template fails ({error})") from None


class Decoded:
    """The text of tokens that come one by one: each call returns what is new and complete."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._tokens: list[int] = []
        self._first = self._read = 0

    def add(self, token: int) -> str:
        """Return the new text; "" while a character is incomplete."""
        self._tokens.append(token)
        return self._new(finished=False)

    def finish(self) -> str:
        """Return what is left."""
        return self._new(finished=True)

    def _new(self, finished: bool) -> str:
        # Some tokenizers write a token differently at the start of a text, so the tokens before it are decoded, too.
        before = self._text.decode(self._tokens[self._first : self._read])
        now = self._text.decode(self._tokens[self._first :])
        if not finished and (len(now) <= len(before) or now.endswith(_UNFINISHED)):
            return ""
        self._first, self._read = self._read, len(self._tokens)
        return now[len(before) :]


def _package(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        top = name.partition(".")[0]
        raise InputError(
            f"{where}: this needs the package {top}: pip install {top}, or 'tvm-sched-runtime[generate]' for all"
        ) from None
