"""The configuration: every rule's message, what valid files mean, and that the docs name every key."""

from __future__ import annotations

import os
import re
import shutil
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kvwatch.config import (
    Config,
    ConfigError,
    Problem,
    Server,
    default_config,
    load_config,
    parse_config,
)
from kvwatch.config_models import SECTIONS, keys_of
from kvwatch.config_values import parse_duration
from kvwatch.config_yaml import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINES = ("vllm", "llamacpp")
FIXTURES = Path(__file__).parent / "config"
DOCS = Path(__file__).parent.parent / "docs" / "configuration.md"

TOP_KEYS = (
    "listen, web_config_file, interval, typical_window, share_limit, discovery, nvml, scrape, history, pods, "
    "log, servers"
)
SERVER_KEYS = (
    "name, url, engine, bearer_token_file, ca_file, pid, container, unit, model_config, full_length_tokens, "
    "request_limit, max_num_batched_tokens, pool_tokens, kv_unified, cache_dtype, share, "
    "kv_cache_memory_bytes, tensor_parallel, pipeline_parallel, hybrid_manager"
)
LISTEN = 'allowed: 127.0.0.1:9836, ":9836" (all addresses) or "[::1]:9836"'
URL = "allowed: the server's base address, such as http://127.0.0.1:8000"
FRACTION = "allowed: a fraction above 0 and at most 1, such as 0.9"
SIZE = "allowed: bytes, or a number with KiB, MiB, GiB or TiB: 6.26GiB"
DURATION = "allowed: a number with ms, s, m, h or d, such as 5s"
NO_VALUE = "the key has no value; give it one or leave the key out"
NOT_WHOLE = "is not a whole number; allowed: a whole number from 1"
HOLDS_ONE = "allowed: a file that holds only the token (a relative path starts at the configuration's folder)"
SYNTAX = (
    "write `key: value`, indent with spaces, and quote a value that starts with punctuation or holds `: `"
)
DTYPE = "allowed: the engine's own word, such as auto, fp8 or q8_0"
NAME = "allowed: 1 to 64 of the characters A-Z a-z 0-9 _ . : -"
ONE_NAME = "give one of them a name"
SHORT_WINDOW = "typical_window is shorter than two intervals; lengthen it or shorten the interval"
TOO_LARGE = "more than 20 levels or 50000 values with aliases written out; use fewer"

