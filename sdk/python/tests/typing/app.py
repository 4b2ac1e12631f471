import calling
from signup import SignUp, User, Form
from transfer import MoneyTransfer, Account, Transfer
from typing import Any

def use(conn: Any) -> None:
    client = calling.Client()
    client.start(SignUp, "signup-alice", rows=[User.row("alice", form=Form("Alice", "a@x"))], conn=conn)
    a: str = client.rpc(SignUp.confirm, "signup-alice", "link", idempotency_key="k")
    client.publish(SignUp.verified, "signup-alice", "x")
    client.rpc(SignUp.confirm, "signup-alice", 3)          # error expected
    client.publish(SignUp.verified, "signup-alice", 4)     # error expected
    b: int = client.rpc(MoneyTransfer.approve, "t-7", "bob")  # error expected
    client.rpc(MoneyTransfer.approve, "t-7")               # error expected
    MoneyTransfer.refund()                                 # error expected: input missing
    MoneyTransfer.refund(5)                                # error expected
    MoneyTransfer.refund(None)
    SignUp.verify()
