"""Durations, sizes, addresses and URLs as the configuration spells them."""

from __future__ import annotations

import pytest

from kvwatch.config_values import Listen, parse_duration, parse_listen, parse_size, parse_url


class TestValues:
    """Values that have a form of their own."""

    @pytest.mark.parametrize(
        "text,seconds",
        [
            ("250ms", 0.25),
            ("0.2s", 0.2),
            ("5s", 5.0),
            ("2m", 120.0),
            ("15m", 900.0),
            ("1h", 3600.0),
            ("30d", 2592000.0),
        ],
    )
    def test_duration(self, text: str, seconds: float) -> None:
        """A duration is a number and a unit."""
        assert seconds == parse_duration(text)

    @pytest.mark.parametrize(
        "value", [5, 0.5, "5", "5 s", "s", "-5s", "5S", "1h30m", "\u0665s", "5s\n", True, [], {}, "1e3s"]
    )
    def test_not_a_duration(self, value: object) -> None:
        """Nothing else is."""
        with pytest.raises(ValueError, match=r"unit|duration"):
            parse_duration(value)

    @pytest.mark.parametrize(
        "value,size_bytes",
        [
            (1, 1),
            ("1B", 1),
            ("1KiB", 1024),
            ("8MiB", 8388608),
            ("6.26GiB", 6721623818),
            ("6.26 GiB", 6721623818),
        ],
    )
    def test_size(self, value: object, size_bytes: int) -> None:
        """A size is whole bytes or a number with a binary unit; 6.26 x 2^30 = 6,721,623,818.2."""
        assert size_bytes == parse_size(value)

    @pytest.mark.parametrize("value", [6.26, "8MB", "8G", "8 gib", "-1B", "GiB", True, "1", "1_000B"])
    def test_not_a_size(self, value: object) -> None:
        """Decimal units, which programs use for both, are refused."""
        with pytest.raises(ValueError, match="is not a size"):
            parse_size(value)

    @pytest.mark.parametrize(
        "text,host,port",
        [
            ("127.0.0.1:9836", "127.0.0.1", 9836),
            ("[::1]:9836", "::1", 9836),
            ("[::]:0", "::", 0),
            (":9836", None, 9836),
            ("localhost:65535", "localhost", 65535),
        ],
    )
    def test_listen(self, text: str, host: str | None, port: int) -> None:
        """An address is spelled again as it was read."""
        listen = parse_listen(text)
        assert (Listen(host=host, port=port), text) == (listen, str(listen))

    @pytest.mark.parametrize(
        "value",
        [
            9836,
            "9836",
            "::1:9836",
            "[::1]",
            "h:",
            "h:65536",
            "h:-1",
            "h h:1",
            "*:1",
            "http://h:1",
            "[h]:1",
            "h:\u0663",
            True,
        ],
    )
    def test_not_an_address(self, value: object) -> None:
        """An address without a port or with an unbracketed IPv6 host is refused."""
        with pytest.raises(ValueError, match="allowed: "):
            parse_listen(value)

    @pytest.mark.parametrize(
        "text,url",
        [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
            ("HTTPS://Chat.Internal//", "https://chat.internal"),
            ("https://gate:8443/team/chat/", "https://gate:8443/team/chat"),
            ("http://[0:0::1]:8000", "http://[::1]:8000"),
            ("http://vllm_chat:8000", "http://vllm_chat:8000"),
        ],
    )
    def test_url(self, text: str, url: str) -> None:
        """A URL loses its trailing slash and nothing else of meaning."""
        assert url == parse_url(text)

    @pytest.mark.parametrize(
        "value",
        [
            None,
            8000,
            "",
            "127.0.0.1:8000",
            "localhost:8000",
            "ftp://h",
            "http:h",
            "http:///path",
            "http://",
            "http://:8000",
            "http://h:",
            "http://h:0",
            "http://h:65536",
            "http://h:port",
            "http://[::1",
            "http://[::zz]:1",
            "http://[fe80::1%25eth0]:1",
            "http://::1:8000",
            "http://user@h",
            "http://@h",
            "http://h/?q=1",
            "http://h?",
            "http://h#",
            "http://h/a b",
            "http://h\t.internal",
            " http://h",
            "http://h\\@evil",
            "http://h/../a",
            "http://h//a",
            "http://h/%zz",
            "http://hôte",
            "http://h/metrics/",
        ],
    )
    def test_not_a_url(self, value: object) -> None:
        """What a client could read in two ways, or would have to guess, is refused."""
        with pytest.raises(ValueError, match=r"allowed: |use bearer_token_file"):
            parse_url(value)
