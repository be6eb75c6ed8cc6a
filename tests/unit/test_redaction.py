"""Redaction: secrets by name, by shape and by value are left out; what only looks like one stays readable."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from traincheck import redaction
from traincheck.redaction import MARK
from traincheck.runtime.recording.redaction import WindowRedactor, without_secrets
from traincheck.testing.readable_traces import from_text
from traincheck.trace.folder import RunFolder
from traincheck.trace.run_notes import Manifest, ProcessNote
from traincheck.vocab.events import Window


@pytest.fixture(autouse=True)
def known_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment is looked at again at once."""
    monkeypatch.setattr(redaction, "EVERY", 0.0)
    yield
    monkeypatch.undo()
    redaction._process_secrets._looked = float("-inf")
    redaction.renewed()


SECRET_NAMES = """
token HF_TOKEN hub_token use_auth_token accessToken api_key apiKey API-KEY wandb.api_key OPENAI_API_KEY
AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY password PGPASSWORD MYSQL_PWD db_pass client_secret
private-key credentials auth metrics_token
TRAINCHECK_WEBHOOK slack.webhook_url connection_string passphrase jwt signing-key
"""
OTHER_NAMES = """
tokenizer tokenizer_name tokens max_tokens num-tokens max_new_tokens tokens_per_step token_dim pad_token_id eos_token
bos-token cls_token image_token mask_token decoder_start_token key key_dim num_key_value_heads key_padding_mask keys
author authors secretary PWD OLDPWD SSH_AUTH_SOCK TOKENIZERS_PARALLELISM pass n_passes bypass keyboard monkey lr seed
token_type_ids password_file hidden_size
"""


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_names_of_secrets(name: str) -> None:
    assert redaction.is_secret(name)


@pytest.mark.parametrize("name", OTHER_NAMES.split())
def test_names_that_only_look_like_it(name: str) -> None:
    assert not redaction.is_secret(name)


@pytest.mark.parametrize(
    ("line", "redacted"),
    [
        ("t.py --token abc --lr 1", "t.py --token [redacted] --lr 1"),
        ("t.py --api-key=abc --lr=1", "t.py --api-key=[redacted] --lr=1"),
        ("t.py -password abc", "t.py -password [redacted]"),
        ("t.py model.api_key=abc +db.password=x1 lr=1", "t.py model.api_key=[redacted] +db.password=[redacted] lr=1"),
        ("env HF_TOKEN=abc torchrun t.py", "env HF_TOKEN=[redacted] torchrun t.py"),
        ("t.py --use-auth-token --lr 3", "t.py --use-auth-token --lr 3"),
        ("t.py --use-auth-token true --lr 3", "t.py --use-auth-token true --lr 3"),
        (
            "t.py --tokenizer gpt2 --max-tokens 100 --num_tokens 5",
            "t.py --tokenizer gpt2 --max-tokens 100 --num_tokens 5",
        ),
        ("t.py --key-dim 64 --eos-token </s> --token 50256", "t.py --key-dim 64 --eos-token </s> --token 50256"),
        ("t.py -p 8080 --data s3://bucket/x", "t.py -p 8080 --data s3://bucket/x"),
        ("t.py --db postgres://me:pw1@host/db", "t.py --db postgres://me:[redacted]@host/db"),
        ("t.py --password -secret-", "t.py --password [redacted]"),
    ],
)
def test_command_lines(line: str, redacted: str) -> None:
    assert " ".join(redaction.arguments(line.split())) == redacted


KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("no hf_abcdefghijklmnop1234 here", "no [redacted] here"),
        ("ghp_0123456789abcdefghij0123", MARK),
        ("github_pat_11ABCDEFG0abcdefghijklmnop", MARK),
        ("key sk-proj-abc123abc123abc123", f"key {MARK}"),
        ("AKIAIOSFODNN7EXAMPLE", MARK),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_123", MARK),
        (f"the key is {KEY}.", f"the key is {MARK}."),
        ("Authorization: Bearer abcdefgh1", f"Authorization: Bearer {MARK}"),
        ("https://u:pw@host/x", f"https://u:{MARK}@host/x"),
        ("https://abc123@github.com/x", f"https://{MARK}@github.com/x"),
        ("ssh://git@host/x", "ssh://git@host/x"),
        ("https://h/x?a=1&token=abc&b=2#c", f"https://h/x?a=1&token={MARK}&b=2#c"),
        ("https://h/x?X-Amz-Signature=abc&sig=q", f"https://h/x?X-Amz-Signature={MARK}&sig={MARK}"),
        ("see https://hooks.slack.com/services/T0/B0/x1.", f"see https://hooks.slack.com/{MARK}"),
        ("https://discord.com/api/webhooks/1/abc", f"https://discord.com/{MARK}"),
        ("{'api_key': 'abc d', 'lr': 1}", f"{{'api_key': '{MARK}', 'lr': 1}}"),
        ('{"a": {"password": "x y", "max_tokens": 5}}', f'{{"a": {{"password": "{MARK}", "max_tokens": 5}}}}'),
        (r'"{\"secret\": \"q1\"}"', rf'"{{\"secret\": \"{MARK}\"}}"'),
        ("login(user='me', password='hunter 2')", f"login(user='me', password='{MARK}')"),
        ("train.py --secret q1 --lr 3", f"train.py --secret {MARK} --lr 3"),
        ("wandb login 0123456789abcdef0123456789abcdef01234567", f"wandb login {MARK}"),
        ("commit 0123456789abcdef0123456789abcdef01234567", "commit 0123456789abcdef0123456789abcdef01234567"),
        ("eos_token='</s>', key_dim=64, tokens: 5", "eos_token='</s>', key_dim=64, tokens: 5"),
        ("torch.optim.Adam.step < torch.optim.Optimizer.step", "torch.optim.Adam.step < torch.optim.Optimizer.step"),
        ("at src/train.py:12:main", "at src/train.py:12:main"),
        ("a task-specific-head-with-long-name", "a task-specific-head-with-long-name"),
    ],
)
def test_texts(text: str, redacted: str) -> None:
    assert redaction.text(text) == redacted
    assert redaction.text(redacted) == redacted


