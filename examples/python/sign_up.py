"""A sign-up: the user has to confirm the address, and gets a reminder every day until then.

    python -m xdb serve sign_up:worker
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import xdb

TABLES = """
CREATE TABLE users (user_id text PRIMARY KEY, form jsonb NOT NULL, status text NOT NULL DEFAULT 'waiting', source text)
"""


# Seconds. Default: a day. Set it to a few seconds to see a reminder.
REMIND_AFTER = float(os.environ.get("REMINDER_SECONDS", 24 * 3600))


def send_email(to: str, text: str) -> None:
    print(f"to {to}: {text}", flush=True)


@dataclass
class Form:
    name: str
    email: str


class User(xdb.Row, table="public.users", key="user_id"):
    form: Form
    status: str
    source: str | None


class SignUp(xdb.Process, name="UserSignup"):
    user: User  # columns of one row of public.users
    reminders: int = 0  # a local attribute
    verified = xdb.Queue[str]()

    @xdb.state(start=True)
    def submit(self) -> xdb.Decision:
        send_email(self.user.form.email, f"Welcome {self.user.form.name}, please verify your address.")
        return self.verify()

    @xdb.state(wait=xdb.any_of(verified, xdb.timer(seconds=REMIND_AFTER)))
    def verify(self) -> xdb.Decision:
        if self.verified.received:
            return xdb.complete("done")
        self.reminders += 1
        send_email(self.user.form.email, f"Reminder {self.reminders}: please verify your address.")
        return self.verify()  # wait again

    @xdb.rpc
    def confirm(self, source: str) -> str:
        if self.user.status == "verified":
            return "already verified"
        self.user.status, self.user.source = "verified", source
        self.verified.publish(source)
        return "done"


worker = xdb.Worker(SignUp)
