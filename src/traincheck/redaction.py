"""Removes secrets from command lines, windows and messages before TrainCheck writes them.

Note [What is secret]
A value is secret by its name (`--api-key x`, `token="x"`, `{"password": "x"}`), by its shape (`hf_...`, a cloud key, a
private key, the password in a URL, a webhook), or as the value of a secret name in the environment or on the command
line of this process, wherever it occurs. Names are read word by word, so `tokenizer`, `max_tokens`, `eos_token` and
`key_dim` are not secret. TrainCheck redacts text when it arrives (windows in runtime/recording/redaction.py, notes in
trace/run_notes.py, messages on stderr), not when it is read.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

MARK = "[redacted]"

LEAST = 6
"""The shortest secret that is searched everywhere; shorter ones would match harmless text."""

EVERY = 1.0
"""Seconds between two reads of the environment, which a program may change."""


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET = _names(
    "token secret secrets password passwords passwd passphrase passcode credential credentials creds auth "
    "authorization apikey apikeys accesskey secretkey privatekey bearer jwt cookie webhook"
)
_SECRET_ENDS = ("password", "passwd", "passphrase", "apikey", "secret", "authtoken", "accesstoken", "apitoken")
_SECRET_KEYS = _names(
    "api access secret private auth signing signature encryption account ssh subscription license service "
    "storage session shared master hmac aes gpg pgp wandb openai anthropic comet neptune hf"
)
_OF_LANGUAGE = _names(
    "pad eos bos sep cls mask unk special image img video audio vision text start end stop first last next "
    "prev previous new begin boi eoi think newline per sub word byte char class dist register prompt target "
    "source src tgt lang language separator placeholder blank space fim prefix suffix middle tool role "
    "assistant system speaker speech latent query memory num max min n multi single predict input output "
    "decoder encoder added additional extra forced suppress"
)
"""Words before `token` that mean a token of a language."""
_PASS_OF = _names("db user smtp imap mysql pg postgres redis ftp mail root admin proxy sql mongo http")

_HARMLESS = re.compile(
    r"(?i)true|false|yes|no|on|off|none|null|auto|basic|bearer|digest|required|optional|\d?|<[^<>]*>"
)
"""Values that are never secret."""
_NUMBER = re.compile(r"-?\d{1,7}")


@lru_cache(maxsize=10_000)
def is_secret(name: str) -> bool:
    """Whether the value under this name (an option, a variable, an argument, a key) is a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    if words[-2:] == ["webhook", "url"] or words[-2:] == ["connection", "string"]:
        return True
    if len(words) > 2 and words[-2:] == ["key", "id"]:
        return words[-3] in ("access", "secret")
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "token":
        return before not in _OF_LANGUAGE
    if last in ("key", "keys"):
        return before in _SECRET_KEYS
    if last == "pwd":
        return bool(before)
    if last == "pass":
        return before in _PASS_OF
    return last in _SECRET or last.endswith(_SECRET_ENDS)


def _harmless(name: str, value: str) -> bool:
    """Whether the value under a secret name is harmless: a switch, or the number of a token."""
    return (
        not value
        or MARK in value
        or bool(_HARMLESS.fullmatch(value))
        or (name.lower().endswith("token") and bool(_NUMBER.fullmatch(value)))
    )


# -- by shape ----------------------------------------------------------------------------------------------------------