PIECES = [
    ": ",
    "\n",
    "\n  ",
    "\n  - ",
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "<<",
    "'",
    "5s",
    "true",
    "7",
    "0.5",
    "?",
    ", ",
    "http://h:1",
]
INVALID = {
    "alias-bomb": [
        f"1: {TOO_LARGE}",
    ],
    "alias-cycle": [
        f"1: {TOO_LARGE}",
    ],
    "alias-undefined": [
        "1: an alias (*) without its anchor (&); quote a value that starts with *",
    ],
    "boolean": [
        "3: servers[0].kv_unified: 'yes' is not a boolean; allowed: true, false",
        "4: servers[0].hybrid_manager: 1 is not a boolean; allowed: true, false",
    ],
    "ca-file-http": [
        "3: servers[0].ca_file: the url is http, where no certificate is used; leave the key out",
    ],
    "ca-file": [
        "3: servers[0].ca_file: the file holds no certificate; allowed: a file of PEM certificates",
    ],
    "cache-dtype": [
        f"3: servers[0].cache_dtype: 8 is not a data type; {DTYPE}",
    ],
    "complex-key": [
        "2: a key is a list or a mapping; allowed: a plain word",
    ],
    "control-character": [
        "2: the character U+0001 is not allowed in YAML; remove it",
    ],
    "duplicate-key": [
        "3: interval: the key is given twice, first in line 1; keep one of the two",
    ],
    "duration-without-unit": [
        "1: interval: 5 has no unit; write 5s for seconds (units: ms, s, m, h, d)",
    ],
    "duration": [
        f"1: interval: '1h30m' is not a duration; {DURATION}",
        f"2: typical_window: '12:30' is not a duration; {DURATION}",
    ],
    "empty-value": [
        f"1: interval: {NO_VALUE}",
        f"2: nvml: {NO_VALUE}",
        f"4: servers[0].url: {NO_VALUE}",
        f"5: servers[0].pid: {NO_VALUE}",
    ],
    "engine": [
        "3: servers[0].engine: 'sglang' is not a choice; allowed: auto, vllm, llamacpp",
    ],
    "history": [
        "2: history.path: this is not a path; allowed: the path of a file",
        "3: history.retention: '30m' is out of range; allowed: 1h to 3650d",
        "4: history.max_size: '1MiB' is out of range; allowed: 16MiB to 1TiB",
        "5: history.keep: unknown key; allowed: path, retention, max_size",
    ],
    "history-switch": [
        "1: history: 'on' is not a mapping; allowed: off, or the keys path, retention, max_size",
    ],
    "interval-range": [
        "1: interval: '100ms' is out of range; allowed: 200ms to 1h",
    ],
    "listen-host": [
        f"1: listen: the host of '*:9836' is not a name or an address; {LISTEN}",
    ],
    "listen-number": [
        f"1: listen: 9836 has no address; {LISTEN}",
    ],
    "listen-port": [
        f"1: listen: '127.0.0.1:99999' has no port from 0 to 65535; {LISTEN}",
    ],
    "listen-unquoted": [
        f"1: not YAML: expected the node content, but found ':'; {SYNTAX}",
    ],
    "log": [
        "2: log.format: 'text' is not a choice; allowed: logfmt, json",
        "3: log.level: 'on' is not a choice; allowed: debug, info, warning, error",
    ],
    "many": [
        f"1: intervall: unknown key; did you mean interval? allowed: {TOP_KEYS}",
        f"2: listen: 'localhost' has no port from 0 to 65535; {LISTEN}",
        f"6: servers[0].port: unknown key; allowed: {SERVER_KEYS}",
        "7: servers[1].name: 'chat' is the name of servers[0] in line 4; names are unique",
        f"8: servers[1].url: the URL does not start with http:// or https://; {URL}",
        "9: servers[1].pid: -1 is out of range; allowed: a whole number from 1 to 4194304",
        f"10: share_limit: 0 is out of range; {FRACTION}",
        "11: share_limit: the key is given twice, first in line 10; keep one of the two",
    ],
    "merge-key": [
        "4: servers[1].'<<': merge keys are not supported; write the keys out",
    ],
    "name-boolean": [
        "2: servers[0].name: true is not text; put it in quotes",
    ],
    "name-duplicate-derived": [
        f"3: servers[1].url: '127.0.0.1:8000', from the url, is the name of servers[0] in line 2; {ONE_NAME}",
    ],
    "name-duplicate": [
        "6: servers[2].name: 'chat' is the name of servers[0] in line 2; names are unique",
    ],
    "discovery": [
        "1: discovery: 'auto' is not a boolean; allowed: true, false",
        "4: servers[0].name: 'discovery' is kvwatch's own search for servers; allowed: any other name",
    ],
    "name": [
        f"2: servers[0].name: 'chat server' is not a name; {NAME}",
    ],
    "home": [
        "3: servers[0].container: 'chat' is no container ID; allowed: 12 to 64 hex digits, in quotes",
        "4: servers[0].unit: 'chat' is no service; allowed: its full name, such as vllm.service",
        "5: servers[1]: give one of pid, container and unit",
    ],
    "pods": [
        "1: pods: give one of kubelet and file",
    ],
    "not-in-this-version": [
        f"3: telemetry: unknown key; allowed: {TOP_KEYS}",
    ],
    "not-utf8": [
        "2: this line is not UTF-8; save the file as UTF-8",
    ],
    "nvml": [
        "1: nvml.enabled: 'off' is not a choice; allowed: auto, true, false",
        "1: nvml.deadline: '2m' is out of range; allowed: 50ms to 1m",
        "1: nvml.let_go: '0s' is out of range; allowed: 1s to 1d",
    ],
    "path": [
        "3: servers[0].model_config: this is not a path; allowed: the path of a file",
    ],
    "pid": [
        "3: servers[0].pid: 0 is out of range; allowed: a whole number from 1 to 4194304",
    ],
    "pin": [
        "3: servers[0].kv_cache_memory_bytes: 6 bytes is out of range; allowed: 1MiB to 16TiB",
        f"5: servers[1].kv_cache_memory_bytes: 6.26 is not a size; {SIZE}",
    ],
    "scrape-range": [
        "1: scrape.max_bytes: 1024 bytes is out of range; allowed: 64KiB to 256MiB",
    ],
    "scrape": [
        "2: scrape.deadline: '1ms' is out of range; allowed: 50ms to 1m",
        f"3: scrape.max_bytes: '8MB' is not a size; {SIZE}",
    ],
    "second-document": [
        "2: a second document starts here; give one document a file",
    ],
    "secret-in-unknown-key": [
        f"3: servers[0].bearer_token: unknown key; did you mean bearer_token_file? allowed: {SERVER_KEYS}",
    ],
    "section-type": [
        "1: nvml: true is not a mapping; allowed: the keys enabled, deadline, let_go",
        "2: log: a list is not a mapping; allowed: the keys format, level",
        "3: servers: a mapping is not a list; allowed: a list of servers, each `- url: http://127.0.0.1:8000`",
    ],
    "server-type": [
        f"2: servers[0]: a URL is not a mapping; allowed: the keys {SERVER_KEYS}",
    ],
    "share-limit": [
        f"1: share_limit: 95 is out of range; {FRACTION}",
    ],
    "share-text": [
        f"3: servers[0].share: '90%' is not a number; {FRACTION}",
    ],
    "syntax": [
        f"3: not YAML: expected <block end>, but found '<block mapping start>'; {SYNTAX}",
    ],
    "tab": [
        "2: a tab where YAML wants spaces; indent with spaces",
    ],
    "tag": [
        "3: tags (!) are not supported; put text in quotes",
    ],
    "token-file-type": [
        f"3: servers[0].bearer_token_file: this is not a regular file; {HOLDS_ONE}",
    ],
    "token-file": [
        f"3: servers[0].bearer_token_file: no such file; {HOLDS_ONE}",
    ],
    "top-level-list": [
        f"1: a list is not a mapping; allowed: the keys {TOP_KEYS}",
    ],
    "unknown-key": [
        f"2: intervall: unknown key; did you mean interval? allowed: {TOP_KEYS}",
    ],
    "unknown-section-key": [
        "2: nvml.timeout: unknown key; allowed: enabled, deadline, let_go",
    ],
    "unknown-server-key": [
        f"3: servers[0].Full-Length: unknown key; did you mean full_length_tokens? allowed: {SERVER_KEYS}",
    ],
    "url-duplicate": [
        "5: servers[1].url: this is the url of servers[0] in line 2; list each server once",
    ],
    "url-host": [
        f"2: servers[0].url: the URL has no valid host; {URL}",
    ],
    "url-missing": [
        "2: servers[0].url: the key is missing; every server needs a url, such as http://127.0.0.1:8000",
    ],
    "url-page": [
        f"2: servers[0].url: the URL names a page; leave out /metrics; {URL}",
    ],
    "url-path": [
        f"2: servers[0].url: the path of the URL is malformed; {URL}",
    ],
    "url-port": [
        f"2: servers[0].url: the host or the port of the URL is malformed; {URL}",
    ],
    "url-query": [
        f"2: servers[0].url: a query or a fragment does not belong in the URL; {URL}",
    ],
    "url-scheme": [
        f"2: servers[0].url: the URL does not start with http:// or https://; {URL}",
    ],
    "url-userinfo": [
        "2: servers[0].url: credentials do not belong in the URL; use bearer_token_file",
    ],
    "whole-number": [
        f"3: servers[0].full_length_tokens: '32k' {NOT_WHOLE}",
        "4: servers[0].request_limit: 0 is out of range; allowed: a whole number from 1",
        f"5: servers[0].max_num_batched_tokens: 2048.5 {NOT_WHOLE}",
        f"6: servers[0].pool_tokens: '1_000' {NOT_WHOLE}",
        f"7: servers[0].tensor_parallel: true {NOT_WHOLE}",
        f"8: servers[0].pipeline_parallel: '010' {NOT_WHOLE}",
    ],
    "window-range": [
        "1: typical_window: '30d' is out of range; allowed: 1s to 1d",
    ],
    "window-short": [
        f"1: interval: {SHORT_WINDOW}",
    ],
    "window-two-keys": [
        f"2: typical_window: {SHORT_WINDOW}",
    ],
}


