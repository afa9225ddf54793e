import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from golden import measure, merged, reference

from tiger.metrics.judge import Judge, _grade_of
from tiger.metrics.mmvet import MMVet, official_answers, rule_proxy

PROSE = "The man in the picture is about to hit the ball with his bat."


@pytest.mark.parametrize(
    ("text", "answer", "score"),
    [
        ("It is 14.00 dollars", "14", 1),
        ("There are 1,000 of them", "1000", 1),
        ("There are 40", "4", 0),
        ("a Red bus", "red<OR>blue", 1),
        ("red and round", "red <AND> round <AND> big <AND> old", 0.5),
        ("x = 4", "x = -1 <AND> x = -5 <OR> x = 4", 1),
        ("x = 1", "x = -1", 0),
        ("5-1", "1", 1),
        ("predator", "red", 0),
        ("", "red", 0),
        (PROSE, PROSE, 1),
        ("The man", PROSE, pytest.approx(2 * 2 / (2 + 14))),
    ],
)
def test_rule_proxy(text, answer, score):
    assert rule_proxy(text, answer) == score


def test_capabilities_are_reported_apart():
    rows = [
        ("red", reference("red", id="v1_0", group="ocr,math")),
        ("blue", reference("red", id="v1_1", group="ocr")),
    ]
    expected = {"rule_proxy": 50, "rule_proxy/math": 100, "rule_proxy/ocr": 50}
    assert measure(MMVet(), rows) == merged(MMVet(), rows[1:], rows[:1]) == expected
    assert MMVet().settings() == {"grader": "rule_proxy"}


def test_export_is_the_graders_json():
    text = official_answers({"v1_0": "é 1", "v1_1": ""})
    assert json.loads(text) == {"v1_0": "é 1", "v1_1": ""}


class Server:
    """A chat server on the loopback device that replies with given statuses and bodies in turn."""

    def __init__(self, *replies):
        self.replies, self.requests = list(replies), []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append((self.path, self.headers.get("Authorization"), body))
                status, text = outer.replies.pop(0)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def serve():
    servers = []

    def start(*replies):
        servers.append(Server(*replies))
        return servers[-1]

    yield start
    for server in servers:
        server.server.shutdown()
        server.server.server_close()


def says(text):
    return 200, json.dumps({"choices": [{"message": {"content": text}}]})


def test_judge_grades_once_and_asks_again_where_needed(serve, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    server = serve((429, "busy"), (500, "down"), says("I cannot say"), says("Grade: 0.7."), says("1.0"))
    metric = MMVet(Judge(server.endpoint, "grader", "MY_KEY", wait=0))
    rows = [
        ("a cat", reference("cat<OR>tiger", id="v1_0", group="rec", question="What is it?")),
        ("a dog", reference("dog", id="v1_1", question="And this?")),
    ]
    assert metric.score(*rows[0]) == pytest.approx(70)
    assert measure(metric, rows) == {"judge": pytest.approx(85), "judge/rec": pytest.approx(70)}
    assert len(server.requests) == 5
    path, key, body = server.requests[0]
    assert (path, key, body["model"]) == ("/v1/chat/completions", "Bearer secret", "grader")
    for part in ("What is it?", "cat<OR>tiger", "a cat"):
        assert part in body["messages"][1]["content"]
    assert [request[2]["temperature"] for request in server.requests] == [0, 0, 0, 0.5, 0]
    assert metric.settings() == {"grader": "grader", "ungraded": "0"}


def test_an_answer_without_a_grade_is_counted(serve):
    server = serve(says("good"), says("bad"))
    metric = MMVet(Judge(server.endpoint, "grader", key_variable="", retries=1, wait=0))
    assert metric.score("a", reference("b")) == 0
    assert metric.settings()["ungraded"] == "1"
    assert server.requests[0][1] is None


def test_a_judge_that_gives_no_reply_is_an_error(serve):
    refused = serve((401, "bad key"))
    with pytest.raises(ValueError, match=r"gave no reply .HTTP 401: bad key.. Check endpoint, model and key"):
        Judge(refused.endpoint, "m", "", wait=0).grade("q", "r", "a")
    assert len(refused.requests) == 1, "a refused request is not repeated"
    odd = serve((200, "{}"), (200, "no json"))
    with pytest.raises(ValueError, match="the reply has no message"):
        Judge(odd.endpoint, "m", "", retries=1, wait=0).grade("q", "r", "a")
    with pytest.raises(ValueError, match=r"at http://127\.0\.0\.1:9 gave no reply"):
        Judge("http://127.0.0.1:9", "m", "", retries=0).grade("q", "r", "a")


def test_a_judge_that_is_not_configured_is_refused(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValueError, match="The judge is not configured: endpoint ''"):
        Judge("", "model")
    with pytest.raises(ValueError, match="The judge is not configured"):
        Judge("http://host/v1", "")
    with pytest.raises(ValueError, match="environment variable OPENAI_API_KEY is not set"):
        Judge("http://host/v1", "model")


@pytest.mark.parametrize(
    ("reply", "grade"),
    [("0.5", 0.5), ("1", 1), ("Grade: 0.", 0), ("10", None), ("2.5", None), ("0.3/1.0", 0.3), ("none", None)],
)
def test_grades_are_read_from_replies(reply, grade):
    assert _grade_of(reply) == grade
