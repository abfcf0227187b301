"""URLs judged by their letters: what could be read in two ways is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rules import target_text
from engine.rules.target_text import REASONS, URL_BYTES_MAX, Origin, Refusal, Target, read_target

ACCEPTED = {
    "http://example.com": (Origin("http", "example.com", 80), "/", "example.com"),
    "https://example.com/": (Origin("https", "example.com", 443), "/", "example.com"),
    "HTTPS://EXAMPLE.COM/A": (Origin("https", "example.com", 443), "/A", "example.com"),
    "https://example.com:443/": (Origin("https", "example.com", 443), "/", "example.com"),
    "https://example.com:/": (Origin("https", "example.com", 443), "/", "example.com"),
    "http://example.com:8080/x?y=z": (Origin("http", "example.com", 8080), "/x?y=z", "example.com:8080"),
    "http://example.com:0080/": (Origin("http", "example.com", 80), "/", "example.com"),
    "https://example.com/a/../b": (Origin("https", "example.com", 443), "/b", "example.com"),
    "https://example.com/a%2fb?c=%20": (Origin("https", "example.com", 443), "/a%2fb?c=%20", "example.com"),
    "https://example.com?q": (Origin("https", "example.com", 443), "/?q", "example.com"),
    "https://example.com#f": (Origin("https", "example.com", 443), "/", "example.com"),
    "https://example.com/a@b": (Origin("https", "example.com", 443), "/a@b", "example.com"),
    "https://example.com/?a@b:c": (Origin("https", "example.com", 443), "/?a@b:c", "example.com"),
    "https://example.com./x": (Origin("https", "example.com", 443), "/x", "example.com."),
    "https://a_b.example.com/": (Origin("https", "a_b.example.com", 443), "/", "a_b.example.com"),
    "https://bücher.de/": (Origin("https", "xn--bcher-kva.de", 443), "/", "xn--bcher-kva.de"),
    "https://xn--bcher-kva.de/ä": (Origin("https", "xn--bcher-kva.de", 443), "/%C3%A4", "xn--bcher-kva.de"),
    "https://ＥＸＡＭＰＬＥ.com/": (Origin("https", "example.com", 443), "/", "example.com"),
    "https://localhost.example.com/": (Origin("https", "localhost.example.com", 443), "/", "localhost.example.com"),
    "https://notlocalhost/": (Origin("https", "notlocalhost", 443), "/", "notlocalhost"),
    "http://8.8.8.8/": (Origin("http", "8.8.8.8", 80), "/", "8.8.8.8"),
    "http://8.8.8.8:8080": (Origin("http", "8.8.8.8", 8080), "/", "8.8.8.8:8080"),
    "http://127.0.0.1/": (Origin("http", "127.0.0.1", 80), "/", "127.0.0.1"),  # the address is judged elsewhere
    "http://[2606:4700::1111]/": (Origin("http", "2606:4700::1111", 80), "/", "[2606:4700::1111]"),
    "http://[2606:4700:0:0::1111]:81/": (Origin("http", "2606:4700::1111", 81), "/", "[2606:4700::1111]:81"),
    "http://1.2.3.4.example.com/": (Origin("http", "1.2.3.4.example.com", 80), "/", "1.2.3.4.example.com"),
    "http://0x7f.example.com/": (Origin("http", "0x7f.example.com", 80), "/", "0x7f.example.com"),
    f"https://{'a' * 63}.com/": (Origin("https", "a" * 63 + ".com", 443), "/", "a" * 63 + ".com"),
}  # fmt: skip

REFUSED = {
    "scheme_refused": """
        |/ |example.com |//example.com |http:example.com |http:/example.com |http:///example.com |https:////example.com
        |ftp://example.com |file:///etc/passwd |gopher://example.com |javascript:alert(1) |data:,x |unix:///x
        |ws://example.com |httpss://example.com |xhttp://example.com |http+unix://x |http//example.com |://example.com
        |http:&#47;/example.com |HTTP:/example.com |ldap://example.com |dict://127.0.0.1:11211/ |jar:http://example.com""",
    "host_refused": """
        |http://0177.0.0.1/ |http://0x7f.0.0.1/ |http://0x7f000001/ |http://2130706433/ |http://127.1/ |http://127.0.1/
        |http://017700000001/ |http://0/ |http://1/ |http://127.0.0.01/ |http://127.0.0.0x1/ |http://00000127.0.0.1/
        |http://①②⑦.0.0.1/ |http://127。0。0。1/ |http://127．0．0．1/ |http://１２７.0.0.1/ |http://127.0.0.1./
        |http://%31%32%37.0.0.1/ |http://127.0.0.%31/ |http://ex%61mple.com/ |http://example%2ecom/ |http://8.8.8.8./
        |http://010.8.8.8/ |http://8.8.2056/ |http://0X8.8.8.8/ |http://134744072/ |http://8.8.8.8.:80/ |http://𝟪.8.8.8/
        |http://localhost/ |http://LOCALHOST/ |http://localhost./ |http://a.localhost/ |http://a.b.localhost.:8080/
        |http://ｌｏｃａｌｈｏｓｔ/ |http://loc%61lhost/ |http://ⓛocalhost/ |http://localhost:80/ |http://example..com/
        |http://.example.com/ |http://./ |http://../ |http://..example.com/ |http://example.com../ |http://%2e/""",
    "credentials_refused": """
        |http://user@example.com/ |http://user:pass@example.com/ |http://:pass@example.com/ |http://@example.com/
        |http://:@example.com/ |http://user:@example.com |http://example.com@127.0.0.1/ |http://a@b@example.com/
        |http://us%65r@example.com/ |http://8.8.8.8@example.com/ |http://[::1]@example.com/""",
    "url_malformed": """
        |http:// |http://# |http://? |http://:80/ |http://[::1 |http://::1/ |http://[::1]x/ |http://[::1%25eth0]/
        |http://[fe80::1%eth0]/ |http://example.com:99999/ |http://example.com:-1/ |http://example.com:8o/
        |http://example.com:80:80/ |http://ex|ample.com/ |http://<example>.com/ |http://exam^ple.com/ |http://[1.2.3.4]/
        |http://256.1.1.1/ |http://1.2.3.4.5/ |http://1.2.3.256/ |http://999999999999/ |http://0x100000000/
        |http://[::ffff:1.2.3.256]/ |http://[:::1]/ |http://[1:2:3:4:5:6:7:8:9]/ |http://1.2.3.0x/x.08/
        |http://[]/ |http://[v1.x]/ |http://foo.0xg.1/ |http://example.com:１２/ |http://a.b.c.09/""",
    "port_refused": "|http://example.com:0/ |https://8.8.8.8:0/ |http://[2606:4700::1111]:00/",
}

