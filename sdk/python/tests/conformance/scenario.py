"""Scenarios of sdk/conformance: how one is played, and what is compared. Where it is played is a `Stage`.

What differs from one run to the next is taken out of events here, and nowhere else: see `normalised` and `same`.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from xdb.errors import XdbError

SCENARIOS = Path(__file__).parents[4] / "sdk" / "conformance" / "scenarios"

# Members of events that are times, in microseconds since 1970.
_TIMES = {"at", "expiresAt", "fireAt", "nextAttemptAt", "nextCallAt", "notBefore", "timeoutAt", "until"}
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Backoff on a server comes with a tenth of jitter, and a real clock goes on between an event and what follows from it.
_JITTER, _SLACK = 0.1, 2.0

History = list[tuple[str, str, Any]]
"""Time, type and details of each event, as the view `xdb.history` has them."""


class Stage(Protocol):
    """Where scenarios are played."""

    def register(self, scenario: Mapping[str, Any], worker: ScriptedWorker) -> None:
        """Has the tables and the process types, and calls the worker."""

    def do(self, command: str, arguments: Mapping[str, Any]) -> Any:
        """What a client does; it raises an `XdbError`."""

    def settle(self, arrived: Callable[[], bool]) -> None:
        """Lets everything happen that is due, at the least until `arrived`. It gives up after a while."""

    def history(self, process_id: str) -> History:
        """The history of a process, from its beginning."""

    def problems(self) -> list[str]:
        """What is not sound."""


class ScriptedWorker:
    """Answers as the scenario says, and keeps what should not have come."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = dict(answers)
        self._of_failures: tuple[str, ...] | None = None
        self._guard = threading.Lock()
        self._used: Counter[str] = Counter()
        self._wrong: list[str] = []

    def take(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a call: the one that names it most closely, and of several the next."""
        api, context = path.rpartition("/")[2], body["context"]
        if api == "rpc":
            names = [f"{body['rpcName']}/rpc"]
        else:
            name = f"{context['stateExecutionId']}/{api}"
            names = [f"{name}/{context['attempt']}", name, f"{body['stateId']}/{api}"]
        named = next((name for name in [f"{context['processId']}:{name}" for name in names] + names if name in self._answers), None)
        with self._guard:
            if named is None:
                self._wrong.append(f"there is no answer to {names[0]}")
                return {"status": 500, "answer": {"errorType": "NotInTheScenario", "detail": names[0], "final": True}}
            answers = self._answers[named]
            answer: Mapping[str, Any] = answers
            if isinstance(answers, list):
                answer = answers[min(self._used[named], len(answers) - 1)]
            self._used[named] += 1
            if not contains(body, of_failures(answer.get("request", {}), self._of_failures)):
                self._wrong.append(f"the request {named} is {json.dumps(body)}")
            return answer

    def hand_over(self, these: Callable[[str], bool]) -> Mapping[str, Any]:
        """The answers that another worker gives, which are not this one's any more."""
        return {name: self._answers.pop(name) for name in list(self._answers) if these(name)}

    def compare_failures(self, members: tuple[str, ...]) -> None:
        """Of failures in a request, only these members are compared."""
        self._of_failures = members

    def finish(self) -> None:
        """Whether what came is what the scenario has."""
        for name, answers in self._answers.items():
            if self._used[name] < (len(answers) if isinstance(answers, list) else 1):
                self._wrong.append(f"no call has got the answer {name}")
        assert self._wrong == []


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def play(scenario: Mapping[str, Any], stage: Stage) -> list[dict[str, Any]]:
    """What came of each step: `result` or `sqlstate`, and `history`, the new events of each process."""
    worker = ScriptedWorker(scenario["worker"])
    stage.register(scenario, worker)
    # Children are named only in the histories that are expected.
    seen = {process: 0 for step in scenario["steps"] for process in step.get("history", {})}
    came = []
    for step in scenario["steps"]:
        command, arguments = command_of(step)
        of_step: dict[str, Any] = {}
        try:
            result = stage.do(command, arguments)
        except XdbError as error:
            of_step["sqlstate"] = error.sqlstate
        else:
            if command == "start":
                seen.setdefault(arguments["process_id"], 0)
            elif result is not None:
                of_step["result"] = result
        expected = {process: seen.get(process, 0) + len(new) for process, new in step.get("history", {}).items()}
        stage.settle(lambda: all(len(stage.history(process)) >= count for process, count in expected.items()))
        new = {process: stage.history(process)[count:] for process, count in seen.items()}
        seen = {process: count + len(new[process]) for process, count in seen.items()}
        of_step["history"] = {process: [normalised(*event) for event in events] for process, events in new.items() if events}
        came.append(of_step)
    worker.finish()
    assert stage.problems() == []
    return came


def command_of(step: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """What a step does: its only key that is none of the expectations."""
    [command] = step.keys() - {"result", "sqlstate", "history"}
    return command, step[command]


def normalised(at: str, kind: str, details: Any) -> list[Any]:
    """An event without what is of one run alone.

    Its own time is left out. A time in its details becomes the seconds from its own time to that. Messages of global queues lose
    their number, which is the database's. The id of an execution becomes `<execution>`.
    """
    began = moment(at).timestamp()

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: relative(each) if key in _TIMES else plain(each) for key, each in value.items()}
        if isinstance(value, list):
            return [plain(each) for each in value]
        return "<execution>" if isinstance(value, str) and _UUID.fullmatch(value) else value

    def relative(value: int) -> dict[str, float]:
        return {"inSeconds": round(value / 1e6 - began, 1)}

    made = plain(details)
    if kind == "GlobalMessagesTaken":
        for message in made["messages"]:
            message.pop("number")
    return [kind, made]


def same(one: Any, other: Any) -> bool:
    """Whether they are equal, but for times, which may be a tenth and two seconds apart."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() == other.keys() == {"inSeconds"}:
            a, b = one["inSeconds"], other["inSeconds"]
            return bool(abs(a - b) <= _SLACK + _JITTER * max(abs(a), abs(b)))
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def contains(whole: Any, part: Any) -> bool:
    """Whether an object has these members, and those have theirs; anything else is the same."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    return same(whole, part)


def of_failures(value: Any, members: tuple[str, ...] | None) -> Any:
    """What is left to compare where of failures only these members are; None: all.

    An incident and the reason of a process that has failed tell of a failure too.
    """
    if members is None or not isinstance(value, (dict, list)):
        return value
    if isinstance(value, list):
        return [of_failures(each, members) for each in value]
    left = {key: of_failures(each, members) for key, each in value.items()}
    for key in {"failure", "recoverFromError"} & left.keys():
        left[key] = {name: left[key][name] for name in members if name in left[key]}
    if "attempt" in left and "error_type" in left:
        left = {key: each for key, each in left.items() if key not in {"http_status", "error_type", "detail"}}
    if left.get("status") == "FAILED" and "reason" in left:
        left["reason"] = left["reason"].partition(": ")[0]
    return left


def moment(text: str) -> datetime:
    """A time with as many digits behind the dot as it takes, which Python 3.10 can't read."""
    seconds, dot, fraction = text.replace(" ", "T").removesuffix("Z").removesuffix("+00:00").partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction:0<6}+00:00" if dot else f"{seconds}+00:00")
