"""An approval: two of three people have to agree within three days.

    python -m xdb serve approval:worker
"""

from __future__ import annotations

import xdb

TABLES = """
CREATE TABLE contracts (contract_id text PRIMARY KEY, status text NOT NULL DEFAULT 'open')
"""

NEEDED = 2


class Contract(xdb.Row, table="public.contracts", key="contract_id"):
    status: str


class Approval(xdb.Process):
    contract: Contract
    approvers: list[str]  # a value is given at the start
    votes = xdb.Queue[str]()
    vetoes = xdb.Queue[str]()

    @xdb.state(start=True, wait=xdb.any_of(votes.take(NEEDED), vetoes, xdb.timer(days=3)))
    def decide(self) -> xdb.Decision:
        if self.vetoes.received:
            return self.close("refused by " + self.vetoes.message)
        if self.votes.received:
            return self.close("approved by " + " and ".join(self.votes.messages))
        return self.close("expired")

    @xdb.state
    def close(self, how: str) -> xdb.Decision:
        self.contract.status = how.split()[0]
        return xdb.complete(how)

    @xdb.rpc
    def approve(self, by: str) -> None:
        self.check(by)
        self.votes.publish(by, message_id=by)  # a second vote of the same person is ignored

    @xdb.rpc
    def refuse(self, by: str) -> None:
        self.check(by)
        self.vetoes.publish(by)

    def check(self, by: str) -> None:
        if by not in self.approvers:
            raise xdb.Fatal("NotAnApprover", f"{by} is not an approver; the approvers are {', '.join(self.approvers)}")


worker = xdb.Worker(Approval)