def refused(text: str) -> list[str]:
    """Return the messages that a text is refused with, without the file."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "kvwatch.yaml", ENGINES)
    return [line.removeprefix("kvwatch.yaml:") for line in str(caught.value).splitlines()]


def only_server(text: str) -> Server:
    """Return the one server of a text of server keys."""
    (server,) = parse_config("servers:\n- {url: 'http://h:1', " + text + "}", "kvwatch.yaml", ENGINES).servers
    return server


@contextmanager
def unprivileged() -> Iterator[None]:
    """Give up root, which may read everything, for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


class TestInvalidFiles:
    """One file for each rule."""

    @pytest.mark.parametrize("name", sorted(INVALID))
    def test_message(self, name: str) -> None:
        """Each problem is named with file, line, key and what is allowed, in the order of the file."""
        path = FIXTURES / f"invalid-{name}.yaml"

        with pytest.raises(ConfigError) as caught:
            load_config(path, ENGINES)

        assert [f"{path}:{message}" for message in INVALID[name]] == str(caught.value).splitlines()

    def test_every_fixture_is_in_the_table(self) -> None:
        """No fixture lies there untested."""
        assert {f"invalid-{name}.yaml" for name in INVALID} == {
            p.name for p in FIXTURES.glob("invalid-*.yaml")
        }

    def test_problems_are_values(self) -> None:
        """A caller can read file, line and key of each problem."""
        with pytest.raises(ConfigError) as caught:
            parse_config("log:\n  level: loud", "a.yaml", ENGINES)

        assert caught.value.problems == (
            Problem(
                file="a.yaml",
                line=2,
                key="log.level",
                message="'loud' is not a choice; allowed: debug, info, warning, error",
            ),
        )

    @pytest.mark.parametrize(
        "name",
        [name for name in INVALID if "hunter2" in (FIXTURES / f"invalid-{name}.yaml").read_text("latin-1")],
    )
    def test_secrets_stay_out_of_messages_and_tracebacks(self, name: str) -> None:
        """A password in the wrong place is refused without being repeated."""
        with pytest.raises(ConfigError) as caught:
            load_config(FIXTURES / f"invalid-{name}.yaml", ENGINES)

        shown = (
            "".join(traceback.format_exception(caught.value))
            + repr(caught.value)
            + repr(caught.value.problems)
        )
        assert "hunter2" not in shown
        assert caught.value.__context__ is None