AMBIGUOUS = [
    f"http://example.com/{character}x" for character in (*map(chr, range(0x21)), "\x7f", "\\")
] + [
    " http://example.com", "http://example.com ", "\thttp://example.com", "http://exam\nple.com/", "ht\ttp://example.com",
    "http:\\\\example.com", "http:/\\example.com", "http://example.com\\@127.0.0.1/", "http://127.0.0.1\\.example.com/",
    "http://example.com\r\nHost: x/", "http://example.com/ HTTP/1.1\r\nX: y", "\ud800http://example.com/",
    "http://example.com/\udcff", "http://exa mple.com/", "http:// example.com/", "http://example.com:8 0/",
]  # fmt: skip


def refused_cases():
    for reason, urls in REFUSED.items():
        for url in urls.split():
            yield reason, url.removeprefix("|")


@pytest.mark.parametrize("url", ACCEPTED)
def test_a_url_that_reads_in_one_way_is_read(url):
    assert read_target(url) == Target(*ACCEPTED[url])


@pytest.mark.parametrize(("reason", "url"), list(refused_cases()))
def test_p9_a_url_that_reads_in_two_ways_is_refused(reason, url):
    judged = read_target(url)
    assert isinstance(judged, Refusal), judged
    # Where two classes apply, either may be told; none may pass.
    assert judged.reason in (reason, "url_malformed", "host_refused"), judged


@pytest.mark.parametrize("url", AMBIGUOUS)
def test_p9_spaces_controls_and_backslashes_are_refused_on_the_raw_text(url):
    assert read_target(url).reason == "url_malformed"


def test_a_url_of_8192_bytes_is_read_and_of_one_more_is_not():
    stem = "https://example.com/"
    assert isinstance(read_target(stem + "a" * (URL_BYTES_MAX - len(stem))), Target)
    assert read_target(stem + "a" * (URL_BYTES_MAX - len(stem) + 1)).reason == "url_too_long"
    assert read_target(stem + "ä" * (URL_BYTES_MAX // 2)).reason == "url_too_long"
    assert read_target(stem + "ä" * (URL_BYTES_MAX // 3)).reason == "url_too_long"  # six bytes each once encoded


def test_a_name_too_long_for_dns_is_refused():
    assert read_target(f"https://{'a' * 64}.com/").reason in ("host_refused", "url_malformed")
    assert read_target(f"https://{'.'.join(['abcdefg'] * 32)}.com/").reason in ("host_refused", "url_malformed")


@given(st.text(max_size=60).map(lambda text: "http://" + text))
def test_p9_whatever_is_read_can_stand_in_a_request_line_and_a_host_field(url):
    judged = read_target(url)
    if isinstance(judged, Refusal):
        assert judged.for_tenant in REASONS.values()
        return
    assert judged.path.startswith("/")
    for text in (judged.path, judged.host_header, judged.origin.host):
        assert text.isascii()
        assert all("!" <= character <= "~" for character in text)
    assert "@" not in judged.host_header
    assert 0 < judged.origin.port < 65536


@given(st.text(max_size=60))
def test_every_text_is_judged_without_an_exception(url):
    assert isinstance(read_target(url), Target | Refusal)


_pieces = st.sampled_from(
    ["a", "B9", "-", "_", "~", ".", "..", "%2e", "%", "/", "//", "?", "&", "=", "#", "é", " ", "'", "+", ":", "@", "\\"]
)
_bases = st.sampled_from(
    ["http://example.com", "HTTPS://EXAMPLE.com:443", "https://a.b:8443", "http://127.0.0.1", "http://0x7f.1",
     "http://[::1]:80", "http://localhost", "http://u@h", "https://ex..com", "http://a.", "http://1.2.3.4.", "http:///x"]
)  # fmt: skip


@given(_bases, st.lists(_pieces, max_size=8).map("".join))
def test_the_remembered_reading_of_a_url_is_that_of_the_whole_url(base, rest):
    url = base + rest
    assert read_target(url) == (target_text._refused_on_raw_text(url) or target_text._read_parsed(url))