_START = r"(?<![A-Za-z0-9])"
_SHAPES = re.compile(
    _START + r"(?:hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9]{16,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|sk-(?=[\w-]*\d)[\w-]{16,}|[rs]k_(?:live|test)_\w{12,}|(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|AIza[\w-]{30,}|ya29\.[\w-]{16,}|xox[abeoprs]-[\w-]{10,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{40,}"
    r"|dckr_pat_[\w-]{16,}|SG\.[\w-]{16,}\.[\w-]{16,}|dapi[0-9a-f]{32}|eyJ[\w-]{8,4000}\.[\w-]{4,}(?:\.[\w-]*)*)"
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*PRIVATE KEY-----|.*)", re.DOTALL)
_BEARER = re.compile(r"(?i)\b(Bearer|Authorization[\"']?\s*[:=]\s*[\"']?\w+)(\s+)[\w~+/.-]{8,}=*")
_LOGIN = re.compile(r"(\blogin\s+)([0-9a-f]{40})\b")
_WEBHOOK = re.compile(
    r"(?i)(https?://(?:hooks\.[\w.-]+(?::\d+)?|[\w.-]+(?::\d+)?(?=/[^\s\"'<>]*webhook)|api\.telegram\.org(?=/bot)))"
    r"/[^\s\"'<>]+"
)
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20}://)([^\s/?#@\"'<>:]{0,200})(:[^\s/?#\"'<>]{0,2000})?@")
_QUERY = re.compile(r"([?&;](?:sig|signature|key|code|x-amz-signature|x-amz-credential)=)[^\s&;\"'<>#]+", re.IGNORECASE)
_PAIR = re.compile(
    r"(?<![A-Za-z0-9_])([A-Za-z][\w.-]{0,80})(\\?[\"']?\s{0,4}(?:=>|[=:])\s{0,4})(?:(\\?[\"'])((?:(?!\3).){0,4000})(?:\3)?|([^\s\"',;&(){}\[\]<>]+))",
    re.DOTALL,
)
"""A name and its value: `name=value`, `name: 'value'`, `"name": "value"`, also where quotes are escaped."""
_OPTION = re.compile(r"((?<!\S)--?([A-Za-z][\w.-]*)\s+)(?!-)(?:\"([^\"]*)\"|'([^']*)'|(\S+))")
"""An option and its value, in a command line as one text."""
_PROSE = _names("was were is are has have needs need and or for in to with without beside must may can cannot takes of")
"""Words after an option in a sentence about it."""


def _of_user(match: re.Match[str]) -> str:
    scheme, user, password = match.groups()
    if password is not None:
        return f"{scheme}{user}:{MARK}@" if user else f"{scheme}{MARK}@"
    return f"{scheme}{MARK}@" if scheme.lower().startswith("http") and user else match[0]


def _of_pair(match: re.Match[str]) -> str:
    name, between, quote, quoted, bare = match.groups()
    value = bare if quoted is None else quoted
    if not is_secret(name) or _harmless(name, value):
        return match[0]
    return f"{name}{between}{quote or ''}{MARK}{quote or ''}"


def _of_option(match: re.Match[str]) -> str:
    value = match[3] or match[4] or match[5] or ""
    prose = value in _PROSE or _harmless(match[2], value)
    return match[0] if prose or not is_secret(match[2]) else f"{match[1]}{MARK}"


def _by_shape(text: str) -> str:
    if "://" in text:
        text = _QUERY.sub(rf"\1{MARK}", _USER.sub(_of_user, _WEBHOOK.sub(rf"\1/{MARK}", text)))
    text = _SHAPES.sub(MARK, _PRIVATE_KEY.sub(MARK, _BEARER.sub(rf"\1\2{MARK}", text)))
    return _LOGIN.sub(rf"\1{MARK}", _OPTION.sub(_of_option, _pairs(text)))


def _pairs(text: str) -> str:
    """Redact pairs, also inside the value of another pair (`config: {"token": "x"}`).

    After a pair without a secret the search goes on from the end of its name.
    """
    parts, at = [], 0
    while (match := _PAIR.search(text, at)) is not None:
        replacement = _of_pair(match)
        end = match.end() if replacement != match[0] else match.end(2)
        parts += [text[at : match.start()], replacement if replacement != match[0] else text[match.start() : end]]
        at = end
    return "".join([*parts, text[at:]])


# -- by value ----------------------------------------------------------------------------------------------------------


def _is_distinctive(value: str) -> bool:
    """Whether to search for a secret everywhere: not for a path or a common word."""
    if len(value) < LEAST or (value.isdecimal() and len(value) < 2 * LEAST):
        return False
    if re.fullmatch(r"[a-z_.-]+|[A-Z][a-z]+|[A-Z_]+", value) and len(value) < 20:
        return False
    return not (value.startswith(("/", "./", "~")) and os.path.exists(os.path.expanduser(value)))  # noqa: PTH110, PTH111


