//! A worker that costs next to nothing: HTTP/1.1 with keep-alive by hand, on a few threads that wait in `epoll`.
//!
//! The worker searches the text of a request for the few fields that it needs. It builds no tree of the JSON, and
//! allocates nothing for a call.

pub mod ceiling;
mod http;
mod poll;
mod server;

pub use server::Worker;

use std::time::{Duration, Instant};

/// The three calls of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    WaitUntil,
    Execute,
    Rpc,
}

impl Api {
    fn of_path(path: &[u8]) -> Option<Api> {
        match path {
            b"/api/v1/xdb/worker/async-state/wait-until" => Some(Api::WaitUntil),
            b"/api/v1/xdb/worker/async-state/execute" => Some(Api::Execute),
            b"/api/v1/xdb/worker/process/rpc" => Some(Api::Rpc),
            _ => None,
        }
    }
}

/// One request.
pub struct Request<'a> {
    pub api: Api,
    pub body: &'a [u8],
    /// When the request had arrived completely.
    pub at: Instant,
}

impl Request<'_> {
    /// The id of the state, or the name of the RPC.
    pub fn target(&self) -> &str {
        self.text(if self.api == Api::Rpc { "\"rpcName\":\"" } else { "\"stateId\":\"" })
    }

    /// The number at the end of the process id.
    pub fn index(&self) -> usize {
        let id = self.text("\"processId\":\"");
        let digits = id.len() - id.bytes().rev().take_while(u8::is_ascii_digit).count();
        id[digits..].parse().unwrap_or(usize::MAX)
    }

    /// The text after the first occurrence of `start`, up to the next quote. The benchmark's own values contain no
    /// quotes.
    pub fn text(&self, start: &str) -> &str {
        let Some(place) = http::find(self.body, start.as_bytes()) else { return "" };
        let rest = &self.body[place + start.len()..];
        let end = rest.iter().position(|byte| *byte == b'"').unwrap_or(rest.len());
        std::str::from_utf8(&rest[..end]).unwrap_or_default()
    }
}

/// An answer that is being built. Its buffer is used again.
#[derive(Default)]
pub struct Reply {
    /// The body of the answer, whose status is 200.
    pub body: Vec<u8>,
    /// The delay of the answer.
    pub after: Duration,
}

impl Reply {
    pub fn push(&mut self, text: &str) {
        self.body.extend_from_slice(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_without_being_parsed() {
        let body = br#"{"context":{"processId":"p-42","stateExecutionId":"S1-7"},"processType":"t","stateId":"S1"}"#;
        let request = Request { api: Api::Execute, body, at: Instant::now() };
        assert_eq!(request.target(), "S1");
        assert_eq!(request.index(), 42);
        assert_eq!(request.text("\"none\":\""), "");
    }

    #[test]
    fn a_process_id_without_a_number_belongs_to_no_worker() {
        let request = Request { api: Api::Rpc, body: br#"{"processId":"p"}"#, at: Instant::now() };
        assert_eq!(request.index(), usize::MAX);
    }
}