class TestUnreadableFiles:
    """Files that hold no text to parse."""

    @staticmethod
    def refused(path: Path) -> str:
        """Return the one message without the path."""
        with pytest.raises(ConfigError) as caught:
            load_config(path, ENGINES)
        (problem,) = caught.value.problems
        assert problem.line is None
        assert str(caught.value) == f"{path}: {problem.message}"
        return problem.message

    def test_missing(self, tmp_path: Path) -> None:
        """A file that is not there is said to be missing."""
        expected = "no such file; give the path of a YAML file"
        assert expected == self.refused(tmp_path / "kvwatch.yaml")

    def test_below_a_file(self, tmp_path: Path) -> None:
        """A path through a file leads nowhere."""
        (tmp_path / "file").touch()
        assert (
            self.refused(tmp_path / "file" / "kvwatch.yaml") == "no such file; give the path of a YAML file"
        )

    def test_directory(self, tmp_path: Path) -> None:
        """A folder is not searched for a file."""
        assert self.refused(tmp_path) == "this is a directory; give the path of a YAML file"

    def test_fifo(self, tmp_path: Path) -> None:
        """A FIFO that nobody writes to is refused at once instead of waited for."""
        os.mkfifo(tmp_path / "fifo")
        assert self.refused(tmp_path / "fifo") == "this is not a regular file; give the path of a YAML file"

    def test_permission(self, tmp_path: Path) -> None:
        """A file of somebody else is not said to be missing."""
        path = tmp_path / "kvwatch.yaml"
        path.touch(mode=0o000)
        with unprivileged():
            message = self.refused(path)
        assert message == "permission denied to read the file; give the path of a YAML file"

    def test_loop_of_links(self, tmp_path: Path) -> None:
        """What else the system says is passed on."""
        (tmp_path / "loop").symlink_to("loop")
        message = self.refused(tmp_path / "loop")
        assert (
            message
            == "the file cannot be read (Too many levels of symbolic links); give the path of a YAML file"
        )

    def test_nul_in_the_path(self) -> None:
        """A path that no system can open is a problem, not a crash."""
        assert self.refused(Path("a\0b")) == "the path holds a NUL character; give the path of a YAML file"

    def test_too_large(self, tmp_path: Path) -> None:
        """A log or a model given by mistake is not read to its end."""
        path = tmp_path / "kvwatch.yaml"
        path.write_bytes(b"#" * ((1 << 20) + 1))
        message = self.refused(path)
        assert message == "the file is larger than 1 MiB, which no configuration needs; is it the right file?"

    def test_largest(self, tmp_path: Path) -> None:
        """One MiB is still read."""
        path = tmp_path / "kvwatch.yaml"
        path.write_bytes(b"#" * (1 << 20))
        assert load_config(path, ENGINES) == default_config()


