import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.conftest import CPU, GPU, make_timeline
from tests.perfetto_tools.ui import UiError, serve
from tests.shared import H200
from tracer.auditor import audit_of, examine
from tracer.commands._serving import UI, TraceServer
from tracer.exports.perfetto import write
from tracer.readers import load
from tracer.trace import Kind


@pytest.fixture
def trace_file(tmp_path):
    trace = make_timeline((Kind.CALL, "cudaLaunchKernel", CPU, 0, 10, 1), (Kind.KERNEL, "gemm", GPU, 20, 30, 1))
    return write(trace, None, tmp_path / "it's <b>.pftrace").path


@pytest.fixture
def server(trace_file):
    """A server on any free port, as the command makes one on 9001."""
    with TraceServer(trace_file, 0) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def _ask(server, path, *, method="GET", host=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{server.server_port}"} | headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_viewer_gets_the_file_and_leave_to_read_it(server, trace_file):
    answer, body = _ask(server, server.file_path, Origin=UI)

    assert (answer.status, body) == (200, trace_file.read_bytes())
    assert answer.getheader("Access-Control-Allow-Origin") == UI


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"host": "evil.example:9001"},
        {"Origin": UI, "host": "evil.example"},
    ],
)
def test_nobody_else_does(server, headers):
    answer, body = _ask(server, server.file_path, **headers)

    assert (answer.status, body) == (403, b"")
    assert answer.getheader("Access-Control-Allow-Origin") is None


@pytest.mark.parametrize("path", ["/etc/passwd", "/trace/other.pftrace", "/trace/../x", "/trace/"])
def test_there_is_that_one_file_and_no_other(server, path):
    assert _ask(server, path, Origin=UI)[0].status == 404


def test_the_browser_may_ask_first_whether_the_local_network_is_open(server):
    asked = {"Origin": UI, "Access_Control_Request_Method": "GET", "Access_Control_Request_Private_Network": "true"}
    answer, _ = _ask(server, server.file_path, method="OPTIONS", **asked)

    assert answer.status == 204
    assert answer.getheader("Access-Control-Allow-Private-Network") == "true"
    assert answer.getheader("Access-Control-Allow-Origin") == UI


def test_it_listens_on_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"


def test_the_page_that_hands_the_trace_over_holds_no_foreign_script(server):
    server.address = f"{UI}/#!/viewer?x=</script><script>alert(1)</script>"
    answer, body = _ask(server, "/")

    assert answer.status == 200
    text = body.decode()
    assert text.count("<script>") == text.count("</script>") == 1
    assert server.file_path in text
    assert "postMessage" in text


def test_the_address_shows_the_right_rows_and_the_worst_stall(trace_file):
    with serve(str(trace_file)) as address:
        where, _, arguments = address.partition("#!/viewer?")
        told = parse_qs(arguments)
        if where.startswith(UI):
            port = urlsplit(told["url"][0]).port
            assert port == 9001
            assert "PinTracksByRegex" in told["startupCommands"][0]
        else:  # another program has port 9001
            assert where.startswith("http://127.0.0.1:")


def test_where_9001_is_taken_a_page_hands_the_trace_over(trace_file):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 9001))
            taken.listen()
        except OSError:
            pass  # it is taken already, and that will do
        with serve(str(trace_file)) as address:
            parts = urlsplit(address)
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
            connection.request("GET", "/")
            page = connection.getresponse().read().decode()
            connection.close()

    assert parts.port != 9001
    assert UI in page


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_ends_with_ctrl_c_and_leaves_nothing(trace_file, tmp_path, sign):
    environment = os.environ | {"TMPDIR": str(tmp_path), "SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22"}
    command = [sys.executable, "-u", "-m", "tracer", "open", "--no-browser", str(trace_file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    said = ""
    while "address:" not in said:
        said += process.stdout.readline()
    process.send_signal(sign)
    rest, errors = process.communicate(timeout=20)

    assert process.returncode == 0
    assert "stopped" in rest
    assert errors == ""
    assert "ssh -N -L " in said
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("tracer-open")] == []


def test_a_finding_that_is_not_there_is_an_error(trace_file):
    with pytest.raises(UiError, match="no finding 'SYNC999'"), serve(str(trace_file), "--select", "SYNC999"):
        pass


def test_a_missing_trace_is_an_error(tmp_path):
    with pytest.raises(UiError, match="does not exist"), serve(str(tmp_path / "none.pftrace")):
        pass


def test_a_finding_can_be_named_by_its_beginning(tmp_path):
    file = tmp_path / "t.pftrace"
    examined = examine(load(H200 / "IS01.json.gz"))
    base = write(examined.trace, audit_of(examined), file, examination=examined).base_ns
    finding = next(f for f in examined.findings if f.rule == "SYNC001")

    with serve(str(file), "--offline", "--select", "sync001") as address:
        told = parse_qs(address.partition("?")[2])

    assert int(told["ts"][0]) == finding.first_ns - base
    assert int(told["dur"][0]) == finding.first_dur_ns
    assert int(told["visStart"][0]) < int(told["ts"][0]) < int(told["visEnd"][0])
