"""A worker for XDB: an HTTP server that holds the user's code and nothing else.

Sign-up: send a mail, wait until the address is verified, remind now and then until it is.
Run it with `python3 worker.py`; PORT (8080; 0 picks a free one) and REMINDER_SECONDS (2) can be set.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REMINDER_SECONDS = float(os.environ.get("REMINDER_SECONDS", "2"))


def send_email(address, text):
    print(f"mail to {address}: {text}", flush=True)


def submit(request):
    """First step: everything it needs is in the user's row."""
    form = request["loadedGlobalAttributes"]["form"]
    send_email(form["email"], f"Welcome {form['name']}, please verify your address.")
    return {"stateDecision": {"nextStates": [{"stateId": "Verify"}]}}


def verify_wait_until(request):
    """Second step, first half: what to wait for. Nothing runs until one of the two happens."""
    return {"commandRequest": {
        "waitingType": "AnyOfCompletion",
        "timerCommands": [{"commandId": "reminder", "delayInSeconds": REMINDER_SECONDS}],
        "localQueueCommands": [{"commandId": "verified", "queueName": "verify"}]}}


def verify(request):
    """Second step, second half: close the process, or remind and wait again."""
    [message] = request["commandResults"]["localQueueResults"]
    if message["status"] == "COMPLETED_COMMAND":
        return {"stateDecision": {"threadCloseDecision": {
            "closeType": "GRACEFUL_COMPLETE_PROCESS", "closeInput": "done"}}}
    reminders = request["loadedLocalAttributes"].get("reminders", 0) + 1
    form = request["loadedGlobalAttributes"]["form"]
    send_email(form["email"], f"Reminder {reminders}: please verify your address.")
    return {"stateDecision": {"nextStates": [{"stateId": "Verify"}]},
            "writeToLocalAttributes": {"reminders": reminders}}


def verify_rpc(request):
    """Called by the application when the user follows the link; the input says where the link was."""
    if request["loadedGlobalAttributes"].get("status") == "verified":
        return {"output": "already verified"}
    return {"output": "done",
            "writeToGlobalAttributes": {"status": "verified", "source": request["input"]},
            "publishToLocalQueue": [{"queueName": "verify", "payload": request["input"]}]}


BASE = "/api/v1/xdb/worker/"
HANDLERS = {
    (BASE + "async-state/execute", "Submit"): submit,
    (BASE + "async-state/wait-until", "Verify"): verify_wait_until,
    (BASE + "async-state/execute", "Verify"): verify,
    (BASE + "process/rpc", "verify"): verify_rpc,
}


class Worker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open between calls
    wbufsize = -1  # header and body in one packet

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        handler = HANDLERS.get((self.path, request.get("stateId") or request.get("rpcName")))
        if handler is None:
            return self.answer(404, {"errorType": "NotFound", "detail": f"no such state or RPC at {self.path}"})
        try:
            status, response = 200, handler(request)
        except Exception as error:  # any other status than 200 is retried by the engine
            status, response = 500, {"errorType": type(error).__name__, "detail": str(error)}
        self.answer(status, response)

    def answer(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8080"))), Worker)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