def _pairs_of(words: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Index, name and value of the words of a command line that are values of secret options."""
    option = ""
    for index, word in enumerate(words):
        assigned = re.fullmatch(r"[-+~]*([A-Za-z][\w./@-]*)=(.*)", word, re.DOTALL)
        if assigned is not None:
            if is_secret(assigned[1]) and not _harmless(assigned[1], assigned[2]):
                yield index, assigned[1], assigned[2]
        elif option and not word.startswith("--") and is_secret(option) and not _harmless(option, word):
            yield index, option, word
        named = assigned is None and re.fullmatch(r"--?([A-Za-z][\w.-]*)", word)
        option = named[1] if named else ""


class _ProcessSecrets:
    """The secrets in the environment and on the command line of this process, read again from time to time."""

    def __init__(self) -> None:
        self.values: tuple[str, ...] = ()
        self.number = 0
        self._looked = float("-inf")
        self._seen: tuple[object, ...] = ()

    def renew(self) -> int:
        """The generation of the current set of secrets; it grows when the set changes."""
        now = time.monotonic()
        if now - self._looked >= EVERY:
            self._looked = now
            try:
                seen = (tuple(os.environ.items()), tuple(sys.argv), tuple(sys.orig_argv))
            except (RuntimeError, AttributeError):  # another thread changes it, or it does not exist yet
                return self.number
            if seen != self._seen:
                self._seen = seen
                values = tuple(
                    sorted({value for value in _given(*seen) if _is_distinctive(value)}, key=len, reverse=True)
                )
                if values != self.values:
                    self.values = values
                    self.number += 1
        return self.number


def _given(environ: Iterable[tuple[str, str]], *lines: Sequence[str]) -> Iterator[str]:
    """Values of secret names in the environment and on the command lines, and passwords in URLs."""
    texts = []
    for name, value in environ:
        if is_secret(name) and not _harmless(name, value):
            yield value.strip()
        texts.append(value)
    for words in lines:
        yield from (value for _, _, value in _pairs_of([word for word in words if isinstance(word, str)]))
        texts += [word for word in words if isinstance(word, str)]
    for text in texts:
        if "@" in text:
            yield from (match[3][1:] for match in _USER.finditer(text) if match[3])


_process_secrets = _ProcessSecrets()


def renewed() -> int:
    """The generation of the secrets. Redacted text that is kept is valid for one generation."""
    return _process_secrets.renew()


@lru_cache(maxsize=20_000)
def _redacted(text: str, generation: int) -> str:
    for value in _process_secrets.values:
        if value in text:
            text = text.replace(value, MARK)
    return _by_shape(text)


def text(original: str) -> str:
    """`original` without secrets.

    Known limitations: TrainCheck recognises a secret by its name alone if it is a plain word, is shorter than `LEAST`,
    or has no known shape and is not in the environment or on the command line.
    """
    return original if len(original) < LEAST else _redacted(original, _process_secrets.renew())


Value = TypeVar("Value")


def value(name: str, original: Value) -> Value:
    """The value under this name without secrets; only texts are secrets."""
    if not isinstance(original, str):
        return original
    secret = is_secret(name) and not _harmless(name, original)
    return MARK if secret else text(original)  # type: ignore[return-value]


def arguments(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line without secrets."""
    clean = list(words)
    for index, _, secret in _pairs_of(words):
        word = clean[index]
        clean[index] = word[: len(word) - len(secret)] + MARK if word.endswith(secret) else MARK
    return tuple(map(text, clean))


def everything(data: object) -> object:
    """Plain data (dicts, lists, texts, numbers) without secrets."""
    if isinstance(data, str):
        return text(data)
    if isinstance(data, dict):
        return {key: value(str(key), item) if isinstance(item, str) else everything(item) for key, item in data.items()}
    if isinstance(data, (list, tuple)):
        return [everything(item) for item in data]
    return data