class TestYaml:
    """What YAML would make of a value, and what is made of it here."""

    @pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "---\n", "\ufeff", "{}", "null"])
    def test_empty_file_means_the_defaults(self, tmp_path: Path, text: str) -> None:
        """No key is needed."""
        path = tmp_path / "kvwatch.yaml"
        path.write_text(text)
        assert load_config(path, ENGINES) == default_config()

    @pytest.mark.parametrize(
        "text,value",
        [
            ("on", "on"),
            ("no", "no"),
            ("y", "y"),
            ("12:30:00", "12:30:00"),
            ("010", "010"),
            ("0x10", "0x10"),
            ("1_000", "1_000"),
            ("2026-11-30", "2026-11-30"),
            (".nan", ".nan"),
            (".inf", ".inf"),
            ("1" * 20, "1" * 20),
            ("1" * 5000, "1" * 5000),
            ("7", 7),
            ("-7", -7),
            ("0.95", 0.95),
            ("1e3", 1000.0),
            ("true", True),
            ("False", False),
            ("~", None),
            ("'7'", "7"),
        ],
    )
    def test_scalar(self, text: str, value: object) -> None:
        """Only what looks like a number or a boolean to everybody is one."""
        read = parse_yaml(f"key: {text}").value["key"]
        assert (type(value), value) == (type(read), read)

    def test_names_that_yaml_1_1_takes_for_booleans(self) -> None:
        """A server may be called on."""
        assert only_server("name: on").name == "on"

    def test_alias(self) -> None:
        """A value may be used again by an alias."""
        config = parse_config("nvml: {deadline: &d 1s}\nscrape: {deadline: *d}", "kvwatch.yaml", ENGINES)
        assert (config.nvml.deadline_seconds, config.scrape.deadline_seconds) == (1.0, 1.0)

    def test_crlf_and_byte_order_mark(self, tmp_path: Path) -> None:
        """A file written on Windows is read."""
        path = tmp_path / "kvwatch.yaml"
        path.write_bytes(b"\xef\xbb\xbfinterval: 2s\r\nshare_limit: 0.5\r\n")
        config = load_config(path, ENGINES)
        assert (config.interval_seconds, config.share_limit_ratio) == (2.0, 0.5)

    @pytest.mark.parametrize("text", ["[" * 50_000, "a: {" * 50_000, "- " * 50_000])
    def test_depth_is_bounded(self, text: str) -> None:
        """A deep nest is refused, not recursed into."""
        assert "more than 20 levels" in refused(text)[0]

    def test_duplicate_in_a_server(self) -> None:
        """Both lines of a key that is given twice are named."""
        text = "servers:\n- url: http://h:1\n  pid: 1\n  pid: 2\n"
        assert refused(text) == [
            "4: servers[0].pid: the key is given twice, first in line 3; keep one of the two",
        ]

    @pytest.mark.parametrize("text", ["7", "text", "true", "'quoted'"])
    def test_top_level_scalar(self, text: str) -> None:
        """The top level is a mapping."""
        assert refused(text)[0].endswith(f"is not a mapping; allowed: the keys {TOP_KEYS}")