def test_secrets_of_the_environment_are_redacted_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = "zz9-Plural-Alpha"
    assert redaction.text(f"x{secret}y") == f"x{secret}y"
    before = redaction.renewed()
    monkeypatch.setenv("MY_SECRET", secret)
    monkeypatch.setenv("DB_URL", "postgres://me:s3cr3tpw@host/x")
    monkeypatch.setenv("SOME_TOKEN", "resnet")  # a plain word: redacting it everywhere would tell less of models
    monkeypatch.setenv("KEY_CREDENTIALS", str(tmp_path))  # a path
    monkeypatch.setenv("USE_TOKEN", "true")
    assert redaction.text(f"x{secret}y") == f"x{MARK}y"
    assert redaction.text("wrong: s3cr3tpw") == f"wrong: {MARK}"
    assert redaction.text(f"resnet in {tmp_path} is true") == f"resnet in {tmp_path} is true"
    assert redaction.renewed() > before


def test_secrets_of_the_command_line_are_redacted_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "--password", "hunter22", "--tokenizer", "gpt2-xl"])
    assert redaction.text("hunter22 may not use gpt2-xl") == f"{MARK} may not use gpt2-xl"


TRACE = """
window train step=1
  project app.connect args={"api_key":"abc","eos_token":"</s>","n":3} result={"value":"ok"}
  project app.read_password result={"length":7,"value":"hunter2"}
  project app.next_token result={"value":"the"}
  project app.send args={"to":"https://u:pw@host/x"} result={"value":"Bearer abcdefgh12"}
  module torch.nn.Linear.forward < torch.nn.Module.forward receiver=Net.fc context={"training":true}
    reading hyperparameter.hub_token SGD.param_groups[0] "q"
    reading hyperparameter.lr SGD.param_groups[0] 0.1
    reading parameter.data hf_abcdefghijklmnop1234 5 role=saved
"""


def test_windows_are_redacted_before_any_stage_sees_them() -> None:
    (window,) = from_text(TRACE)
    seen: list[Window] = []
    stages = without_secrets([("a", seen.append), ("b", seen.append)])
    for _, work in stages:
        work(window)
    first, second = seen
    assert first is second
    calls = first.calls
    assert dict(calls[0].args) == {"api_key": MARK, "eos_token": "</s>", "n": 3}
    assert dict(calls[1].result) == {"length": 7, "value": MARK}
    assert dict(calls[2].result) == {"value": "the"}
    assert dict(calls[3].args) == {"to": f"https://u:{MARK}@host/x"}
    assert dict(calls[3].result) == {"value": f"Bearer {MARK}"}
    assert [reading.value for reading in first.readings] == [MARK, 0.1, 5]
    assert first.readings[2].variable == MARK


def test_objects_without_secrets_stay_identical() -> None:
    (window,) = from_text('window train step=1\n  project app.f args={"n":3} result={"value":"ok"}\n')
    assert WindowRedactor()(window) is window


def test_windows_are_looked_at_again_when_a_secret_becomes_known(monkeypatch: pytest.MonkeyPatch) -> None:
    (window,) = from_text('window train step=1\n  project app.f args={"who":"zz9-Plural"}\n')
    redact = WindowRedactor()
    assert redact(window) is window
    monkeypatch.setenv("MY_SECRET", "zz9-Plural")
    assert dict(redact(replace(window)).calls[0].args) == {"who": MARK}


def test_steps_like_the_one_before_cost_next_to_nothing() -> None:
    """Counted: no text is scanned twice."""
    (window,) = from_text(
        "window train step=1\n" + '  project app.f args={"n":3,"s":"x y"} result={"value":"ok"}\n' * 50
    )
    shared = window.calls[0]
    window = replace(
        window, calls=tuple(call._replace(args=shared.args, result=shared.result) for call in window.calls)
    )
    redact = WindowRedactor()
    looked = itertools.count()
    clean = redact._facts._clean
    redact._facts._clean = lambda facts: (next(looked), clean(facts))[1]
    for _ in range(20):
        assert redact(replace(window)).calls is window.calls
    assert next(looked) == 2


def test_notes_are_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "zz9-Plural-Alpha")
    manifest = Manifest(argv=("train.py", "--token", "abc", "--lr", "1"), script="train zz9-Plural-Alpha.py")
    folder = RunFolder.create(tmp_path / "run", manifest)
    folder.update(ended="now")
    folder.write_note(ProcessNote(not_observed=("functions: KeyError: 'zz9-Plural-Alpha'", "password=q1")))
    assert folder.manifest.argv == ("train.py", "--token", MARK, "--lr", "1")
    assert folder.manifest.script == f"train {MARK}.py"
    assert folder.notes()[0].not_observed == (f"functions: KeyError: '{MARK}'", f"password={MARK}")


def test_a_text_of_any_size_is_looked_through_in_little_time() -> None:
    """Quadratic growth would take minutes."""
    began = time.process_time()
    for piece in ("a='", "token=", "--token ", "https://a:", "eyJ-", 'key: "', "a=b ", "-----BEGIN PRIVATE KEY-----"):
        redaction.text(piece * 5000)
    assert time.process_time() - began < 60
