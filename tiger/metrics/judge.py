"""A language model behind an OpenAI-compatible endpoint that grades free answers."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field

INSTRUCTION = (
    "Grade an answer to a question about an image. You see the question, the reference and the answer, not "
    "the image. In the reference, <AND> joins parts that are all needed and <OR> separates alternatives. "
    "Reply with one number from 0.0 (wrong) to 1.0 (fully right), in steps of 0.1, and nothing else."
)


@dataclass
class Judge:
    """Grades answers by asking a chat model.

    Its instruction is our own, so grades are not those of a benchmark's official grader.

    Attributes:
        endpoint: Base address up to and with "/v1", such as "https://api.openai.com/v1".
        model: Name of the model.
        key_variable: Environment variable that holds the key; empty for a server that needs none.
        retries: Further tries after an error of the server or a reply without a grade.
        wait: Seconds before the first further try; doubled each time.
        timeout: Longest wait for a reply, seconds.
        num_ungraded: Answers that got 0 because no reply had a grade.

    Raises:
        ValueError: If endpoint or model are not given, or the key's variable is not set.
    """

    endpoint: str
    model: str
    key_variable: str = "OPENAI_API_KEY"
    retries: int = 4
    wait: float = 1.0
    timeout: float = 60.0
    num_ungraded: int = field(default=0, init=False)
    _grades: dict[tuple[str, str, str], float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.endpoint.startswith(("http://", "https://")) or not self.model:
            raise ValueError(
                f"The judge is not configured: endpoint {self.endpoint!r}, model {self.model!r}. Give the "
                "address of an OpenAI-compatible server and a model, or use the rule proxy."
            )
        if self.key_variable and not os.environ.get(self.key_variable):
            raise ValueError(
                f"The judge's key is not configured: environment variable {self.key_variable} is not set. "
                "Set it, or name another variable (an empty name for a server without keys)."
            )

    def grade(self, question: str, reference: str, answer: str) -> float:
        """Grade of an answer in [0, 1], asked for once.

        A reply without a number is asked for again at a higher temperature; after the last try the grade is
        0 and counted in `num_ungraded`.

        Raises:
            ValueError: If the server cannot be reached or refuses the request.
        """
        asked = (question, reference, answer)
        if asked not in self._grades:
            grade = None
            for attempt in range(self.retries + 1):
                grade = _grade_of(self._reply(asked, min(0.5 * attempt, 1.0)))
                if grade is not None:
                    break
            self.num_ungraded += grade is None
            self._grades[asked] = grade or 0.0
        return self._grades[asked]

    def _reply(self, asked: tuple[str, str, str], temperature: float) -> str:
        """Text of the model's reply; busy and failing servers are asked again."""
        content = "\n".join(
            f"{name}: {text}" for name, text in zip(("Question", "Reference", "Answer"), asked, strict=True)
        )
        messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": content}]
        body = {"model": self.model, "messages": messages, "temperature": temperature, "max_tokens": 8}
        headers = {"Content-Type": "application/json"}
        if self.key_variable:
            headers["Authorization"] = f"Bearer {os.environ[self.key_variable]}"
        request = urllib.request.Request(
            f"{self.endpoint.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers
        )
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(self.wait * 2 ** (attempt - 1))
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as response:
                    return str(json.load(response)["choices"][0]["message"]["content"])
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}: {error.read(500).decode(errors='replace')}"
                if error.code != 429 and error.code < 500:
                    break
            except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
                problem = str(error)
            except (KeyError, IndexError, TypeError, json.JSONDecodeError) as error:
                problem = f"the reply has no message ({error!r})"
        raise ValueError(
            f"The judge {self.model!r} at {self.endpoint} gave no reply ({problem}). Check endpoint, model "
            "and key, or use the rule proxy."
        )


def _grade_of(reply: str) -> float | None:
    """The number in a reply, None if there is none between 0 and 1."""
    found = re.search(r"(?<![\d.])(?:0(?:\.\d+)?|1(?:\.0+)?)(?![\d.]*\d)", reply)
    return float(found[0]) if found else None