class TestValues:
    """Values that are read in their place."""

    @pytest.mark.parametrize("text,enabled", [("auto", "auto"), ("true", True), ("false", False)])
    def test_nvml_switch(self, text: str, enabled: object) -> None:
        """Three states, two of them booleans."""
        assert enabled == parse_config(f"nvml: {{enabled: {text}}}", "kvwatch.yaml", ENGINES).nvml.enabled

    @pytest.mark.parametrize("text", ["1", "1.0", "0.001"])
    def test_fraction(self, text: str) -> None:
        """The whole card is a share too."""
        assert float(text) == only_server(f"share: {text}").share_ratio

    @pytest.mark.parametrize("text", ["0", "-0.5", "1.01", "1e999", ".nan", "true", "'0.5'"])
    def test_not_a_fraction(self, text: str) -> None:
        """Zero, infinity and text are no shares."""
        assert refused(f"share_limit: {text}")[0].endswith(FRACTION)

    @pytest.mark.parametrize("text,ok", [("200ms", True), ("199ms", False), ("1h", True), ("61m", False)])
    def test_interval_bounds(self, text: str, *, ok: bool) -> None:
        """The bounds themselves are allowed."""
        source = f"interval: {text}\ntypical_window: 3h"
        if ok:
            assert parse_config(source, "kvwatch.yaml", ENGINES).interval_seconds == parse_duration(text)
        else:
            assert refused(source) == [f"1: interval: '{text}' is out of range; allowed: 200ms to 1h"]


class TestAnyText:
    """What nobody thought of."""

    @settings(max_examples=300, deadline=None, database=None)
    @given(
        st.lists(
            st.sampled_from([*TOP_KEYS.split(", "), *SERVER_KEYS.split(", "), *PIECES]) | st.text(max_size=3),
            max_size=25,
        )
    )
    def test_config_or_problems(self, pieces: list[str]) -> None:
        """Any text is a configuration or a list of problems, never another error."""
        result: Config | tuple[Problem, ...]
        try:
            result = parse_config("".join(pieces), "kvwatch.yaml", ENGINES)
        except ConfigError as error:
            result = error.problems

        if isinstance(result, tuple):
            lines = [problem.line or 0 for problem in result]
            assert lines == sorted(lines) != []


