"""Settings: three places, one order, every problem at once."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import FIELDS, GROUPS, Dsn, Settings
from engine.errors import OperatorError
from engine.settings import SettingsError, environment, load_settings, passwords_in, settings_arguments, shown


def load(*flags: str, environ: dict[str, str] | None = None, groups=GROUPS) -> Settings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    settings_arguments(parser, groups)
    return load_settings(parser.parse_args(flags), environ or {})


def problems(*flags: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(*flags, environ=environ)
    return caught.value.problems


def test_p9_a_password_comes_from_a_file_where_an_address_has_none(tmp_path):
    file = tmp_path / "passwords"
    file.write_text("hunter2\n")
    shards = ("--shard", "mysql://a@h1/x", "--shard", "mysql://a:own@h2/x")
    found = load(*shards, "--shard-password-file", str(file))
    assert [dsn.password for dsn in found.shards] == ["hunter2", "own"]
    file.write_text("one\ntwo\n")
    assert [dsn.password for dsn in load(*shards, "--shard-password-file", str(file)).shards] == ["one", "own"]
    file.write_text("one\ntwo\nthree\n")
    assert "has 3 lines" in problems(*shards, "--shard-password-file", str(file))[0]
    assert "cannot be read" in problems(*shards, "--shard-password-file", str(tmp_path / "none"))[0]


def test_p9_the_keys_of_secrets_have_no_flag_and_are_printed_masked(tmp_path):
    with pytest.raises(SystemExit):
        load("--secrets-key", "szk_hunter2")
    found = load(environ={"SECONDZERO_SECRETS_KEY": "szk_one szk_two"})
    assert [key.value for key in found.secrets_keys] == ["szk_one", "szk_two"]
    assert shown(found)["secrets_key"] == ["***", "***"]
    assert "szk_" not in repr(found)
    assert load(environ=environment(found)) == found
    file = tmp_path / "settings.toml"
    file.write_text('secrets_key = "szk_hunter2"\n')
    assert "szk_hunter2" not in " ".join(problems("--config", str(file)))
    both = problems("--secrets-key-file", "/x", environ={"SECONDZERO_SECRETS_KEY": "szk_one"})
    assert both == ["secrets_key and secrets_key_file: give one of them"]


def test_p9_passwords_in_a_command_line_are_found():
    words = ["api", "--shard", "mysql://u:p%40ss@h/x", "--shard=mysql://v:two@h:3306/y", "--shard", "mysql://w@h/z"]
    assert passwords_in(words) == ["p%40ss", "two"]


@pytest.mark.parametrize("contact", ["ops@example.com", "https://example.com/bot; abuse@example.com"])
def test_a_contact_can_stand_in_a_comment(contact):
    assert load("--contact", contact).contact == contact


@pytest.mark.parametrize("contact", ["", "a (b)", "a\\b", "a\r\nb", "é", " a", "a" * 300])
def test_a_contact_that_could_not_stand_in_a_comment_is_refused(contact):
    assert "contact" in problems("--contact", contact)[0]


def test_nothing_given_is_the_defaults():
    assert load() == Settings()


def test_a_flag_goes_before_a_variable_and_that_before_the_file(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("port = 1\nlease_ms = 11000\nexecutors = 5\n")
    environ = {"SECONDZERO_PORT": "2", "SECONDZERO_LEASE_MS": "12000"}
    found = load("--config", str(file), "--port", "3", environ=environ)
    assert (found.port, found.lease_ms, found.executors) == (3, 12_000, 5)


def test_the_file_may_be_named_by_a_variable(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('shard = ["mysql://a@h1/x", "mysql://a@h2/x"]\nallow_port = [8443]\n')
    found = load(environ={"SECONDZERO_CONFIG": str(file)})
    assert [dsn.host for dsn in found.shards] == ["h1", "h2"]
    assert found.allow_ports == (8443,)


def test_a_list_is_a_repeated_flag_or_a_variable_with_spaces_or_commas():
    expected = ("10.0.0.0/8", "fd00::/8")
    assert load("--allow-network", "10.0.0.0/8", "--allow-network", "fd00::/8").allow_networks == expected
    assert load(environ={"SECONDZERO_ALLOW_NETWORK": "10.0.0.0/8, fd00::/8"}).allow_networks == expected
    assert load(environ={"SECONDZERO_ALLOW_NETWORK": ""}).allow_networks == ()


def test_every_problem_is_found_at_once(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("exekutors = 3\nretention_days = 0\nlog_level = true\nallow_port = 80\n")
    found = problems(
        "--config", str(file), "--port", "abc", "--partitions", "1", "--shard", "http://h/x", "--shard", "mysql://h:x/y",
        environ={"SECONDZERO_PROT": "1", "SECONDZERO_ALLOW_NETWORK": "10.0.0.1/8"},
    )  # fmt: skip
    for wanted in (
        "SECONDZERO_PROT: unknown setting; did you mean SECONDZERO_PORT?",
        f"{file}: unknown setting 'exekutors'; did you mean executors?",
        f"{file}: retention_days: must be a whole number from 1 to 720, not 0",
        f"{file}: log_level: must be one of debug, info, warning, error, not True",
        f"{file}: allow_port: must be a list, not 80",
        "--port: must be a whole number from 0 to 65535, not 'abc'",
        "--shard: shard address http://h/x: the scheme must be mysql",
        "--shard: shard address mysql://h:x/y: Port could not be cast",
        "partitions 1 must not be fewer than the shards, 2",
        "SECONDZERO_ALLOW_NETWORK: must be a network such as 10.0.0.0/8: 10.0.0.1/8 has host bits set",
    ):
        assert any(problem.startswith(wanted) for problem in found), wanted
    assert len(found) == 10


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--lease-ms", "4000"], "lease_ms 4000 must be more than 2 times heartbeat_ms 2000"),
        (["--lease-ms", "0"], "--lease-ms: must be a whole number from 1000"),
        (["--lease-ms", "-1"], "--lease-ms: must be a whole number from 1000"),
        (["--lease-ms", ""], "--lease-ms: must be a whole number from 1000"),
        (["--heartbeat-ms", ""], "--heartbeat-ms: must be a whole number from 100"),
        (["--heartbeat-ms", "0"], "--heartbeat-ms: must be a whole number from 100"),
        (["--heartbeat-ms", "-5"], "--heartbeat-ms: must be a whole number from 100"),
        (["--port", "65536"], "--port: must be a whole number from 0 to 65535"),
        (["--port", "٣"], "--port: must be a whole number"),
        (["--port", "1e3"], "--port: must be a whole number"),
        (["--partitions", "1025"], "--partitions: must be a whole number from 1 to 1024"),
        (["--data", ""], "--data: must be the path of a folder"),
        (["--listen", "0.0.0.0"], "listen 0.0.0.0: beyond this machine the API needs --tls-cert"),
        (["--tls-cert", "c.pem"], "tls_cert and tls_key: each needs the other"),
        (["--behind-proxy", "perhaps"], "--behind-proxy: must be yes or no"),
        (["--cors-origin", "*"], "--cors-origin: must be an origin such as https://"),
        (["--listen", "everywhere"], "--listen: must be an IP address such as 127.0.0.1"),
        (["--config", "/no/such/file"], "/no/such/file: No such file or directory"),
        (["--shard", "mysql://a@h/x", "--shard", "mysql://b@h/x", "--shards", "3"], "shards 3 contradicts the number"),
        (["--shard", "mysql://a@h/x", "--shard", "mysql://a@h:3306/x"], "shard: mysql://a@h:3306/x is given twice"),
        (["--shard", "mysql://a@h/x", *(["--keeper-shard", "mysql://k@h/x"] * 2)], "keeper_shard: 2 addresses for 1"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(flags, problem):
    assert any(found.startswith(problem) for found in problems(*flags)), problems(*flags)


@pytest.mark.parametrize("text", ["port = 1\nport = 2", "port", "\xff"])
def test_a_file_that_is_not_toml_is_one_problem(tmp_path, text):
    file = tmp_path / "settings.toml"
    file.write_bytes(text.encode("latin-1"))
    [problem] = problems("--config", str(file))
    assert problem.startswith(f"{file}: not TOML: ")


def test_a_command_takes_only_its_own_groups_but_knows_every_variable():
    assert load(environ={"SECONDZERO_PORT": "none"}, groups={"shards"}) == Settings()
    with pytest.raises(SystemExit) as caught:
        load("--port", "1", groups={"shards"})
    assert caught.value.code == 2


def test_a_child_reads_from_its_variables_what_its_parent_had():
    parent = load(
        "--shard", "mysql://us%20er:p%40ss%2Fw@[::1]:3307/da%2Fta", "--shard", "mysql://root@/x?unix_socket=/a%20b/s",
        "--shards", "2", "--allow-network", "127.0.0.0/8", "--allow-port", "81", "--allow-port", "82", "--port", "0",
        "--listen", "::", "--behind-proxy", "--data", "/with space",
    )  # fmt: skip
    assert load(environ=environment(parent)) == parent


@given(st.builds(
    Dsn,
    user=st.text(min_size=1), password=st.text(), host=st.sampled_from(["h", "127.0.0.1", "::1"]),
    port=st.integers(1, 65_535), database=st.text(min_size=1),
    unix_socket=st.none() | st.text(min_size=1).map(lambda text: "/" + text),
    tls=st.none() | st.just("system") | st.text().map(lambda text: "/" + text),
))  # fmt: skip
def test_an_address_is_read_back_as_it_was_whatever_is_in_it(dsn):
    read = Dsn.parse(dsn.text())
    if dsn.unix_socket:
        assert (read.user, read.password, read.unix_socket) == (dsn.user, dsn.password, dsn.unix_socket)
    else:
        assert read == dsn


@pytest.mark.parametrize("options", ["tls=", "tls=yes", "tls=ca.pem", "tls=system&unix_socket=/x", "ssl=true"])
def test_an_address_says_what_tls_is_to_be_or_is_refused(options):
    with pytest.raises(OperatorError, match="shard address mysql://"):
        Dsn.parse(f"mysql://u:p@h/x?{options}")


def test_no_password_is_shown():
    dsn = Dsn.parse("mysql://me:hunter2@h/x")
    assert "hunter2" not in f"{dsn} {dsn!r}"
    assert "hunter2" in dsn.text()
    for wrong in ("mysql://me:hunter2@h/", "mysql://me:hunter2@h:x/y", "mysql://me:hun@ter2@[h/y", "me:hunter2@h/y"):
        with pytest.raises(OperatorError) as caught:
            Dsn.parse(wrong)
        assert "ter2" not in str(caught.value)


def test_every_setting_has_a_name_of_its_own():
    assert len({known.name for known in FIELDS}) == len({known.attribute for known in FIELDS}) == len(FIELDS)