class TestServers:
    """One server and several."""

    @pytest.mark.parametrize(
        "url,name",
        [
            ("http://127.0.0.1:8000", "127.0.0.1:8000"),
            ("http://chat.internal", "chat.internal:80"),
            ("https://chat.internal/prefix/", "chat.internal:443"),
            ("'http://[::1]:8000'", "::1:8000"),
        ],
    )
    def test_name_from_url(self, url: str, name: str) -> None:
        """A server without a name is called by its host and port."""
        (server,) = parse_config(f"servers: [{{url: {url}}}]", "kvwatch.yaml", ENGINES).servers
        assert name == server.name

    def test_name_from_url_may_be_too_long(self) -> None:
        """A host too long for a name needs a name beside it."""
        host = "a" * 70
        assert refused(f"servers:\n- url: http://{host}")[0].startswith("2: servers[0].name: 'aaaa")

    def test_given_and_derived_name_collide(self) -> None:
        """A derived name counts as a name."""
        text = "servers:\n- name: h:1\n  url: http://other:1\n- url: http://h:1\n"
        assert refused(text) == [
            f"4: servers[1].url: 'h:1', from the url, is the name of servers[0] in line 2; {ONE_NAME}",
        ]

    def test_entry_copied_whole(self) -> None:
        """A server that is listed twice word for word has both problems named."""
        server = "- name: a\n  url: http://h:1\n"
        assert refused("servers:\n" + server + server) == [
            "4: servers[1].name: 'a' is the name of servers[0] in line 2; names are unique",
            "5: servers[1].url: this is the url of servers[0] in line 2; list each server once",
        ]

    def test_unknown_is_none(self) -> None:
        """What the file does not say is unknown, never a default."""
        server = only_server("name: a")
        said = {"name", "url", "engine"}
        assert {None} == {getattr(server, field) for field in Server.model_fields if field not in said}
        assert server.engine == "auto"

    def test_engine_names_are_the_callers(self) -> None:
        """An engine that the caller knows is accepted by name."""
        text = "servers: [{url: 'http://h:1', engine: sglang}]"
        assert parse_config(text, "kvwatch.yaml", ["sglang"]).servers[0].engine == "sglang"

    def test_token_is_not_read(self, tmp_path: Path) -> None:
        """The file of the token is kept by its path; the token itself shows nowhere."""
        (tmp_path / "chat.token").write_text("hunter2")
        path = tmp_path / "kvwatch.yaml"
        path.write_text("servers: [{url: 'http://h:1', bearer_token_file: chat.token}]")

        config = load_config(path, ENGINES)

        assert config.servers[0].bearer_token_file == tmp_path / "chat.token"
        assert "hunter2" not in f"{config!r} {config} {config.model_dump()}"

    def test_token_without_permission(self, tmp_path: Path) -> None:
        """A token that may not be read is said so at load, not at the first poll."""
        token = tmp_path / "chat.token"
        token.touch(mode=0o000)
        with unprivileged():
            messages = refused(f"servers:\n- url: http://h:1\n  bearer_token_file: {token}")
        assert messages == [
            f"3: servers[0].bearer_token_file: permission denied to read the file; {HOLDS_ONE}",
        ]

    def test_token_fifo(self, tmp_path: Path) -> None:
        """A FIFO cannot be read twice."""
        os.mkfifo(tmp_path / "fifo")
        messages = refused(f"servers:\n- url: http://h:1\n  bearer_token_file: {tmp_path / 'fifo'}")
        assert messages == [f"3: servers[0].bearer_token_file: this is not a regular file; {HOLDS_ONE}"]

    def test_model_path_need_not_exist(self) -> None:
        """A model may be mounted later; its path is absolute, whatever the working directory becomes."""
        path = only_server("model_config: models/chat").model_config_path
        assert path == Path.cwd() / "models" / "chat"

    def test_a_thousand_servers(self) -> None:
        """The bound on values leaves room for every real configuration."""
        text = "servers:\n" + "".join(
            f"- {{url: 'http://h:{port}', pid: {port}}}\n" for port in range(1, 1001)
        )
        assert len(parse_config(text, "kvwatch.yaml", ENGINES).servers) == 1000


class TestConfig:
    """The value itself."""

    def test_defaults(self) -> None:
        """With no file, the documented defaults hold: no server is named, all are looked for."""
        config = default_config()
        assert (str(config.listen), config.interval_seconds, config.typical_window_seconds) == (
            "127.0.0.1:9836",
            5.0,
            900.0,
        )
        assert (config.share_limit_ratio, config.nvml.enabled, config.nvml.deadline_seconds) == (
            0.95,
            "auto",
            2.0,
        )
        assert (config.scrape.deadline_seconds, config.scrape.max_bytes) == (3.0, 8388608)
        assert (config.log.format, config.log.level, config.servers) == ("logfmt", "info", ())
        assert config.discovery is True
        assert config.history is not None
        assert (config.history.path, config.history.retention_seconds) == (None, 30 * 86400)
        assert config.history.max_bytes == 512 << 20

    @pytest.mark.parametrize("word", ["off", "'off'", "false"])
    def test_history_can_be_switched_off(self, word: str) -> None:
        """By the word that the documents use, and by the one that people try."""
        assert parse_config(f"history: {word}", "kvwatch.yaml", ENGINES).history is None

    def test_a_relative_history_starts_at_the_configurations_folder(self) -> None:
        """As every other path."""
        config = parse_config("history: {path: state/h.db}", "/etc/kvwatch/kvwatch.yaml", ENGINES)
        assert config.history is not None
        assert config.history.path == Path("/etc/kvwatch/state/h.db")

    def test_frozen(self) -> None:
        """Nobody changes a configuration in use."""
        with pytest.raises(ValidationError, match="frozen"):
            default_config().interval_seconds = 1.0

    def test_field_names_are_not_keys(self) -> None:
        """The file's keys are the only spelling."""
        assert refused("interval_seconds: 5s") == [
            f"1: interval_seconds: unknown key; did you mean interval? allowed: {TOP_KEYS}",
        ]


class TestDocs:
    """docs/configuration.md."""

    def test_every_key_has_a_row(self) -> None:
        """The tables name every key and no other."""
        prefixes = {"": "", "servers": "servers[]."}
        keys = {
            prefixes.get(section, f"{section}.") + key
            for section, model in SECTIONS.items()
            for key in keys_of(model)
        }
        rows = re.findall(r"^\| `([^`]+)` \|", DOCS.read_text(), re.MULTILINE)
        assert sorted(keys) == sorted(rows)

    def test_example(self, tmp_path: Path) -> None:
        """The full example loads, and uses every key."""
        (example,) = re.findall(r"^```yaml\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
        path = tmp_path / "kvwatch.yaml"
        path.write_text(example)
        (tmp_path / "chat.token").write_text("hunter2")
        shutil.copy(FIXTURES / "ca.pem", tmp_path)

        config = load_config(path, ENGINES)

        used = set[str]().union(*(server.model_fields_set for server in config.servers))
        assert (set(Server.model_fields), set(Config.model_fields)) == (used, config.model_fields_set)
        assert [server.name for server in config.servers] == ["chat", "completion", "::1:8001"]
        chat = config.servers[0]
        assert (chat.share_ratio, chat.kv_cache_memory_bytes, chat.ca_file) == (
            0.9,
            6721623818,
            tmp_path / "ca.pem",
        )
        assert config.web_config_file == tmp_path / "web.yml"
        rest = {"servers": (), "pods": None, "web_config_file": None}
        assert config.model_copy(update=rest) == default_config()
